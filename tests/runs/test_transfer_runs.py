"""Runs that are scored on another task, and runs on a sample of the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.inference import evaluate
from attendrop.runs.model_source import Source
from attendrop.runs.train import train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three classes, trained on five rows of each, and HANS."""
    folder = tmp_path_factory.mktemp("transfer")
    tiny.save_tiny_bert(folder / "model")
    names = ["entailment", "neutral", "contradiction"]
    tiny.write_csv(folder / "train.csv", names * 8)
    tiny.write_csv(folder / "dev.csv", names * 2, 40)
    train(tiny.config(folder, method="finetune", shots=5, epochs=1))
    lines = ["gold_label\tsentence1\tsentence2\theuristic"]
    for number in range(12):
        label, heuristic = ("entailment", "non-entailment")[number % 2], ("subsequence", "constituent")[number % 3 > 0]
        lines.append(f"{label}\t{tiny.sentence(number)}\t{tiny.sentence(number + 3)}\t{heuristic}")
    (folder / "hans").mkdir()
    (folder / "hans" / "heuristics_evaluation_set.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_model_of_three_classes_is_scored_on_two_and_by_group(folder: Path, capsys: Captured) -> None:
    found = evaluate(str(folder / "run"), Source(task="hans", data_dir=str(folder), device="cpu"))
    groups = found["groups"]["heuristic"]
    assert {name: group["rows"] for name, group in groups.items()} == {"subsequence": 4, "constituent": 8}
    assert found["score"] == pytest.approx(sum(group["rows"] * group["accuracy"] for group in groups.values()) / 12)
    assert found["predicted"].keys() <= {"entailment", "non-entailment"}
    assert (
        cli.main(["evaluate", str(folder / "run"), "--task", "hans", "--data-dir", str(folder), "--device", "cpu"]) == 0
    )
    assert "constituent" in capsys.readouterr().out


def test_a_model_of_other_classes_is_refused(folder: Path) -> None:
    with pytest.raises(AttendropError, match="pawsx scores models with the classes not_paraphrase, paraphrase; or"):
        evaluate(str(folder / "run"), Source(task="pawsx", data_dir=str(folder), device="cpu"))


def test_a_run_on_few_rows_says_which(folder: Path) -> None:
    sampled = json.loads((folder / "run" / "sampled_rows.json").read_text())
    assert {name: len(rows) for name, rows in sampled.items()} == {"train": 12, "selection": 3}
    rows = sampled["train"] + sampled["selection"]
    assert len(set(rows)) == 15
    assert [sum(row % 3 == label for row in rows) for label in range(3)] == [5, 5, 5]
