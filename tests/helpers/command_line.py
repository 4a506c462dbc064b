"""Calls of the command line within a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendrop import cli

Captured = pytest.CaptureFixture[str]


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
