"""Ctrl-C by real signals, at any moment: one sentence, exit code 130, and a run that can be resumed as it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.command_line import train_arguments

from attendrop import cli

pytestmark = pytest.mark.slow

# As the console script does, but for a line that says that it begins.
PROGRAM = """
import re, sys
print(flush=True)
from attendrop.cli import main
sys.exit(main())
"""
SENTENCES = (
    "Error: interrupted.",
    "Interrupted. Run the same command with --resume to continue from the last checkpoint in ",
)
MOMENTS = 15


@pytest.fixture(scope="module")
def seconds(folder: Path) -> float:
    """How long a program takes to start and to train for a few steps."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments(folder, "timed", "--max-steps", "8")], check=True)
    return time.monotonic() - start


def arguments(folder: Path, output: str, *more: str) -> list[str]:
    return train_arguments(folder, output, "--epochs", "30", "--quiet", *more)


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_an_interrupt_at_any_moment_is_one_sentence(folder: Path, seconds: float, moment: int, signals: int) -> None:
    run = f"run-{moment}-{signals}"
    command = [sys.executable, "-c", PROGRAM, *arguments(folder, run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        try:
            process.wait(0.02 + 1.1 * seconds * moment / MOMENTS)
            pytest.skip("the run ended before it was interrupted: the one that was timed was slower")
        except subprocess.TimeoutExpired:
            pass
        for _ in range(signals):
            os.kill(process.pid, signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    said = [line for line in err.splitlines() if line and not line.startswith("Warning: ")]
    assert (process.returncode, out, len(said)) == (130, "", 1), err
    assert said[0].startswith(SENTENCES)
    if "--resume" in said[0]:
        assert cli.main(arguments(folder, run, "--resume")) == 0
