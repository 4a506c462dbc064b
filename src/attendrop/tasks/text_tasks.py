"""Classification tasks outside GLUE: the film reviews of IMDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.base import Task
from attendrop.tasks.sources import FolderSource
from attendrop.tasks.table_files import read_table
from attendrop.tasks.text_lines import decode


@dataclass(frozen=True)
class TextRow:
    """A row of a task: where it is in its file, its texts, and its label as the file has it."""

    place: str
    texts: tuple[str, ...]
    label: str


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
        texts = zip(*(raw[name][:] for name in self.hub_columns), strict=True)
        for number, (row, label) in enumerate(zip(texts, raw["label"][:], strict=True)):
            yield TextRow(f"row {number}", row, names[label])

    def columns(self, path: Path, rows: Sequence[TextRow]) -> dict[str, list[Any]]:
        """Convert rows to columns; an unknown label is refused."""
        for row in rows:
            if row.label not in self.labels:
                known = ", ".join(self.labels)
                raise AttendropError(f"{path}, {row.place}: the label {row.label!r} is not one of {known}.")
        texts = zip(*(row.texts for row in rows), strict=True)
        columns: dict[str, list[Any]] = dict(zip(("text", "text_pair"), map(list, texts), strict=False))
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


_TEST = (("test.jsonl", "test"),)
TEXT_TASKS = (
    TextSource(
        Task("imdb", "classification", ("text",), ("negative", "positive"), "accuracy", "sentiment of long reviews"),
        ("imdb", "aclimdb"), {"train": (("train.jsonl", "train"),), "dev": _TEST, "test": _TEST}, _imdb_rows,
        (("stanfordnlp/imdb",),), hub_splits={"dev": "test"}, labels={"neg": 0, "pos": 1},
    ),
)  # fmt: skip
