"""A run that is killed and resumed ends with the weights, bit for bit, of the run that was not."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.runs.train import train
from attendrop.training import trainer as attendrop_trainer
from attendrop.training.checkpoints import last_checkpoint

# The children are forked by a server that has imported everything and started no threads: quick, and safe.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["attendrop.runs.train"])

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


def die_before_manifest(folder: Path) -> None:
    """All of the checkpoint at the second epoch's end is written, but not the manifest."""
    seal = attendrop_trainer.seal

    def sealed(checkpoint: Path, *rest: Any) -> None:
        if checkpoint.name == "checkpoint-10":
            die()
        seal(checkpoint, *rest)

    attendrop_trainer.seal = sealed
    train(tiny.config(folder, "killed", **OPTIONS))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    with tiny.kept_checkpoints():
        train(tiny.config(folder, "whole", **OPTIONS))
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("run", "goes_on_from"),
    [
        (die_before_first_checkpoint, None),
        (die_in_mid_epoch, "checkpoint-6"),
        (die_while_weights_are_written, "checkpoint-5"),
        (die_before_manifest, "checkpoint-9"),
    ],
)
def test_killed_and_resumed(
    uninterrupted: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    run: Callable[[Path], None],
    goes_on_from: str | None,
) -> None:
    caplog.set_level("INFO", "attendrop")
    for name in ("model", "train.csv", "dev.csv"):
        (tmp_path / name).symlink_to(uninterrupted / name)
    child = _CONTEXT.Process(target=run, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    found = last_checkpoint(tmp_path / "killed")
    assert (found.name if found else None) == goes_on_from
    metrics = train(tiny.config(tmp_path, "killed", **OPTIONS), resume=True)
    said = f"Resuming from {tmp_path / 'killed' / goes_on_from}" if goes_on_from else "the run starts over"
    assert said in caplog.text
    assert not list((tmp_path / "killed").glob("checkpoint-*"))  # the run is finished: it needs none

    whole, resumed = (load_file(f / "model.safetensors") for f in (uninterrupted / "whole", tmp_path / "killed"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    expected = tiny.read_metrics(uninterrupted / "whole")
    for name in ("score", "all_scores", "selection_score", "best_epoch", "steps"):
        assert metrics[name] == expected[name]
    for resumed_epoch, epoch in zip(metrics["history"], expected["history"], strict=True):
        assert resumed_epoch["selection"] == epoch["selection"]
        assert resumed_epoch["dropped"] == epoch["dropped"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "method",
    [
        # the checkpoint at step 12 lies within a period
        {"method": "attendout", "options": {"dropout_step": 7, "learner": "policy_gradient"}},
        {"method": "attendout", "options": {"dropout_step": 7, "variant": "pruning"}},
        {"method": "attendout", "options": {"dropout_step": 7, "explore": 1.0}},
        {},
    ],
    ids=["attendout", "pruning", "effects", "ad-drop"],
)
def test_last_weights_are_the_same_too(method: dict[str, Any], uninterrupted: Path, tmp_path: Path) -> None:
    """The kept epoch may be an early one; this compares the weights after the last step."""
    for name in ("model", "train.csv", "dev.csv"):
        (tmp_path / name).symlink_to(uninterrupted / name)
    options = OPTIONS | {"selection_fraction": 0} | method
    child = _CONTEXT.Process(target=_die_late, args=(tmp_path, options))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert (last_checkpoint(tmp_path / "killed") or Path()).name == "checkpoint-12"
    train(tiny.config(tmp_path, "killed", **options), resume=True)
    train(tiny.config(tmp_path, "whole", **options))
    for file in sorted(path.name for path in (tmp_path / "whole").glob("*.safetensors")):
        whole, resumed = (load_file(tmp_path / run / file) for run in ("whole", "killed"))
        assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    expected, found = (tiny.read_metrics(tmp_path / run) for run in ("whole", "killed"))
    assert found["dropout_steps"] == expected["dropout_steps"]
    assert [step["step"] for step in found["dropout_steps"]] == (
        [] if not method else [7, 14] if "explore" in method["options"] else [7, 14, 15]
    )


def _die_late(folder: Path, options: dict[str, Any]) -> None:
    train(tiny.config(folder, "killed", **options), callbacks=[DieAfter(14)])


def test_checkpoints_that_are_truncated_are_passed_over(uninterrupted: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = last_checkpoint(uninterrupted / "whole")
    assert newest is not None
    weights = newest / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    try:
        found = last_checkpoint(uninterrupted / "whole")
        assert found is not None
        assert found != newest
    finally:
        weights.write_bytes(whole)
    assert "is not complete" in caplog.text
