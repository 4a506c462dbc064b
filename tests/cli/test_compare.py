"""`attendrop compare`: its options and its output."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused

from attendrop import AttendropError
from attendrop.cli import main
from attendrop.tasks.metrics import PREDICTIONS


def command(folder: Path, *options: str) -> list[str]:
    return [
        *("compare", "--train-file", str(folder / "train.csv"), "--text-columns", "sentence1,sentence2"),
        *("--label-column", "label", "--model", str(folder / "model"), "--device", "cpu", "--max-steps", "2"),
        *("--workers", "0", "--output-dir", str(folder / "answer"), *options),
    ]


def test_a_recommended_baseline_is_kept_and_predicts_what_was_scored(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    rows = [f"{'good' if n % 2 else 'bad'} {tiny.sentence(n)},{tiny.sentence(n + 3)},{n % 2}" for n in range(320)]
    for name, own in (("train", rows[:80]), ("dev", rows[80:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,label", *own]) + "\n", encoding="utf-8")
    answer, dev = tmp_path / "an answer", str(tmp_path / "dev.csv")
    asked = [*command(folder, "--methods", "finetune", "--seeds", "4", "--max-steps", "1", "--head-init", "random")]
    asked += ["--train-file", str(tmp_path / "train.csv"), "--eval-file", dev, "--output-dir", str(answer)]
    assert main([*asked, "--baselines", "none"]) == 0  # another model is there first
    shown = capsys.readouterr().out
    assert shown.startswith("Use plain fine-tuning.") and f"attendrop predict '{answer / 'best'}' ..." in shown
    assert main([*asked, "--baselines", "tfidf"]) == 0
    shown = capsys.readouterr().out
    assert "The model is in" in shown
    assert {line.split("  ")[0] for line in shown.splitlines()} >= {"finetune", "tfidf"}
    found = json.loads((answer / "answer.json").read_text(encoding="utf-8"))
    assert found["use"] == found["kept"] == "tfidf"
    assert main(["predict", found["best"], "--predict-file", dev, "--output", str(tmp_path / "found.csv")]) == 0
    with (tmp_path / "found.csv").open(encoding="utf-8") as lines:
        predicted = [int(row["label"]) for row in csv.DictReader(lines)]
    (run,) = (answer / "runs").glob("*-tfidf-seed0-*")
    assert predicted == pyarrow.parquet.read_table(run / PREDICTIONS)["prediction"].to_pylist()
    before = (answer / "best" / "metrics.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main([*asked, "--baselines", "tfidf", "--json"]) == 0  # the runs are there
    assert json.loads(capsys.readouterr().out) == found
    assert (answer / "best" / "metrics.json").stat().st_mtime_ns == before
    assert "In the comparison" in (answer / "best" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "p=0.3"], "--set 'p=0.3' is not of the form METHOD.NAME=VALUE"),
        (["--set", "r-drop.alpha=2", "--methods", "mixout"], "method 'r-drop' is not compared; add it to --methods"),
        (["--methods", "mixout", "--set", "mixout.p=0.9", "--set", "mixout.p=0.90"], "mixout p=0.90 is to be compared"),
        (["--output-dir", "model"], "holds other files"),
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


def test_bad_data_are_refused_once_before_any_run(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text((folder / "train.csv").read_text(encoding="utf-8") + "a,b,\n", encoding="utf-8")
    output = tmp_path / "answer"
    asked = command(folder, "--train-file", str(bad), "--output-dir", str(output))
    assert_refused(asked, output, "line 42, column 'label': the label is empty", capsys)
    asked = ["compare", str(bad), "--test-fraction", "0", "--output-dir", str(output)]
    assert_refused(asked, output, "test-fraction 0 sets no rows aside", capsys)
