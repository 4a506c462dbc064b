"""Which checkpoints are complete, and to which method they belong."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendrop import ADDrop, AttendropError, FineTune
from attendrop.training.checkpoints import (
    MANIFEST,
    delete_old,
    is_complete,
    last_checkpoint,
    load_method_state,
    load_state,
    save_method_state,
    write_manifest,
)

METHOD = ADDrop(p=0.4, layers=[0, 1])
STATE = {"seed": 1, "steps_taken": 7}


def checkpoint(folder: Path, step: int = 1) -> Path:
    made = folder / f"checkpoint-{step}"
    (made / "sub").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "sub/file").write_bytes(b"x")
    (made / "empty").write_bytes(b"")
    write_manifest(made, METHOD, STATE)
    return made


def test_each_process_has_its_own_state_and_that_of_all(tmp_path: Path) -> None:
    assert load_method_state(tmp_path, 0, 1) == ({}, {})
    for rank in (0, 1):
        save_method_state(tmp_path, {"updates": 3}, {"period": rank}, rank, 2)
    found = [load_method_state(tmp_path, rank, 2) for rank in (0, 1)]
    assert found == [({"updates": 3}, {"period": rank}) for rank in (0, 1)]
    for rank, of, number in ((2, 3, "fewer"), (0, 1, "more")):
        with pytest.raises(AttendropError, match=f"was written by {number} processes than train now; start as many"):
            load_method_state(tmp_path, rank, of)
    save_method_state(tmp_path, {}, {}, 0, 1)  # of another run in the same folder, by one process
    assert load_method_state(tmp_path, 0, 1) == ({}, {})


DAMAGE: dict[str, Any] = {
    "no manifest": lambda path: (path / "attendrop_manifest.json").unlink(),
    "truncated": lambda path: (path / "model.safetensors").write_bytes(b"weigh"),
    "missing below": lambda path: (path / "sub/file").unlink(),
    "manifest is not JSON": lambda path: (path / "attendrop_manifest.json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_that_is_whole_has_the_greatest_number(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_checkpoint(tmp_path / "nowhere") is None
    _, good, bad = (checkpoint(tmp_path, step) for step in (9, 10, 100))
    (tmp_path / "checkpoint-1000").write_text("a file")
    (tmp_path / "checkpoint-best").mkdir()
    assert is_complete(bad) and last_checkpoint(tmp_path) == bad and load_state(bad, METHOD) == STATE
    DAMAGE[damage](bad)
    assert not is_complete(bad)
    for name in ("transformers", "attendrop.training.checkpoints"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    with caplog.at_level(logging.WARNING), caplog.at_level(logging.WARNING, "attendrop.training.checkpoints"):
        assert last_checkpoint(tmp_path) == good
    why = "is not complete" if (bad / MANIFEST).exists() else "has no attendrop_manifest.json: the process died"
    assert f"checkpoint-100: it {why}" in caplog.text
    with pytest.raises(AttendropError, match=r"checkpoint-100' is no complete checkpoint of RegularizedTrainer"):
        load_state(bad, METHOD)


def test_the_oldest_are_deleted_but_not_the_best_nor_what_is_none(tmp_path: Path) -> None:
    """Those of an earlier run in the folder may have greater numbers."""
    made = {step: checkpoint(tmp_path, step) for step in (90, 1, 2, 3)}
    (tmp_path / "checkpoint-best").mkdir()
    for time, folder in enumerate(made.values()):
        os.utime(folder, (time, time))
    delete_old(made[3], None, None)
    assert all(folder.exists() for folder in made.values())
    delete_old(made[3], 2, str(made[1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-3", "checkpoint-best"]


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    with pytest.raises(AttendropError, match=r"from method 'ad-drop', not from 'finetune'"):
        load_state(folder, FineTune())
    with pytest.raises(AttendropError, match=r"made with p=0\.4, not p=0\.5"):
        load_state(folder, ADDrop(p=0.5, layers=[0, 1]))


def test_a_state_that_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    for value in (np.float64(1), {"rows": [np.arange(3)]}, {3: object()}):
        with pytest.raises(AttendropError, match=r"could not be read again"):
            save_method_state(tmp_path, {"mean": value}, {}, 0, 1)
    state: dict[str, Any] = {"a": [1, (2.0, None)], "b": {3: torch.ones(2)}, "c": "text"}
    save_method_state(tmp_path, state, {}, 0, 1)
    found, _ = load_method_state(tmp_path, 0, 1)
    assert torch.equal(found["b"].pop(3), state["b"].pop(3)) and found == state
