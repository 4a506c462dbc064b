"""A tiny model and data, for all tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers in ``model``, and ``train.csv`` and ``dev.csv``."""
    folder = tmp_path_factory.mktemp("folder")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder
