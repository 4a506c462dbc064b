"""A run that is stopped and resumed ends with the weights, bit for bit, of the run that was not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import tiny
from helpers.command_line import Captured, train_arguments
from helpers.training import Stop
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import TrainerControl, TrainerState, TrainingArguments

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs import train as train_module
from attendrop.runs.config import RunConfig, partial_of
from attendrop.runs.run_trainer import RunCallback
from attendrop.runs.train import train
from attendrop.support.files import sha256, write_json
from attendrop.training.checkpoints import MANIFEST, is_complete, last_checkpoint
from attendrop.training.trainer import RegularizedTrainer

RUNS: dict[str, dict[str, Any]] = {
    "ad-drop": {"options": {"p": 0.5}, "patience": 2, "learning_rate": 1e-4},
    "attendout": {"method": "attendout", "options": {"dropout_step": 7}},
    "patience": {"method": "mixout", "patience": 2, "learning_rate": 1e-4},
}


# Checkpoints by the clock, and runs that keep only their scores -------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "step"), [("ad-drop", 12), ("patience", 10), ("attendout", 12)])  # 10: of an epoch
def test_an_interrupted_run_has_the_same_scores_without_checkpoints_of_epochs(
    shared: Path, tmp_path: Path, stop_at: Callable[[int], Any], name: str, step: int
) -> None:
    config = tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "timed")} | RUNS[name]))
    with pytest.raises(KeyboardInterrupt):
        train(config, keep_model=False, checkpoint_seconds=0, callbacks=[stop_at(step)])
    assert (tmp_path / ".timed.partial" / f"checkpoint-{step - 1}").is_dir()
    found = train(config, checkpoint_seconds=0, resume=True)
    assert found["total_seconds"] >= found["train_seconds"] > 0
    assert not list((tmp_path / "timed").glob("checkpoint-*"))
    expected = train(tiny.config(shared, **({"epochs": 4, "output_dir": str(tmp_path / "usual")} | RUNS[name])))
    for entry in ("score", "all_scores", "selection_score", "best_epoch", "steps", "predicted", "dropout_steps"):
        assert found[entry] == expected[entry], entry
    assert [epoch["selection"] for epoch in found["history"]] == [epoch["selection"] for epoch in expected["history"]]
    assert tiny.weights_of(tmp_path / "timed") == tiny.weights_of(tmp_path / "usual")


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("dies_in", "options"),
    [
        # Of these the last epoch is not the best: it stopped after its last checkpoint.
        ("score_model", {"epochs": 4, "seed": 3, "learning_rate": 3e-2}),
        # Trained again for the steps of the best epoch, of the schedule of all epochs.
        ("selection_report", {"patience": 1, "refit": True, "epochs": 6, "batch_size": 6, "method": "finetune"}),
    ],
)
def test_a_run_that_died_when_a_training_was_over_and_was_moved_ends_the_same(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str, options: dict[str, Any]
) -> None:
    def config(output: str) -> RunConfig:
        return tiny.config(shared, output_dir=str(tmp_path / output), **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"attendrop.runs.run_trainer.{dies_in}", interrupted)
        train(config("stopped"))
    (tmp_path / ".stopped.partial").rename(tmp_path / ".moved.partial")
    moved, whole = train(config("moved"), resume=True), train(config("whole"))
    for entry in ("history", "all_scores", "selection_score", "steps", "planned_steps", "score", "head_init"):
        assert moved[entry] == whole[entry], entry
    if whole["selection"]:
        assert whole["selection"]["steps"] < whole["planned_steps"] == moved["selection"]["planned_steps"] == 36
    else:
        assert moved["best_epoch"] == whole["best_epoch"] < 4
    assert tiny.weights_of(tmp_path / "moved") == tiny.weights_of(tmp_path / "whole")


def test_the_time_before_a_resumption_counts() -> None:
    meter, given = RunCallback(), (TrainingArguments(use_cpu=True), TrainerState(), TrainerControl())
    meter.seconds_so_far = 1000.0  # as it is restored from a checkpoint
    meter.on_train_begin(*given)
    assert meter.state()["attributes"]["seconds_so_far"] >= 1000
    meter.on_train_end(*given)
    assert meter.seconds_so_far >= meter.seconds_before == 1000


def test_slow_checkpoints_are_written_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute the first, which takes two seconds; the others when these are 2 % of the time."""
    now, saved = [0.0], list[float]()
    monkeypatch.setattr("attendrop.runs.run_trainer.time.monotonic", lambda: now[0])
    meter, given = RunCallback(save_seconds=60), (TrainingArguments(use_cpu=True), TrainerState())
    meter.on_train_begin(*given, TrainerControl())
    for _ in range(1000):
        now[0] += 1
        meter.on_step_end(*given, control := TrainerControl())
        if control.should_save:
            saved.append(now[0])
            now[0] += 2
            meter.on_save(*given, control)
    assert saved[0] == 60 and {late - early for early, late in pairwise(saved)} == {100}


