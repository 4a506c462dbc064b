"""A run of each kind of task learns it, and its model predicts other rows as well as its scores say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NOUNS = ("cat", "dog", "bird")
OTHERS = [word for word in tiny.WORDS if word not in NOUNS]
NEW = range(100, 120)


def chosen(number: int) -> dict[str, Any]:
    """Of two to four choices, the one with an animal is correct."""
    draw = random.Random(number)
    choices = [f"{draw.choice(OTHERS)} {draw.choice(OTHERS)}" for _ in range(2 + number % 3)]
    correct = draw.randrange(len(choices))
    choices[correct] = f"{draw.choice(OTHERS)} {draw.choice(NOUNS)}"
    return {"q": tiny.sentence(number), "text": choices, "label": "ABCD"[correct]}


def labelled(number: int) -> dict[str, Any]:
    text = tiny.sentence(number)
    return {"text": text, "label": [label for label in ("cat", "dog", "red") if label in text.split()]}


def tagged(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    words = [draw.choice(tiny.WORDS) for _ in range(2 + number % 7)]
    return {"text": words, "label": ["B-ANIMAL" if word in NOUNS else "O" for word in words]}


def write_rows(row: Callable[[int], dict[str, Any]], path: Path, first: int, count: int) -> None:
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(first, first + count)))


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
        write: Writes the rows of some numbers.
        rows: Number of rows to train on.
        options: How they are read, and how long the training is.
        metrics: What is reported.
        exact: That which is the fraction of right answers.
        column: Of the predictions.
        answer: The right one of a row, or several.
    """

    write: Callable[[Path, int, int], object]
    rows: int
    options: str
    metrics: list[str]
    exact: str
    column: str
    answer: Callable[[int], Any]


PAIR = "--text-columns q,text --label-column label"
ONE = "--text-columns text --label-column label"
ENTITIES = ["entity_f1", "entity_precision", "entity_recall", "accuracy", "f1_macro"]
KINDS = {
    "multiple-choice": Kind(
        partial(write_rows, chosen), 60, f"{PAIR} --label-type choice --epochs 5", ["accuracy"], "accuracy", "label",
        lambda number: chosen(number)["label"],
    ),
    "multi-label-classification": Kind(
        partial(write_rows, labelled), 80, f"{ONE} --epochs 15", ["f1_micro", "f1_macro", "accuracy"], "accuracy",
        "labels", lambda number: labelled(number)["label"],
    ),
    "token-classification": Kind(
        partial(write_rows, tagged), 80, f"{ONE} --epochs 5", ENTITIES, "accuracy", "tags",
        lambda number: tagged(number)["label"],
    ),
}  # fmt: skip


SLOW = ("multi-label-classification",)


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Kind]:
    """The folder of a model, of the files of a kind, and of a finished run."""
    folder, kind = tmp_path_factory.mktemp(request.param), KINDS[request.param]
    tiny.save_tiny_bert(folder / "model")
    train, dev = "train.jsonl", "dev.jsonl"
    kind.write(folder / train, 0, kind.rows)
    kind.write(folder / dev, NEW.start, len(NEW))
    files = f"--train-file {folder / train} --eval-file {folder / dev} --model {folder}/model"
    how = "--batch-size 8 --max-length 24 --learning-rate 1e-2 --method finetune --device cpu --quiet"
    assert cli.main([*f"train {files} {how} {kind.options} --output-dir {folder}/run".split()]) == 0
    (folder / dev).rename(folder / "new" if train == "train" else folder / "new.jsonl")
    return folder, kind


def test_a_run_learns_and_its_predictions_are_as_good_as_its_scores(
    trained: tuple[Path, Kind], capsys: Captured
) -> None:
    folder, kind = trained
    metrics = tiny.read_metrics(folder / "run")
    scores = metrics["all_scores"]["dev"]
    assert [*scores][: len(kind.metrics)] == kind.metrics
    assert metrics["score"] == scores[kind.metrics[0]] >= 0.9
    if metrics["baseline"]:
        assert metrics["baseline"]["dev"]["scores"][kind.metrics[0]] < 0.7
    assert metrics["data"]["rows"] == {"train": kind.rows, "dev": len(NEW)}
    new = str(next(folder.glob("new*")))
    capsys.readouterr()
    assert cli.main(["evaluate", f"{folder}/run", "--eval-file", new, "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == pytest.approx(scores)
    asked = ["predict", f"{folder}/run", "--predict-file", new, "--device", "cpu", "--quiet"]
    assert cli.main([*asked, "--output", f"{folder}/out.jsonl"]) == 0
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    numbers = [int(Path(row["file"]).stem) for row in rows] if "file" in rows[0] else NEW
    right: list[bool] = []
    for number, row in zip(numbers, rows, strict=True):
        answer, found = kind.answer(number), row[kind.column]
        if kind.column == "tags":
            right += [one == other for one, other in zip(answer, found, strict=True)]
        else:
            right.append(answer == found)
    assert sum(right) / len(right) == pytest.approx(scores[kind.exact])


def test_words_of_a_column_file_get_tags_beside_its_columns(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The run is that of an untrained model: its tags are whatever."""
    tiny.save_tiny_bert(tmp_path / "model")
    text = "the O\ncat B-ANIMAL\n\nbad O\n"
    (tmp_path / "in.conll").write_text(text)
    how = f"--train-file {tmp_path}/in.conll --model {tmp_path}/model --device cpu --quiet --max-steps 1"
    assert cli.main([*f"train {how} --method finetune --selection-fraction 0 --output-dir {tmp_path}/run".split()]) == 0
    asked = f"predict {tmp_path}/run --predict-file {tmp_path}/in.conll --device cpu --quiet --keep-columns"
    assert cli.main([*asked.split(), "--output", f"{tmp_path}/out.conll"]) == 0
    lines = [line.split("\t") for line in (tmp_path / "out.conll").read_text().splitlines()]
    assert [line[:-1] for line in lines] == [["the", "O"], ["cat", "B-ANIMAL"], [], ["bad", "O"], []]
    assert all(line[-1] in ("O", "B-ANIMAL") for line in lines if len(line) > 1)
    (tmp_path / "in.conll").write_text(f"{text}\nbad far O\n\ncat O\n\nbad\n")  # of too many columns, and too few
    for name in ("out.conll", "out.jsonl"):
        assert cli.main([*asked.split(), "--output", f"{tmp_path}/{name}", "--skip-bad-rows", "--overwrite"]) == 0
    skipped = ["_", "_", "_"]
    lines = [line.split("\t") for line in (tmp_path / "out.conll").read_text().splitlines()]
    assert [[line[:-1], line][line == skipped] for line in lines] == [
        *(["the", "O"], ["cat", "B-ANIMAL"], [], ["bad", "O"], [], skipped, [], ["cat", "O"], [], skipped, []),
    ]
    rows = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
    assert [row["tokens"] for row in rows] == [["the", "cat"], ["bad"], None, ["cat"], None]
    assert [bool(row["skipped"]) for row in rows] == [row["predicted_tags"] is None for row in rows]
