"""Which checkpoints are complete, and to which method they belong."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendrop import ADDrop, AttendropError, FineTune
from attendrop.methods.core.base import Method
from attendrop.training.checkpoints import (
    is_complete,
    last_checkpoint,
    load_method_state,
    load_state,
    mark_unfinished,
    save_method_state,
    write_manifest,
)

METHOD = ADDrop(p=0.4, layers=[0, 1])
STATE = {"seed": 1, "steps_taken": 7}


def checkpoint(folder: Path, step: int = 1, method: Method = METHOD) -> Path:
    made = folder / f"checkpoint-{step}"
    (made / "sub").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "sub/file").write_bytes(b"x")
    (made / "empty").write_bytes(b"")
    (made / "checkpoint-is-incomplete.txt").write_bytes(b"by enable_jit_checkpoint")
    write_manifest(made, method, STATE)
    (made / "checkpoint-is-incomplete.txt").unlink()
    return made


def test_a_sealed_checkpoint_is_complete_and_gives_its_state_back(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "nowhere") is None
    made = checkpoint(tmp_path)
    assert is_complete(made)
    assert last_checkpoint(tmp_path) == made
    assert load_state(made, METHOD) == STATE


def test_each_process_has_its_own_state_and_that_of_all(tmp_path: Path) -> None:
    assert load_method_state(tmp_path, 0, 1) == ({}, {})
    for rank in (0, 1):
        save_method_state(tmp_path, {"updates": 3}, {"period": rank}, rank, 2)
    found = [load_method_state(tmp_path, rank, 2) for rank in (0, 1)]
    assert found == [({"updates": 3}, {"period": rank}) for rank in (0, 1)]
    with pytest.raises(AttendropError, match="was written by fewer processes than train now; start as many as then"):
        load_method_state(tmp_path, 2, 3)
    with pytest.raises(AttendropError, match="was written by more processes than train now; start as many as then"):
        load_method_state(tmp_path, 0, 1)
    save_method_state(tmp_path, {}, {}, 0, 1)  # of another run in the same folder, by one process
    assert load_method_state(tmp_path, 0, 1) == ({}, {})


DAMAGE = {
    "unfinished": lambda path: mark_unfinished(path),
    "no manifest": lambda path: (path / "attendrop_manifest.json").unlink(),
    "truncated": lambda path: (path / "model.safetensors").write_bytes(b"weigh"),
    "missing": lambda path: (path / "model.safetensors").unlink(),
    "missing below": lambda path: (path / "sub/file").unlink(),
    "manifest is not JSON": lambda path: (path / "attendrop_manifest.json").write_text("{"),
    "manifest lists no sizes": lambda path: (path / "attendrop_manifest.json").write_text('{"files": ["x"]}'),
}
TOLD = {
    "unfinished": "the process probably died while writing it",
    "no manifest": "another trainer wrote it, or it was being deleted",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_in_words(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = checkpoint(tmp_path, 9), checkpoint(tmp_path, 10)
    DAMAGE[damage](bad)
    assert not is_complete(bad)
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logging.getLogger("attendrop.training.checkpoints"), "propagate", True)
    with caplog.at_level(logging.WARNING), caplog.at_level(logging.WARNING, "attendrop.training.checkpoints"):
        assert last_checkpoint(tmp_path) == good
    assert f"{TOLD.get(damage, 'it is not complete (a file is missing or was changed)')}." in caplog.text
    with pytest.raises(AttendropError, match=r"checkpoint-10' is (not complete|no checkpoint)"):
        load_state(bad, METHOD)


@pytest.mark.parametrize("name", ["nothing", "of the stock trainer"])
def test_what_another_trainer_wrote_or_nobody_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / "of the stock trainer").mkdir()
    with pytest.raises(AttendropError, match=f"{name}' is no checkpoint of RegularizedTrainer"):
        load_state(tmp_path / name, METHOD)


def test_the_newest_has_the_greatest_number_not_the_last_name(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        made = checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-1000").write_text("a file")
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == made


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FineTune(), r"from method 'ad-drop', not from 'finetune'"),
        (ADDrop(p=0.5, layers=[0, 1]), r"made with p=0\.4, not p=0\.5"),
        (ADDrop(p=0.4), r"made with layers=\[0, 1\], not layers='first'"),
    ],
)
def test_a_checkpoint_of_another_method_is_refused(other: Method, message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        load_state(checkpoint(tmp_path), other)


@pytest.mark.parametrize("value", [np.float64(1), {"rows": [np.arange(3)]}, {3: object()}])
def test_a_state_that_could_not_be_read_again_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(
        AttendropError, match=r"state\['mean'\].* of the method is of type .* keep tensors and plain values"
    ):
        save_method_state(tmp_path, {"mean": value}, {}, 0, 1)
    state: dict[str, Any] = {"a": [1, (2.0, None)], "b": {3: torch.ones(2)}, "c": "text"}
    save_method_state(tmp_path, state, {}, 0, 1)
    found, _ = load_method_state(tmp_path, 0, 1)
    assert torch.equal(found["b"].pop(3), state["b"].pop(3)) and found == state
