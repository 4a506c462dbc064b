"""`attendrop compare`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured

from attendrop import AttendropError
from attendrop.cli import main


def command(folder: Path, *options: str) -> list[str]:
    return [
        *("compare", "--train-file", str(folder / "train.csv"), "--text-columns", "sentence1,sentence2"),
        *("--label-column", "label", "--model", str(folder / "model"), "--device", "cpu", "--max-steps", "2"),
        *("--workers", "0", "--output-dir", str(folder / "answer"), *options),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "p=0.3"], "--set 'p=0.3' is not of the form METHOD.NAME=VALUE"),
        (["--set", "r-drop.alpha=2", "--methods", "mixout"], "method 'r-drop' is not compared; add it to --methods"),
        (["--methods", "mixout", "--set", "mixout.p=0.9", "--set", "mixout.p=0.90"], "mixout p=0.90 is to be compared"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    folder: Path, options: list[str], message: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(command(folder, *options)) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_options_reach_the_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def stop(comparison: Any, **how: Any) -> None:
        asked.update(vars(comparison) | how)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.studies.compare.run_comparison", stop)
    options = {"seeds": 7, "trials": 5, "folds": 2, "baselines": "tfidf", "ray": "host:1"}
    given = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    given += ["--methods", "vanilla", "--set", "vanilla.p=0.3", "--set", "vanilla.p=0.4"]
    assert main(command(folder, *given)) == 2
    assert [each.label for each in asked["methods"]] == ["finetune", "vanilla p=0.3", "vanilla p=0.4"]
    expected = {"seeds": 7, "trials": 5, "folds": 2, "baselines": ("tfidf",), "workers": 0}
    assert asked.items() >= (expected | {"backend": "ray:host:1"}).items()
