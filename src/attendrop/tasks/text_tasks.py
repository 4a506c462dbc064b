"""Classification tasks outside GLUE: film reviews of IMDB, and HANS and PAWS-X, which test models of other tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.sources import FolderSource
from attendrop.tasks.table import BadRows
from attendrop.tasks.table_files import read_table
from attendrop.tasks.text_files import decode, text_lines
from attendrop.wording import counted


@dataclass(frozen=True)
class TextRow:
    """A row of a task: where it is in its file, its texts, its label as the file has it, and its groups."""

    place: str
    texts: tuple[str, ...]
    label: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextSource(FolderSource):
    """Files of a classification task and its data set on the hub.

    Attributes:
        labels: Class of each label in the files.
        hub_columns: The text columns on the hub, whose labels are class ids.
    """

    labels: Mapping[str, int] = field(default_factory=dict)
    hub_columns: tuple[str, ...] = ("text",)

    def read_hub(self, raw: Dataset) -> Iterator[TextRow]:
        """Read the rows of a data set of the hub."""
        names = {number: name for name, number in self.labels.items()}
        wanted = (*self.hub_columns, *self.task.group_columns)
        values = zip(*(raw[name][:] for name in wanted), strict=True)
        count = len(self.hub_columns)
        for number, (row, label) in enumerate(zip(values, raw["label"][:], strict=True)):
            yield TextRow(f"row {number}", row[:count], names[label], row[count:])

    def columns(self, path: Path, rows: Sequence[TextRow]) -> dict[str, list[Any]]:
        """Convert rows to columns; an unknown label is refused."""
        for row in rows:
            if row.label not in self.labels:
                known = ", ".join(self.labels)
                raise AttendropError(f"{path}, {row.place}: the label {row.label!r} is not one of {known}.")
        names = ("text", "text_pair")[: len(self.hub_columns)]
        values = zip(*((*row.texts, *row.groups) for row in rows), strict=True)
        columns: dict[str, list[Any]] = dict(zip((*names, *self.task.group_columns), map(list, values), strict=True))
        return columns | {"label": [self.labels[row.label] for row in rows]}


def _imdb_rows(path: Path, split: str) -> Iterator[TextRow]:
    """Yield the reviews of a file of JSON lines, or of the official folders, which have a file for each."""
    if path.is_dir():
        for label in ("neg", "pos"):
            for file in sorted((path / label).glob("*.txt")):
                yield TextRow(file.name, (decode(file),), label)
        return
    table = read_table(path, BadRows())
    for place, text, label in zip(table.places, table.column("text"), table.column("label"), strict=True):
        yield TextRow(place, (text,), str(label))


def _hans_rows(path: Path, split: str) -> Iterator[TextRow]:
    """Yield the rows of an official file: tabs, a header, no quoting."""
    wanted = ("sentence1", "sentence2", "gold_label", "heuristic")
    header: list[str] | None = None
    for place, fields in _tabbed(path):
        if header is None:
            header = fields
            missing = [name for name in wanted if name not in header]
            if missing:
                raise AttendropError(f"{path} has no column {missing[0]!r}; its header is {', '.join(header)}.")
            continue
        _check_fields(path, place, fields, len(header))
        first, second, label, heuristic = (fields[header.index(name)] for name in wanted)
        yield TextRow(place, (first, second), label, (heuristic,))


def _pawsx_rows(path: Path, split: str) -> Iterator[TextRow]:
    """Yield the rows of an official file (a header, and an id before the sentences), or of one without both."""
    for place, fields in _tabbed(path):
        if fields[:1] == ["id"]:
            continue
        _check_fields(path, place, fields, 4 if len(fields) == 4 else 3)
        yield TextRow(place, (fields[-3], fields[-2]), fields[-1])


def _tabbed(path: Path) -> Iterator[tuple[str, list[str]]]:
    with text_lines(path, "\n") as lines:
        for number, line in enumerate(lines, 1):
            yield f"line {number}", line.rstrip("\r\n").split("\t")


def _check_fields(path: Path, place: str, fields: list[str], count: int) -> None:
    if len(fields) != count:
        raise AttendropError(
            f"{path}, {place}: {counted(len(fields), 'field')} instead of {count}; download the file again."
        )


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "non-entailment")
_PARAPHRASE = ("not_paraphrase", "paraphrase")
_TEST = (("test.jsonl", "test"),)
TEXT_TASKS = (
    TextSource(
        Task("imdb", "classification", ("text",), ("negative", "positive"), "accuracy", "sentiment of long reviews"),
        ("imdb", "aclimdb"), {"train": (("train.jsonl", "train"),), "dev": _TEST, "test": _TEST}, _imdb_rows,
        (("stanfordnlp/imdb",),), hub_splits={"dev": "test"}, labels={"neg": 0, "pos": 1},
    ),
    TextSource(
        Task(
            "hans", "classification", _PAIR, _ENTAILMENT, "accuracy", "does entailment hold where heuristics say so?",
            group_columns=("heuristic",),
            readings=(
                {"entailment": "entailment", "neutral": "non-entailment", "contradiction": "non-entailment"},
                {"entailment": "entailment", "not_entailment": "non-entailment"},
            ),
        ),
        ("hans",),
        {"train": (("heuristics_train_set.txt",),), "dev": (("heuristics_evaluation_set.txt",),)}, _hans_rows,
        (("jhu-cogsci/hans",),), labels={"entailment": 0, "non-entailment": 1}, hub_columns=("premise", "hypothesis"),
    ),
    TextSource(
        Task(
            "pawsx", "classification", _PAIR, _PARAPHRASE, "accuracy", "do two scrambled sentences say the same?",
            other_metrics=("f1",),
            readings=(
                dict(zip(("not_equivalent", "equivalent"), _PARAPHRASE, strict=True)),
                dict(zip(("not_duplicate", "duplicate"), _PARAPHRASE, strict=True)),
            ),
        ),
        ("pawsx",),
        {
            "train": (("train-en.tsv", "en/translated_train.tsv", "en/train.tsv"),),
            "dev": (("dev-en.tsv", "en/dev_2k.tsv"),),
            "test": (("test-en.tsv", "en/test_2k.tsv"),),
        },
        _pawsx_rows, (("google-research-datasets/paws-x", "en"),), labels={"0": 0, "1": 1}, hub_columns=_PAIR,
    ),
)  # fmt: skip
