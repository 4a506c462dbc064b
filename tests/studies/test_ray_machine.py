"""Runs on a machine of a Ray cluster, and what is sent from there; none of it needs Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import tiny

from attendrop.studies.ray_machine import run_on_machine, write_missing
from attendrop.studies.units import Unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    folder = tmp_path_factory.mktemp("ray")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


@pytest.mark.parametrize("keep_model", [False, True])
def test_a_run_on_a_machine_with_another_disk_is_sent_and_removed_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_model: bool
) -> None:
    there, here = tmp_path / "there", tmp_path / "here" / "runs" / "run"
    there.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    unit = Unit(tiny.config(folder, method="finetune", epochs=1), keep_model=keep_model)
    message = run_on_machine(unit.as_dict() | {"folder": str(here), "checkpoint_seconds": 60})
    assert message["kind"] == "finished"
    assert not here.exists()
    assert list(there.iterdir()) == []
    write_missing(here, message["files"])
    assert tiny.read_metrics(here)["steps"] == 5
    assert {"metrics.json", "run.json", "run.yaml"} <= {path.name for path in here.iterdir()}
    assert (here / "model.safetensors").exists() == keep_model


def test_a_run_on_the_disk_of_the_study_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    unit = Unit(tiny.config(folder, method="finetune", epochs=1))
    run = tmp_path / "runs" / "run"
    run.parent.mkdir()
    message = run_on_machine(unit.as_dict() | {"folder": str(run), "checkpoint_seconds": 60})
    assert message["kind"] == "finished"
    changed = (run / "metrics.json").stat().st_mtime_ns
    write_missing(run, message["files"])
    assert (run / "metrics.json").stat().st_mtime_ns == changed


def test_a_run_that_fails_is_a_message_with_its_error(folder: Path, tmp_path: Path) -> None:
    unit = Unit(tiny.config(folder, method="finetune", learning_rate=1e25))
    message = run_on_machine(unit.as_dict() | {"folder": str(tmp_path / "run"), "checkpoint_seconds": 60})
    assert message["kind"] == "failed"
    assert "Training diverged" in message["text"]
    assert "files" not in message
