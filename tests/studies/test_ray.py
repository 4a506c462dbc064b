"""Units on a Ray cluster, as far as it can be tested without Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from helpers import tiny

from attendrop import AttendropError
from attendrop.studies.ray_backend import RayCluster, run_on_node, write_missing
from attendrop.studies.units import Unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    folder = tmp_path_factory.mktemp("ray")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


def test_scores_of_a_machine_with_another_disk_are_written_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "there"))
    unit = Unit(tiny.config(folder, method="finetune", epochs=1))
    here = tmp_path / "here" / "runs" / "run"
    message = run_on_node(unit.as_dict() | {"folder": str(here), "checkpoint_seconds": 60})
    assert message["kind"] == "finished"
    assert not here.exists()
    write_missing(here, message["files"])
    assert tiny.read_metrics(here)["steps"] == 5
    assert sorted(path.name for path in here.iterdir()) == ["metrics.json", "run.json", "run.yaml"]


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AttendropError, match=r"pip install 'attendrop\[ray\]'"):
        RayCluster("local")
