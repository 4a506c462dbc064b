"""The nine GLUE tasks (Wang et al., 2019), from the official files or from the hub."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from datasets import Dataset

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.sources import Row, Source
from attendrop.tasks.text_files import tabbed_lines
from attendrop.wording import counted

_HIGHEST = 5  # of the numbers of STS-B
_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_MNLI_HUB_SPLITS = {"dev": "validation_matched", "dev_mismatched": "validation_mismatched", "test": "test_matched"}


def _read(task: GlueTask, paths: Sequence[Path], split: str) -> Iterator[Row]:
    """Read an official file: no quoting, lines end with a line feed only, columns are found by name in the header.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a test file, because a submission needs every row.
    """
    (path,), header = paths, task.header
    labelled = not split.startswith("test")
    lines = list(tabbed_lines(path))
    if not (labelled and header):
        header, lines = tuple(lines[0][1]), lines[1:]
    wanted = (*task.columns, *((task.label_column,) if labelled else ()))
    for column in wanted:
        if column not in header:
            hint = did_you_mean(column, header) or f"; its header is {', '.join(map(repr, header))}."
            raise AttendropError(f"{path} has no column {column!r}{hint}")
    if not lines:
        raise AttendropError(f"{path} has no rows.")
    rows: list[Row] = []
    broken = []
    for place, values in lines:
        fields = dict(zip(header, values, strict=False))
        if len(values) != len(header):
            broken.append(f"{place}: {counted(len(values), 'field')} instead of {len(header)}")
        elif labelled and not all(fields[column].strip() for column in wanted):
            broken.append(f"{place}: an empty text or label")
        else:
            number = fields.get("index", fields.get("id", ""))  # "id" is of QQP
            others = {"index": int(number) if number.isdecimal() else len(rows)}
            label = task.read(fields[task.label_column], f"{path}, {place}") if labelled else None
            rows.append(Row(path, place, tuple(fields[column] for column in task.columns), label, others))
    if broken and (not labelled or len(broken) > len(lines) * _BROKEN_SHARE):
        raise AttendropError(
            f"{path}, {broken[0]}; {len(broken)} of {len(lines)} rows are broken; download the file again."
        )
    if broken:
        skipped = f"skipped {len(broken)} broken rows of {len(lines)}, the first at {broken[0]}"
        warnings.warn(f"{path}: {skipped}.", stacklevel=5)
    yield from rows


def _of_hub(columns: Sequence[str], name: str, raw: Dataset) -> Iterator[Row]:
    values = zip(*(raw[column][:] for column in columns), strict=True)
    for texts, label, number in zip(values, raw["label"][:], raw["idx"][:], strict=True):
        yield Row(name, f"row {number}", texts, label, {"index": number})


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE as its files have it.

    Attributes:
        folder: Its folder in the official archive.
        metrics: Its metrics; models are selected by the first.
        about: One line on it.
        columns: Columns of the texts.
        label_column: Column of the labels in train and dev.
        labels: The labels in files and submissions, in the order of the classes; none: numbers from 0 to 5.
        hub_columns: The text columns on the hub.
        class_names: The classes, where files write them in another way.
        header: The columns of train and dev files that have no header line.
        file_names: File names by split.
    """

    folder: str
    metrics: tuple[str, ...]
    about: str
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    hub_columns: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    file_names: Mapping[str, str] = field(default_factory=lambda: _FILES)

    @property
    def source(self) -> Source:
        """Where the data come from."""
        name = self.folder.lower().replace("-", "")
        kind = "classification" if self.labels else "regression"
        names = self.class_names or self.labels
        return Source(
            Task(name, kind, self.columns, names, self.metrics[0], self.about, self.metrics[1:]),
            (self.folder,),
            {split: ((file,),) for split, file in self.file_names.items()},
            partial(_read, self),
            (("nyu-mll/glue", name),),
            partial(_of_hub, self.hub_columns),
            self.labels or None,
            _MNLI_HUB_SPLITS if name == "mnli" else {"dev": "validation"},
            within="glue",
        )

    def read(self, label: str, place: str) -> str | float:
        """Return a label of a file: its text, or a number; raise AttendropError if that is out of range."""
        if self.labels:
            return label
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not 0 <= score <= _HIGHEST:
            raise AttendropError(f"{place}: the score {label!r} is not a number from 0 to {_HIGHEST}.")
        return score

    def write(self, label: float) -> str:
        """Return a prediction as submissions have it: the name of a class, or a number clamped to the range."""
        return self.labels[int(label)] if self.labels else f"{min(max(label, 0), _HIGHEST):.3f}"


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")
_ACCURACY = ("accuracy",)
_TASKS = (
    GlueTask(
        "CoLA", ("matthews_correlation",), "is it good English?", ("sentence",), "label", _YES_NO, ("sentence",),
        ("unacceptable", "acceptable"), ("source", "label", "star", "sentence"),
    ),
    GlueTask(
        "SST-2", _ACCURACY, "sentiment of film reviews", ("sentence",), "label", _YES_NO, ("sentence",),
        ("negative", "positive"),
    ),
    GlueTask(
        "MRPC", ("accuracy", "f1"), "do two news sentences say the same?", ("#1 String", "#2 String"), "Quality",
        _YES_NO, _PAIR, ("not_equivalent", "equivalent"),
    ),
    GlueTask(
        "STS-B", ("pearson", "spearman"), "similarity of two sentences, 0 to 5", _PAIR, "score", (), _PAIR,
    ),
    GlueTask(
        "QQP", ("accuracy", "f1"), "do two questions ask the same?", ("question1", "question2"), "is_duplicate",
        _YES_NO, ("question1", "question2"), ("not_duplicate", "duplicate"),
    ),
    GlueTask(
        "MNLI", _ACCURACY, "does the premise entail, contradict or leave open?", _PAIR, "gold_label", _NLI,
        ("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    GlueTask(
        "QNLI", _ACCURACY, "does the sentence answer the question?", ("question", "sentence"), "label", _ENTAILMENT,
        ("question", "sentence"),
    ),
    GlueTask("RTE", _ACCURACY, "does the first text entail the second?", _PAIR, "label", _ENTAILMENT, _PAIR),
    GlueTask(
        "WNLI", _ACCURACY, "is the pronoun resolved correctly?", _PAIR, "label", _YES_NO, _PAIR,
        ("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE: dict[str, GlueTask] = {each.source.task.name: each for each in _TASKS}
