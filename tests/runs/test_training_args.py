"""Training arguments: made in one place for runs and for fine-tuning pruned models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from transformers import TrainerState, TrainingArguments

from attendrop.runs import run_trainer
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_trainer import has_stopped, num_epochs, run_arguments, training_arguments

OPTIMISATION = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "weight_decay", "warmup_steps"),
    *("lr_scheduler_type", "train_sampling_strategy", "seed", "use_cpu", "bf16"),
)


def test_a_pruned_model_is_fine_tuned_as_its_run_was_trained(shared: Path) -> None:
    options: dict[str, Any] = {"schedule": "cosine", "warmup": 0.2, "weight_decay": 0.03, "gradient_accumulation": 2}
    config = tiny.config(shared, seed=7, bf16=True, **options)
    trained = run_arguments(resolve_run(config), 36, Path("unused"))
    recovered = training_arguments(config, output_dir="unused")
    for name in OPTIMISATION:
        assert getattr(trained, name) == getattr(recovered, name), name
    assert (trained.load_best_model_at_end, trained.metric_for_best_model) == (True, "eval_accuracy")


def test_checkpoints_are_where_the_run_looks_for_them(shared: Path) -> None:
    """Also in ``--output-dir=./~/run``, though transformers replaces a ``~`` at the beginning."""
    arguments = run_arguments(resolve_run(tiny.config(shared)), 36, Path("~/run"))
    assert arguments.output_dir == str(Path.cwd() / "~" / "run")


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"epochs": 3}, 3),
        ({"max_steps": 5}, 1),
        ({"max_steps": 6}, 2),
        ({"max_steps": 3, "gradient_accumulation": 3}, 2),
    ],
)
def test_steps_are_counted_in_epochs(shared: Path, options: dict[str, Any], epochs: int) -> None:
    """36 rows to train on, in batches of 8."""
    run = resolve_run(tiny.config(shared, **options))
    assert num_epochs(run.config, len(run.parts.train)) == epochs


def test_steps_and_epochs_are_those_of_all_processes(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = resolve_run(tiny.config(shared, max_steps=5, selection_fraction=0.0))
    assert num_epochs(run.config, 36) == 2  # of 3 steps, each of two batches of 8
    many = str(tiny.write_csv(tmp_path / "many.csv", ["no", "yes"] * 200))
    run = resolve_run(tiny.config(shared, train_file=many, epochs=None, batch_size=1, selection_fraction=0.0))
    assert run.config.max_steps == 600  # three epochs, each step of two rows


@pytest.mark.parametrize(
    ("patience", "waited", "stop_after", "stopped"),
    [(2, 1, None, False), (2, 2, None, True), (None, 2, None, False), (None, 0, 11, False), (None, 0, 10, True)],
)
def test_a_resumed_run_that_had_stopped_takes_no_more_steps(
    shared: Path, tmp_path: Path, patience: int | None, waited: int, stop_after: int | None, stopped: bool
) -> None:
    stopping = {"args": {}, "attributes": {"early_stopping_patience_counter": waited}}
    state = TrainerState(global_step=10, stateful_callbacks={"EarlyStoppingCallback": stopping})
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    assert has_stopped(tiny.config(shared, patience=patience), tmp_path, stop_after) == stopped


def test_a_run_trains_on_one_of_several_gpus(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTwo(TrainingArguments):
        def __post_init__(self) -> None:
            super().__post_init__()
            self._n_gpu = 2

    monkeypatch.setattr(run_trainer, "TrainingArguments", WithTwo)
    assert run_arguments(resolve_run(tiny.config(shared)), 36, Path("unused")).n_gpu == 1
