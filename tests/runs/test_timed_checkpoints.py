"""Runs with checkpoints by the clock, and runs that keep only their scores, have the same scores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.runs.run_trainer import Meter
from attendrop.runs.train import train
from attendrop.training.checkpoints import last_checkpoint, mark_unfinished

RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": {"options": {"p": 0.5}, "seed": 3},
    "attendout": {"method": "attendout", "options": {"dropout_step": 7}},
    "patience": {"method": "mixout", "patience": 2, "learning_rate": 1e-4},
}


class StopAt(TrainerCallback):
    """Raises KeyboardInterrupt after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(  # in mid-epoch, and at the end of an epoch
    ("name", "step"), [("ad-drop", 12), ("patience", 10), pytest.param("attendout", 12, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_has_the_same_scores_without_checkpoints_of_epochs(
    shared: Path, tmp_path: Path, name: str, step: int
) -> None:
    config = tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "timed")} | RUNS[name]))
    with pytest.raises(KeyboardInterrupt):
        train(config, keep_model=False, checkpoint_seconds=0, callbacks=[StopAt(step)])
    assert (tmp_path / "timed" / f"checkpoint-{step - 1}").is_dir()
    found = train(config, checkpoint_seconds=0, resume=True)
    assert found["total_seconds"] >= found["train_seconds"] > 0
    assert not list((tmp_path / "timed").glob("checkpoint-*"))
    expected = train(tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "usual")} | RUNS[name])))
    for entry in ("score", "all_scores", "selection_score", "best_epoch", "steps", "predicted", "dropout_steps"):
        assert found[entry] == expected[entry], entry
    assert [epoch["selection"] for epoch in found["history"]] == [epoch["selection"] for epoch in expected["history"]]
    assert weights(tmp_path / "timed") == weights(tmp_path / "usual")


def test_the_time_before_a_resumption_counts() -> None:
    meter, given = Meter(), (TrainingArguments(use_cpu=True), TrainerState(), TrainerControl())
    meter.seconds_so_far = 1000.0  # as it is restored from a checkpoint
    meter.on_train_begin(*given)
    assert meter.state()["attributes"]["seconds_so_far"] >= 1000
    meter.on_train_end(*given)
    assert meter.seconds_so_far >= meter.seconds_before == 1000


def test_a_short_run_writes_no_checkpoint_and_keeps_its_scores_only(shared: Path, tmp_path: Path) -> None:
    written: list[str] = []

    class Listing(TrainerCallback):
        def on_train_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
            written.extend(os.listdir(str(args.output_dir)))

    options: dict[str, Any] = {"epochs": 4, "seed": 3, "learning_rate": 3e-2}
    config = tiny.config(shared, output_dir=str(tmp_path / "timed"), **options)
    metrics = train(config, keep_model=False, checkpoint_seconds=60, callbacks=[Listing()])
    assert not [name for name in written if name.startswith("checkpoint-")]
    assert sorted(os.listdir(tmp_path / "timed")) == ["dev_predictions.parquet", "metrics.json", "run.json", "run.yaml"]
    assert metrics["best_epoch"] < 4  # so that the last weights are not the best
    usual = train(tiny.config(shared, output_dir=str(tmp_path / "usual"), **options))
    assert metrics["score"] == usual["score"]


def test_checkpoints_that_were_never_finished_do_not_displace_complete_ones(shared: Path, tmp_path: Path) -> None:
    """Two are left by processes that were killed at later steps than the one from which the run resumes."""
    config = tiny.config(shared, output_dir=str(tmp_path))
    for step in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            train(config, checkpoint_seconds=0, callbacks=[StopAt(step)], resume=True)
        for unfinished in (8, 9):
            mark_unfinished(tmp_path / f"checkpoint-{unfinished}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-5"


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