def test_a_run_is_resumed_by_as_many_processes(
    shared: Path, tmp_path: Path, stop_at: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trains on a batch in a step, so another number would take other steps."""
    config = tiny.config(shared, output_dir=str(tmp_path / "run"), method="finetune")
    with pytest.raises(KeyboardInterrupt):
        train(config, callbacks=[stop_at(2)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(AttendropError, match="began with 1 and not 2 processes"):
        train(config, resume=True)


# Checkpoints that are damaged, or of others ---------------------------------------------------------------------------

# The files of a checkpoint that a resumed run reads, with how a refusal names them, and those that it does not.
READ = {
    "model.safetensors": "the weights",
    "optimizer.pt": "the state of the optimizer or of its schedule",
    "scheduler.pt": "the state of the optimizer or of its schedule",
    "rng_state.pth": "the state of the random numbers",
    "trainer_state.json": "trainer_state.json",
    "attendrop_state.json": "attendrop_state.json",
    "attendrop_session.pt": "the state of its method",
    "attendrop_session_0.pt": "the state of its method",
}


class Runs:
    """Pickled, it makes a file when it is unpickled without ``weights_only``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/attendrop-ran-code",)


def reseal(checkpoint: Path) -> None:
    """Write the manifest of the files that are there, as who made them would."""
    paths = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST]
    write_json(checkpoint / MANIFEST, {"files": {str(path.relative_to(checkpoint)): sha256(path) for path in paths}})


@pytest.fixture(scope="module")
def stopped(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its second epoch began, with everything that a checkpoint may hold."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        train(stopped_config(shared, folder), checkpoint_seconds=0, callbacks=[Stop(8)])
    return partial_of(folder)


def stopped_config(shared: Path, folder: Path) -> RunConfig:
    return tiny.config(shared, output_dir=str(folder), method="attendout", options={"dropout_step": 2})


@pytest.fixture
def last(stopped: Path, tmp_path: Path) -> Path:
    """The only checkpoint of a copy of that run, which a test may spoil."""
    place = Path(shutil.copytree(stopped, tmp_path / ".run.partial"))
    found = last_checkpoint(place)
    assert found is not None
    for other in place.glob("checkpoint-*"):
        if other != found:
            shutil.rmtree(other)
    return found


def spoil(file: Path, kind: str) -> None:
    if kind == "garbage":
        file.write_bytes(b"\x80garbage")
    elif kind == "pickled code":
        torch.save({"state": Runs()}, file)
    elif kind == "missing":
        file.unlink()
    elif file.suffix == ".safetensors":
        save_file({"others": torch.zeros(1)}, file)
    else:
        torch.save({"others": 1}, file)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["garbage", "pickled code", "of others", "missing"])
@pytest.mark.parametrize("name", READ)
def test_what_cannot_be_read_in_a_checkpoint_is_named_in_a_sentence(
    shared: Path, last: Path, name: str, kind: str
) -> None:
    if kind == "missing" and not name.startswith(("model", "trainer_state", "attendrop_state")):
        pytest.skip("a checkpoint may lack it")
    spoil(last / name, kind)
    reseal(last)
    with pytest.raises(AttendropError) as refused:
        train(stopped_config(shared, last.parents[1] / "run"), resume=True, checkpoint_seconds=0)
    told = str(refused.value)
    assert told.startswith(f"The checkpoint '{last}' cannot be resumed from: {READ[name]} cannot be read (")
    assert told.endswith("Delete it to resume from the one before, or train anew.") and "\n" not in told
    assert not Path("/tmp/attendrop-ran-code").exists()
    assert not (last.parents[1] / "run").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "other/adapter_model.bin"])
def test_pickled_weights_in_a_checkpoint_are_refused(shared: Path, last: Path, name: str) -> None:
    (last / name).parent.mkdir(exist_ok=True)
    torch.save({"state": Runs()}, last / name)
    if name == "pytorch_model.bin":
        (last / "model.safetensors").unlink()
    reseal(last)
    with pytest.raises(AttendropError, match=rf"'{last}' holds pickled weights \({Path(name).name}\)"):
        train(stopped_config(shared, last.parents[1] / "run"), resume=True, checkpoint_seconds=0)


def test_the_best_weights_are_read_from_safetensors_only(shared: Path, tmp_path: Path) -> None:
    """A received trainer_state.json may name any folder as that of the best checkpoint."""
    elsewhere, trainer = tmp_path / "elsewhere", object.__new__(RegularizedTrainer)
    elsewhere.mkdir()
    torch.save({}, elsewhere / "pytorch_model.bin")
    trainer.state = TrainerState(best_model_checkpoint=str(elsewhere))
    with pytest.raises(AttendropError, match="holds pickled weights"):
        trainer._load_best_model()


# A full disk ----------------------------------------------------------------------------------------------------------

# What writes, how often it succeeds, and how it fails then.
WRITERS: list[tuple[Any, str, int, Exception]] = [
    (safetensors.torch, "save_file", 2, SafetensorError("I/O error: No space left on device (os error 28)")),
    (torch, "save", 1, RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")),
    (train_module, "write_text", 0, OSError(errno.ENOSPC, "No space left on device")),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("owner", "name", "writes", "error"), WRITERS, ids=["safetensors", "torch", "python"])
def test_a_full_disk_is_one_sentence_and_can_be_resumed(
    shared: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch,
    owner: Any, name: str, writes: int, error: Exception,
) -> None:  # fmt: skip
    write, left = getattr(owner, name), writes

    def full(*given: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return write(*given, **keywords)

    arguments = train_arguments(shared, tmp_path / "run", "--method", "finetune", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        if name == "save_file":
            patch.setattr("transformers.modeling_utils.safe_save_file", full)
        assert cli.main(arguments) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Warning: ")]
    assert len(said) == 1 and said[0].startswith("Error: No space left on device")
    assert said[0].endswith("Free some space, then resume training with --resume.")
    assert all(is_complete(checkpoint) for checkpoint in tmp_path.glob(".run.partial/checkpoint-*"))
    assert cli.main([*arguments, "--resume"]) == 0
    assert tiny.read_metrics(tmp_path / "run")["steps"] == 10
