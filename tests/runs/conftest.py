"""A model, data and finished runs that all tests of runs share; a test that changes a run copies its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Runs are so short that scikit-learn and others warn, in all tests of this folder."""
    item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and two runs with their checkpoints: of plain fine-tuning in ``plain``, of AD-DROP in ``run``."""
    from helpers import tiny  # here: what every conftest imports delays the process that starts the others

    from attendrop.runs.train import train

    folder = tmp_path_factory.mktemp("shared")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    with tiny.kept_checkpoints():
        train(tiny.config(folder, "plain", method="finetune", epochs=1))
        train(tiny.config(folder))
    return folder


@pytest.fixture(scope="session")
def pruned(shared: Path) -> Path:
    """The shared folder, with the run of plain fine-tuning without a layer in ``light``."""
    from attendrop.runs.prune import prune_run

    with pytest.MonkeyPatch.context() as quick:
        quick.setattr("attendrop.runs.prune.SECONDS", 0.01)
        prune_run(str(shared / "plain"), str(shared / "light"), layers="1,", device="cpu")
    return shared


@pytest.fixture(scope="module")
def own(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shared model and data, for runs of a module."""
    return _linked(shared, tmp_path_factory.mktemp("own"))


@pytest.fixture
def files(shared: Path, tmp_path: Path) -> Path:
    """A folder with the shared model and data, for runs of a test."""
    return _linked(shared, tmp_path)


def _linked(shared: Path, folder: Path) -> Path:
    for name in ("model", "train.csv", "dev.csv"):
        (folder / name).symlink_to(shared / name)
    return folder


@pytest.fixture
def stop_at() -> Callable[[int], Any]:
    """Return a function that makes a callback which interrupts the n-th step of its trainings, as Ctrl-C does."""
    from transformers import TrainerCallback

    class StopAt(TrainerCallback):
        def __init__(self, step: int) -> None:
            self.left = step

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    return StopAt


@pytest.fixture
def plain(shared: Path, tmp_path: Path) -> Path:
    """The run of plain fine-tuning, which a test may spoil."""
    return Path(shutil.copytree(shared / "plain", tmp_path / "plain"))
