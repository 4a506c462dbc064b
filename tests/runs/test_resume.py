"""A run that is killed and resumed ends with the weights, bit for bit, of the run that was not; also one of a study."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.forked import CONTEXT
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.runs.config import RunConfig
from attendrop.runs.run_trainer import Meter
from attendrop.runs.train import train
from attendrop.training.checkpoints import last_checkpoint, mark_unfinished

OPTIONS: dict[str, Any] = {"epochs": 3, "save_steps": 3, "options": {"p": 0.5}}  # epochs of 5 steps


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DieAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self.step:
            die()


def die_before_first_checkpoint(folder: Path) -> None:
    train(tiny.config(folder, "killed", **OPTIONS), callbacks=[DieAfter(2)])


def die_in_mid_epoch(folder: Path) -> None:
    train(tiny.config(folder, "killed", **OPTIONS), callbacks=[DieAfter(8)])


def die_while_weights_are_written(folder: Path) -> None:
    """The weights of the third checkpoint, at step 6, are there in part when the process dies; the rest is not."""
    save = Trainer.save_model

    def torn(self: Trainer, output_dir: str | None = None, _internal_call: bool = False) -> None:
        save(self, output_dir, _internal_call)
        if output_dir is not None and output_dir.endswith("checkpoint-6"):
            os.truncate(Path(output_dir) / "model.safetensors", 1000)
            die()

    Trainer.save_model = torn
    train(tiny.config(folder, "killed", **OPTIONS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "goes_on_from"),
    [
        (die_while_weights_are_written, "checkpoint-5"),
        (die_before_first_checkpoint, None),
        (die_in_mid_epoch, "checkpoint-6"),
    ],
)
def test_killed_and_resumed(
    files: Path, caplog: pytest.LogCaptureFixture, run: Callable[[Path], None], goes_on_from: str | None
) -> None:
    caplog.set_level("INFO", "attendrop")
    child = CONTEXT.Process(target=run, args=(files,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    found = last_checkpoint(files / "killed")
    assert (found.name if found else None) == goes_on_from
    metrics = train(tiny.config(files, "killed", **OPTIONS), resume=True)
    said = f"Resuming from {files / 'killed' / goes_on_from}" if goes_on_from else "the run starts over"
    assert said in caplog.text
    assert not list((files / "killed").glob("checkpoint-*"))  # the run is finished: it needs none
    expected = train(tiny.config(files, "whole", **OPTIONS))
    assert weights(files / "killed") == weights(files / "whole")
    for name in ("score", "all_scores", "selection_score", "best_epoch", "steps"):
        assert metrics[name] == expected[name]
    for resumed_epoch, epoch in zip(metrics["history"], expected["history"], strict=True):
        assert resumed_epoch["selection"] == epoch["selection"]
        assert resumed_epoch["dropped"] == epoch["dropped"]


RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": {"options": {"p": 0.5}, "patience": 2, "learning_rate": 1e-4},
    "attendout": {"method": "attendout", "options": {"dropout_step": 7}},
    "patience": {"method": "mixout", "patience": 2, "learning_rate": 1e-4},
}
CHANGES_MUCH: dict[str, Any] = {"epochs": 4, "seed": 3, "learning_rate": 3e-2}  # the last epoch is not the best


# Checkpoints by the clock, and runs that keep only their scores -------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "step"), [("ad-drop", 12), ("patience", 10), ("attendout", 12)])  # 10: of an epoch
def test_an_interrupted_run_has_the_same_scores_without_checkpoints_of_epochs(
    shared: Path, tmp_path: Path, stop_at: Callable[[int], Any], name: str, step: int
) -> None:
    config = tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "timed")} | RUNS[name]))
    with pytest.raises(KeyboardInterrupt):
        train(config, keep_model=False, checkpoint_seconds=0, callbacks=[stop_at(step)])
    assert (tmp_path / "timed" / f"checkpoint-{step - 1}").is_dir()
    found = train(config, checkpoint_seconds=0, resume=True)
    assert found["total_seconds"] >= found["train_seconds"] > 0
    assert not list((tmp_path / "timed").glob("checkpoint-*"))
    expected = train(tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "usual")} | RUNS[name])))
    for entry in ("score", "all_scores", "selection_score", "best_epoch", "steps", "predicted", "dropout_steps"):
        assert found[entry] == expected[entry], entry
    assert [epoch["selection"] for epoch in found["history"]] == [epoch["selection"] for epoch in expected["history"]]
    assert weights(tmp_path / "timed") == weights(tmp_path / "usual")


def test_a_run_that_was_moved_ends_with_its_best_weights(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped after its last checkpoint, whose weights are not the best."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def config(output: str) -> RunConfig:
        return tiny.config(shared, output_dir=str(tmp_path / output), **CHANGES_MUCH)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("attendrop.runs.train.score_model", interrupted)
        train(config("stopped"))
    (tmp_path / "stopped").rename(tmp_path / "moved")
    assert train(config("moved"), resume=True)["best_epoch"] == train(config("whole"))["best_epoch"] < 4
    assert weights(tmp_path / "moved") == weights(tmp_path / "whole")


def test_the_time_before_a_resumption_counts() -> None:
    meter, given = Meter(), (TrainingArguments(use_cpu=True), TrainerState(), TrainerControl())
    meter.seconds_so_far = 1000.0  # as it is restored from a checkpoint
    meter.on_train_begin(*given)
    assert meter.state()["attributes"]["seconds_so_far"] >= 1000
    meter.on_train_end(*given)
    assert meter.seconds_so_far >= meter.seconds_before == 1000


def test_a_short_run_writes_no_checkpoint_and_keeps_its_scores_only(shared: Path, tmp_path: Path) -> None:
    """The last weights are not the best."""
    written: list[str] = []

    class Listing(TrainerCallback):
        def on_train_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
            written.extend(os.listdir(str(args.output_dir)))

    config = tiny.config(shared, output_dir=str(tmp_path / "timed"), **CHANGES_MUCH)
    metrics = train(config, keep_model=False, checkpoint_seconds=60, callbacks=[Listing()])
    assert not [name for name in written if name.startswith("checkpoint-")]
    assert sorted(os.listdir(tmp_path / "timed")) == ["dev_predictions.parquet", "metrics.json", "run.json", "run.yaml"]
    assert metrics["best_epoch"] < 4


def test_checkpoints_that_were_never_finished_do_not_displace_complete_ones(
    shared: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    """Two are left by processes that were killed at later steps than the one from which the run resumes."""
    config = tiny.config(shared, output_dir=str(tmp_path))
    for step in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            train(config, checkpoint_seconds=0, callbacks=[stop_at(step)], resume=True)
        for unfinished in (8, 9):
            mark_unfinished(tmp_path / f"checkpoint-{unfinished}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-5"


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
