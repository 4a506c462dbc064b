"""Runs with checkpoints by the clock, and runs that keep only their scores, have the same scores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.runs.train import train
from attendrop.training.checkpoints import last_checkpoint, mark_unfinished

RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": {"options": {"p": 0.5}, "seed": 3},
    "attendout": {"method": "attendout", "options": {"dropout_step": 7}},
    "patience": {"method": "mixout", "patience": 2, "learning_rate": 1e-4},
    "last epoch": {"method": "finetune", "selection_fraction": 0},
}


class StopAt(TrainerCallback):
    """Raises KeyboardInterrupt after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    folder = tmp_path_factory.mktemp("timed")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("step", [12, 10])  # in mid-epoch, and at the end of an epoch
def test_an_interrupted_run_has_the_same_scores_without_checkpoints_of_epochs(
    folder: Path, tmp_path: Path, name: str, step: int
) -> None:
    config = tiny.config(folder, **({"epochs": 4, "output_dir": str(tmp_path / "timed")} | RUNS[name]))
    with pytest.raises(KeyboardInterrupt):
        train(config, keep_model=False, checkpoint_seconds=0, callbacks=[StopAt(step)])
    assert (tmp_path / "timed" / f"checkpoint-{step - 1}").is_dir()
    state = tmp_path / "timed" / f"checkpoint-{step - 1}" / "trainer_state.json"
    before = json.loads(state.read_text(encoding="utf-8"))["stateful_callbacks"]["Meter"]["attributes"][
        "seconds_so_far"
    ]
    found = train(config, checkpoint_seconds=0, resume=True)
    assert found["total_seconds"] >= found["train_seconds"] >= before > 0
    assert not list((tmp_path / "timed").glob("checkpoint-*"))
    expected = train(tiny.config(folder, **({"epochs": 4, "output_dir": str(tmp_path / "usual")} | RUNS[name])))
    for entry in ("score", "all_scores", "selection_score", "best_epoch", "steps", "predicted", "dropout_steps"):
        assert found[entry] == expected[entry], entry
    assert [epoch["selection"] for epoch in found["history"]] == [epoch["selection"] for epoch in expected["history"]]
    assert weights(tmp_path / "timed") == weights(tmp_path / "usual")


def test_a_short_run_writes_no_checkpoint_and_keeps_its_scores_only(folder: Path, tmp_path: Path) -> None:
    written: list[str] = []

    class Listing(TrainerCallback):
        def on_train_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
            written.extend(os.listdir(str(args.output_dir)))

    options: dict[str, Any] = {"epochs": 4, "seed": 3, "learning_rate": 3e-2}
    config = tiny.config(folder, output_dir=str(tmp_path / "timed"), **options)
    metrics = train(config, keep_model=False, checkpoint_seconds=60, callbacks=[Listing()])
    assert not [name for name in written if name.startswith("checkpoint-")]
    assert sorted(os.listdir(tmp_path / "timed")) == ["dev_predictions.parquet", "metrics.json", "run.json", "run.yaml"]
    assert metrics["best_epoch"] < 4  # so that the last weights are not the best
    usual = train(tiny.config(folder, output_dir=str(tmp_path / "usual"), **options))
    assert metrics["score"] == usual["score"]


def test_checkpoints_that_were_never_finished_do_not_displace_complete_ones(folder: Path, tmp_path: Path) -> None:
    """Two are left by processes that were killed at later steps than the one from which the run resumes."""
    config = tiny.config(folder, output_dir=str(tmp_path))
    for step in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            train(config, checkpoint_seconds=0, callbacks=[StopAt(step)], resume=True)
        for unfinished in (8, 9):
            mark_unfinished(tmp_path / f"checkpoint-{unfinished}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-5"


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
