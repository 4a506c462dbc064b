"""Whole runs that answer questions: training, scores by question, predictions, comparison, pruning, export."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NOUNS = ("cat", "dog", "bird")
OTHERS = [word for word in tiny.WORDS if word not in NOUNS]


def row(number: int) -> dict[str, Any]:
    """The noun of the text is the answer; every fourth text has none, and some are longer than a window."""
    draw = random.Random(number)
    words = [draw.choice(OTHERS) for _ in range(4 + number % 3 * 12)]
    answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
    if number % 4:
        place = draw.randrange(len(words))
        words[place] = draw.choice(NOUNS)
        answers = {"text": [words[place]], "answer_start": [len(" ".join(words[:place])) + bool(place)]}
    return {"q": "the good", "text": " ".join(words), "answers": answers}


def write(path: Path, first: int, count: int) -> Path:
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(first, first + count)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    tiny.save_tiny_bert(folder / "model")
    write(folder / "train.jsonl", 0, 60)
    write(folder / "dev.jsonl", 100, 20)
    assert cli.main(train(folder, "run", "--epochs", "6", "--learning-rate", "1e-2", "--method", "finetune")) == 0
    return folder


def train(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train.jsonl", "--eval-file", f"{folder}/dev.jsonl"),
        *("--text-columns", "q,text", "--label-column", "answers", "--model", f"{folder}/model"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--max-length", "24", "--device", "cpu", "--quiet"),
        *more,
    ]


def test_a_run_learns_to_answer_and_is_scored_by_question(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["f1", "exact_match"] and metrics["score"] == scores["f1"] > 0.9
    assert scores["exact_match"] * 20 == pytest.approx(round(scores["exact_match"] * 20))
    assert metrics["data"]["rows"] == {"train": 60, "dev": 20}
    assert metrics["data"]["report"]["parts"]["train"]["answers"] == {"with": 45, "without": 15}


def test_evaluation_repeats_the_score_and_texts_are_predicted(folder: Path, capsys: Captured) -> None:
    assert cli.main(["evaluate", f"{folder}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_scores"] == pytest.approx(tiny.read_metrics(folder / "run")["all_scores"]["dev"])
    assert found["rows"] == 20
    asked = ["predict", f"{folder}/run", "--predict-file", f"{folder}/dev.jsonl", "--device", "cpu", "--quiet"]
    assert cli.main([*asked, "--output", f"{folder}/out.csv"]) == 0
    rows = list(csv.DictReader((folder / "out.csv").open()))
    assert [each["index"] for each in rows] == list(map(str, range(20)))
    right = [each["answer"] == "".join(row(number)["answers"]["text"]) for number, each in enumerate(rows, start=100)]
    assert sum(right) / 20 == pytest.approx(found["all_scores"]["exact_match"])


def test_methods_are_not_rewarded_by_answers(folder: Path, capsys: Captured) -> None:
    settings = ("--method", "attendout", "--set", "score=metric", "--set", "dropout_step=2", "--patience", "2")
    assert cli.main([*train(folder, "metric", "--max-steps", "16"), *settings, "--no-refit"]) == 2
    assert "use score='loss'" in capsys.readouterr().err
