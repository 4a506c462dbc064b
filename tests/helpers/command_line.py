"""Calls of the command line within a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendrop import cli

Captured = pytest.CaptureFixture[str]


def train_arguments(folder: Path, output: Path | str, *more: str) -> list[str]:
    """A run of two short epochs on the files of ``tiny.write_data``, all below ``folder``."""
    return [
        *("train", "--train-file", f"{folder}/train.csv", "--eval-file", f"{folder}/dev.csv"),
        *("--text-columns", "sentence1,sentence2", "--label-column", "label", "--model", f"{folder}/model"),
        *("--output-dir", str(folder / output), "--epochs", "2", "--batch-size", "8", "--device", "cpu", *more),
    ]


def assert_refused(arguments: list[str], output: Path, message: str, capsys: Captured) -> None:
    """Check for one sentence with the message at the end, exit code 2, no traceback, and that nothing was written."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("Error: ") == 1
    assert err.splitlines()[-1].startswith("Error: ")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not output.exists()
