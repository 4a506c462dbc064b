"""Multiple-choice tasks: SWAG, and the science questions of ARC."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.sources import FolderSource
from attendrop.tasks.table import BadRows
from attendrop.tasks.table_files import read_table
from attendrop.tasks.text_files import text_lines
from attendrop.tasks.values import read_choices


@dataclass(frozen=True)
class ChoiceRow:
    """A question of a task.

    Attributes:
        place: Where it is in its file.
        question: The question.
        choices: The choices.
        label: The correct choice, as its letter or its number from 0; None: not known.
    """

    place: str
    question: str
    choices: list[str]
    label: Any


@dataclass(frozen=True)
class ChoiceSource(FolderSource):
    """Files of a multiple-choice task and its data sets on the hub."""

    def read_hub(self, raw: Dataset) -> Iterator[ChoiceRow]:
        """Read questions, which are there as in files of records."""
        return (_question(f"row {number}", record) for number, record in enumerate(raw, start=1))

    def columns(self, path: Path, rows: Sequence[ChoiceRow]) -> dict[str, list[Any]]:
        """Convert questions to columns; raise AttendropError for a wrong choice or label."""
        head = self.task.head
        labelled = any(row.label is not None for row in rows)
        for row in rows:
            problem = head.texts_problem([row.question, row.choices])
            if problem is None and labelled:
                problem = head.value_problem(row.label) or head.row_problem([row.question, row.choices], row.label)
            if problem is not None:
                raise AttendropError(f"{path}, {row.place}: {problem}.")
        columns: dict[str, list[Any]] = {
            "question": [row.question for row in rows],
            "choices": [row.choices for row in rows],
        }
        return columns | ({"label": head.read_labels([row.label for row in rows])} if labelled else {})


# Files ----------------------------------------------------------------------------------------------------------------


def _swag_rows(path: Path, split: str) -> Iterator[ChoiceRow]:
    table = read_table(path, BadRows())
    wanted = ("sent1", "sent2", *(f"ending{number}" for number in range(4)), *(("label",) if split != "test" else ()))
    for place, *values in zip(table.places, *(table.column(name) for name in wanted), strict=True):
        yield _question(place, dict(zip(wanted, values, strict=True)))


def _arc_rows(path: Path, split: str) -> Iterator[ChoiceRow]:
    """Yield the questions of an official file of JSON lines, or of a copy as a CSV file without a header."""
    if path.suffix == ".csv":
        yield from _arc_copy(path)
        return
    table = read_table(path, BadRows())
    for place, asked, key in zip(table.places, table.column("question"), table.column("answerKey"), strict=True):
        choices = {name: [choice[name] for choice in asked["choices"]] for name in ("text", "label")}
        yield _question(place, {"question": asked["stem"], "choices": choices, "answerKey": key})


def _arc_copy(path: Path) -> Iterator[ChoiceRow]:
    """Yield the questions of a CSV file that has their correct choice: of some, its choices were lost."""
    lost = count = 0
    with text_lines(path, "") as lines:
        for count, (question, *columns, key) in enumerate(csv.reader(lines, strict=True), start=1):
            choices, letter = read_choices(columns), _letter(key, _LETTERS)
            if letter in _LETTERS[: len(choices)]:
                yield ChoiceRow(f"row {count}", question, choices, letter)
            else:
                lost += 1
    if lost:
        warnings.warn(f"{path}: skipped {lost} of {count} questions, whose choices are not in the file.", stacklevel=2)


def _question(place: str, record: Mapping[str, Any]) -> ChoiceRow:
    """Read a record of either task: of SWAG, the beginning of the second sentence belongs to each ending."""
    if "sent1" in record:
        endings = [f"{record['sent2']} {record[f'ending{number}']}" for number in range(4)]
        label = record.get("label")
        return ChoiceRow(place, record["sent1"], endings, None if label == -1 else label)
    choices = record["choices"]
    return ChoiceRow(place, record["question"], choices["text"], _letter(record["answerKey"], choices["label"]))


_LETTERS = ("A", "B", "C", "D", "E")


def _letter(key: str, keys: Sequence[str]) -> str:
    """Return the letter of a choice of ARC; some questions number their choices from 1."""
    keys = keys if key in keys else tuple("12345")
    return _LETTERS[keys.index(key)] if key in keys else key


# Tasks ----------------------------------------------------------------------------------------------------------------

_TEXTS = ("question", "choices")
_SWAG_FILES = {
    "train": (("train.csv",),),
    "dev": (("val.csv",),),
    "test": (("test.csv",),),
}


def _arc_files(name: str) -> dict[str, tuple[str, ...]]:
    """Name the file of each split: the official one, or that of a copy whose development set is called test."""
    official = {"train": "Train", "dev": "Dev", "test": "Test"}
    copies = {"train": (f"arc_{name.lower()}_dev.csv",), "dev": (f"arc_{name.lower()}_test.csv",), "test": ()}
    return {split: (f"**/ARC-{name}-{title}.jsonl", *copies[split]) for split, title in official.items()}


def _arc(name: str, about: str, *sets: str) -> ChoiceSource:
    files = [_arc_files(each) for each in sets]
    return ChoiceSource(
        Task(name, "multiple-choice", _TEXTS, _LETTERS, "accuracy", about),
        ("arc", "arcv1feb20182"),
        {split: tuple(each[split] for each in files) for split in ("train", "dev", "test")},
        _arc_rows,
        tuple(("allenai/ai2_arc", f"ARC-{each}") for each in sets),
    )


CHOICES = (
    ChoiceSource(
        Task("swag", "multiple-choice", _TEXTS, ("0", "1", "2", "3"), "accuracy", "what happens next?"),
        ("swag", "swagaf"), _SWAG_FILES, _swag_rows, (("allenai/swag", "regular"),),
    ),
    _arc("arc", "science questions of schools, easy and challenging", "Easy", "Challenge"),
    _arc("arc-easy", "science questions of schools", "Easy"),
    _arc("arc-challenge", "science questions that need more than looking up", "Challenge"),
)  # fmt: skip
