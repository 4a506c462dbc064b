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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("run", "goes_on_from"),
    [
        (die_while_weights_are_written, "checkpoint-5"),
        (die_before_first_checkpoint, None),
        (die_in_mid_epoch, "checkpoint-6"),
        (die_before_manifest, "checkpoint-9"),
    ],
)
def test_killed_and_resumed(
    files: Path, caplog: pytest.LogCaptureFixture, run: Callable[[Path], None], goes_on_from: str | None
) -> None:
    caplog.set_level("INFO", "attendrop")
    child = _CONTEXT.Process(target=run, args=(files,))
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
    whole, resumed = (load_file(files / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    for name in ("score", "all_scores", "selection_score", "best_epoch", "steps"):
        assert metrics[name] == expected[name]
    for resumed_epoch, epoch in zip(metrics["history"], expected["history"], strict=True):
        assert resumed_epoch["selection"] == epoch["selection"]
        assert resumed_epoch["dropped"] == epoch["dropped"]
