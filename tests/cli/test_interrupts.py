"""Ctrl-C: one sentence, exit code 130, and a run that can be resumed as it says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured, train_arguments

from attendrop import cli
from attendrop.runs.run_trainer import RunTrainer


def test_a_run_is_resumed_as_the_sentence_says(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    command, steps = train_arguments(folder, "interrupted", "--quiet"), []
    step = RunTrainer.training_step

    def interrupted(*given: Any, **named: Any) -> Any:
        steps.append(0)
        if len(steps) == 8:  # of the second of two epochs
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "training_step", interrupted)
        assert cli.main(command) == 130
    said = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("Warning: ")]
    assert said == ["Interrupted. To go on, resume training with --resume."]
    assert cli.main([*command, "--resume"]) == 0
    assert tiny.read_metrics(folder / "interrupted")["steps"] == 10


@pytest.mark.parametrize("place", ["app.command", "app.show"])
def test_while_it_starts_too(place: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a command is known, where typer does not see it, and in a command, where it does."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"attendrop.cli.{place}", interrupted)
    assert cli.main(["methods"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err.strip()) == ("", "Interrupted. To go on, run the command again.")
