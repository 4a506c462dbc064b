"""Whole runs on multiple choice: training, scores, predictions, comparison, pruning, and what is refused."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from helpers import tiny
from helpers.command_line import Captured, assert_refused

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NOUNS = ("cat", "dog", "bird")
OTHERS = [word for word in tiny.WORDS if word not in NOUNS]


def question(number: int) -> tuple[list[str], str]:
    """Of two to four choices, the one with an animal is correct."""
    draw = random.Random(number)
    choices = [f"{draw.choice(OTHERS)} {draw.choice(OTHERS)}" for _ in range(2 + number % 3)]
    correct = draw.randrange(len(choices))
    choices[correct] = f"{draw.choice(OTHERS)} {draw.choice(NOUNS)}"
    return choices, "ABCD"[correct]


def write_csv(path: Path, first: int, count: int, *, labelled: bool = True) -> Path:
    lines = ["q,a,b,c,d" + (",key" if labelled else "")]
    for number in range(first, first + count):
        choices, key = question(number)
        cells = [tiny.sentence(number), *choices, *[""] * (4 - len(choices)), *([key] if labelled else [])]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices")
    tiny.save_tiny_bert(folder / "model")
    write_csv(folder / "train.csv", 0, 60)
    write_csv(folder / "dev.csv", 100, 20)
    assert cli.main(train(folder, "run", "--epochs", "5", "--learning-rate", "1e-2", "--method", "finetune")) == 0
    return folder


def train(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train.csv", "--eval-file", f"{folder}/dev.csv"),
        *("--text-columns", "q,a,b,c,d", "--label-column", "key", "--model", f"{folder}/model"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--max-length", "24", "--device", "cpu", "--quiet"),
        *more,
    ]


def test_a_run_learns_to_choose(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["score"] == metrics["all_scores"]["dev"]["accuracy"] > 0.9
    assert metrics["baseline"]["dev"]["answer"] in "ABCD" and metrics["baseline"]["dev"]["scores"]["accuracy"] < 0.6
    assert metrics["training"]["head_start"] == "random" and metrics["training"]["pooling"] is None
    part = metrics["data"]["report"]["parts"]["train"]
    assert part["choices"] == {"min": 2, "mean": 3, "max": 4}
    assert sum(part["correct"].values()) == 60 and list(part["correct"]) == ["A", "B", "C", "D"]


def test_evaluation_repeats_the_score_and_choices_are_predicted(folder: Path, capsys: Captured) -> None:
    assert cli.main(["evaluate", f"{folder}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["score"] == tiny.read_metrics(folder / "run")["score"]
    new = write_csv(folder / "new.csv", 100, 20, labelled=False)
    asked = ["predict", f"{folder}/run", "--predict-file", str(new), "--device", "cpu", "--quiet", "--probabilities"]
    assert cli.main([*asked, "--keep-columns", "--output", f"{folder}/out.csv"]) == 0
    rows = list(csv.DictReader((folder / "out.csv").open()))
    right = [row["predicted_label"] == question(number)[1] for number, row in enumerate(rows, start=100)]
    assert sum(right) / 20 == found["score"]
    assert [len(json.loads(row["probabilities"])) for row in rows] == [len(question(n)[0]) for n in range(100, 120)]
    lists = [{"q": tiny.sentence(n), "all": question(n)[0], "key": question(n)[1]} for n in range(100, 120)]
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists))
    again = ["evaluate", f"{folder}/run", "--eval-file", f"{folder}/lists.jsonl", "--text-columns", "q,all"]
    assert cli.main([*again, "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == found["score"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pooling", "mean"), "pooling 'mean' is for tasks with one prediction for a whole text"),
        (("--class-weights", "balanced"), "class-weights='balanced' needs classes; the labels are the correct choice."),
        (("--text-columns", "q", "--label-type", "choice"), "1 text column is given; give 2 to 27."),
        (("--text-columns", "q,a"), "only one choice; give 2 to 26"),
    ],
)
def test_options_of_other_kinds_are_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], message: str, capsys: Captured
) -> None:
    asked = [*train(folder, "other", *options), "--output-dir", str(tmp_path / "out")]
    if options[-1] == "q,a":
        asked += ["--label-type", "choice"]
    assert_refused(asked, tmp_path / "out", message, capsys)


@pytest.mark.slow
def test_methods_are_rewarded_by_the_score_of_choices(folder: Path) -> None:
    settings = ("--set", "score=metric", "--set", "dropout_step=2", "--patience", "2", "--no-refit")
    assert cli.main([*train(folder, "metric", "--max-steps", "4"), "--method", "attendout", *settings]) == 0
