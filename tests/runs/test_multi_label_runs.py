"""Whole runs on several labels per text: training, scores, predictions, comparison and pruning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LABELS = ("cat", "dog", "red")


def row(number: int) -> dict[str, Any]:
    text = tiny.sentence(number)
    return {"text": text, "labels": [label for label in LABELS if label in text.split()]}


def write(path: Path, first: int, count: int) -> Path:
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(first, first + count)))
    return path


def train(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train.jsonl", "--eval-file", f"{folder}/dev.jsonl"),
        *("--text-columns", "text", "--label-column", "labels", "--model", f"{folder}/model"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--max-length", "16", "--device", "cpu", "--quiet"),
        *more,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    tiny.save_tiny_bert(folder / "model")
    write(folder / "train.jsonl", 0, 80)
    write(folder / "dev.jsonl", 80, 20)
    assert cli.main(train(folder, "run", "--epochs", "15", "--learning-rate", "1e-2", "--method", "finetune")) == 0
    return folder


def test_a_run_learns_its_labels(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert list(metrics["all_scores"]["dev"]) == ["f1_micro", "f1_macro", "accuracy"]
    assert metrics["score"] == metrics["all_scores"]["dev"]["f1_micro"] > 0.9
    assert metrics["score"] > metrics["baseline"]["dev"]["scores"]["f1_micro"]
    assert metrics["training"]["head_start"] == "frozen"


def test_predictions_are_lists_and_evaluation_repeats_the_score(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["evaluate", f"{folder}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["all_scores"]
    assert found == pytest.approx(tiny.read_metrics(folder / "run")["all_scores"]["dev"])
    asked = ["predict", f"{folder}/run", "--predict-file", f"{folder}/dev.jsonl", "--device", "cpu", "--quiet"]
    assert cli.main([*asked, "--output", f"{tmp_path}/out.jsonl", "--probabilities"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    right = sum(found["labels"] == row(number)["labels"] for number, found in enumerate(rows, 80))
    assert right / 20 == pytest.approx(tiny.read_metrics(folder / "run")["all_scores"]["dev"]["accuracy"])
    assert set(rows[0]) >= {f"probability_{label}" for label in LABELS}
    assert cli.main([*asked, "--output", f"{tmp_path}/out.csv"]) == 0
    assert '"[""' in (tmp_path / "out.csv").read_text()
