"""The private parts of ``transformers.Trainer`` that the library relies on are those of the installed version."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from transformers import Trainer

import attendrop
from attendrop.training.trainer import RegularizedTrainer

SOURCE = Path(attendrop.__file__).parent
HOOKS = SOURCE / "training/trainer.py"
STOCK = inspect.getsource(Trainer)
# Methods and attributes of the stock trainer whose names begin with one underscore.
PRIVATE = set(re.findall(r"(?:def |self\.)(_[a-z]\w*)", STOCK))
OVERRIDDEN = [name for name in vars(RegularizedTrainer) if re.match("_[a-z]", name)]
# A method's parameters as the stock trainer calls it, and the attributes that are read and set.
SIGNATURES = {
    "_get_train_sampler": ["self", "train_dataset"],
    "_get_eval_sampler": ["self", "eval_dataset"],
    "_set_signature_columns_if_needed": ["self"],
    "_init_training_state": [
        "self", "max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint", "trial",
    ],
    "_get_dataloader": [
        "self", "dataset", "description", "batch_size", "sampler_fn", "is_training", "dataloader_key",
    ],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_best_model": ["self"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_load_scaler": ["self", "checkpoint"],
    "_load_rng_state": ["self", "checkpoint"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_push_from_checkpoint": ["self", "checkpoint_folder"],
    "_determine_best_metric": ["self", "metrics", "trial"],
    "_issue_warnings_after_load": ["self", "load_result"],
    "_get_num_items_in_batch": ["self", "batch_samples", "device"],
    "_remove_unused_columns": ["self", "dataset", "description"],
    "_get_collator_with_removed_columns": ["self", "data_collator", "description"],
    "_get_output_dir": ["self", "trial"],
}  # fmt: skip
ATTRIBUTES = ["_signature_columns", "_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_loss_shifts_labels"]


def used_privately(path: Path) -> set[str]:
    """The stock trainer's private names that a file defines or reads."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    return (read | {node.name for body in bodies for node in body if isinstance(node, ast.FunctionDef)}) & PRIVATE


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_method_is_there_with_its_parameters(name: str) -> None:
    assert list(inspect.signature(getattr(Trainer, name)).parameters) == SIGNATURES[name]
    if name in OVERRIDDEN:
        assert list(inspect.signature(getattr(RegularizedTrainer, name)).parameters) == SIGNATURES[name]
        assert STOCK.count(f"self.{name}") >= 1  # the trainer calls it


def test_the_training_loop_has_the_attributes() -> None:
    assert not [name for name in ATTRIBUTES if f"self.{name}" not in STOCK]


def test_nothing_else_is_used_and_nowhere_else() -> None:
    assert used_privately(HOOKS) == {*SIGNATURES, *ATTRIBUTES}
    trainers = [path for path in SOURCE.rglob("*.py") if path != HOOKS and "rainer" in path.read_text("utf-8")]
    found = {path.name: names for path in trainers if (names := used_privately(path))}
    assert not found
