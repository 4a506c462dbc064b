"""The private parts of ``transformers.Trainer`` that the library relies on are those of the installed version."""

import ast
import inspect
import re
from pathlib import Path

from transformers import Trainer

import attendrop
from attendrop.training.trainer import RegularizedTrainer

SOURCE = Path(attendrop.__file__).parent
HOOKS = SOURCE / "training/trainer.py"
STOCK = inspect.getsource(Trainer)
# Methods and attributes of the stock trainer whose names begin with one underscore.
PRIVATE = set(re.findall(r"(?:def |self\.)(_[a-z]\w*)", STOCK))
CALLED = {"_push_from_checkpoint", "_remove_unused_columns", "_get_collator_with_removed_columns", "_get_output_dir"}
ATTRIBUTES = {"_signature_columns", "_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_loss_shifts_labels"}


def used_privately(path: Path) -> set[str]:
    """The stock trainer's private names that a file defines or reads."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    return (read | {node.name for body in bodies for node in body if isinstance(node, ast.FunctionDef)}) & PRIVATE


def test_what_is_used_is_there_with_its_parameters_and_nothing_else_is_used() -> None:
    overridden = {
        name for name in vars(RegularizedTrainer) if name in PRIVATE and callable(getattr(Trainer, name, None))
    }
    for name in overridden:
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (RegularizedTrainer, Trainer))
        assert list(ours) == list(theirs), name
        assert f"self.{name}" in STOCK, name  # the trainer calls it
    assert used_privately(HOOKS) == overridden | CALLED | ATTRIBUTES
    assert not [name for name in ATTRIBUTES if f"self.{name}" not in STOCK]
    trainers = [path for path in SOURCE.rglob("*.py") if path != HOOKS and "rainer" in path.read_text("utf-8")]
    assert not {path.name: names for path in trainers if (names := used_privately(path))}
