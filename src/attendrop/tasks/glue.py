"""The nine GLUE tasks (Wang et al., 2019), from the official files or from the hub."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.sources import check_splits, find_folder, load_from_hub
from attendrop.tasks.text_files import decode
from attendrop.wording import counted

HUB_NAME = "nyu-mll/glue"
_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}


@dataclass(frozen=True)
class _Classes:
    """Labels that are classes.

    Attributes:
        names: The labels in the files, in the order of ``task.label_names``.
    """

    names: tuple[str, ...]

    def read(self, label: str) -> int:
        """Return the class id; raise AttendropError for an unknown label."""
        if label not in self.names:
            raise AttendropError(f"the label {label!r} is not one of {', '.join(self.names)}.")
        return self.names.index(label)

    def write(self, label: int) -> str:
        """Return the name of the class in a submission."""
        return self.names[label]


@dataclass(frozen=True)
class _Range:
    """Labels that are numbers from ``low`` to ``high``."""

    low: int
    high: int

    def read(self, label: str) -> float:
        """Return the number; raise AttendropError if it is out of range."""
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not self.low <= score <= self.high:
            raise AttendropError(f"the score {label!r} is not a number from {self.low} to {self.high}.")
        return score

    def write(self, label: float) -> str:
        """Return the number, clamped to the range, in the format of a submission."""
        return f"{min(max(label, self.low), self.high):.3f}"


@dataclass(frozen=True)
class GlueSource:
    """Files of a GLUE task in the official archive and on the hub.

    Attributes:
        task: The task.
        folder: Its folder in the official archive.
        label_column: Column of the labels in train and dev.
        labels: Format of the labels in files and submissions.
        hub_columns: The text columns on the hub.
        header: The columns of train and dev files that have no header line.
        file_names: File names by split.
    """

    task: Task
    folder: str
    label_column: str
    labels: _Classes | _Range
    hub_columns: tuple[str, ...]
    header: tuple[str, ...] = ()
    file_names: dict[str, str] = field(default_factory=lambda: _FILES)

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, from the places listed in :func:`attendrop.tasks.registry.load_task`."""
        check_splits(self.task, splits, self.file_names)
        folder = self._folder(data_dir)
        wanted = self._with_mismatched(splits)
        if folder is None:
            return TaskData(self.task, {s: _from_hub(self, s) for s in wanted}, f"Hugging Face hub {HUB_NAME}")
        wanted = [s for s in wanted if s in splits or (folder / self.file_names[s]).is_file()]
        return TaskData(self.task, {s: _from_file(self, folder, s) for s in wanted}, f"local folder {folder}")

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files; none if the task is loaded from the hub."""
        folder = self._folder(data_dir)
        return [] if folder is None else [folder / name for name in self.file_names.values()]

    def _folder(self, data_dir: str | Path | None) -> Path | None:
        files = self.file_names.values()
        return find_folder(data_dir, (self.folder, self.task.name), within="glue", files=files)

    def _with_mismatched(self, splits: Sequence[str]) -> list[str]:
        """Add MNLI's mismatched sets to the matched ones."""
        extra = [f"{split}_mismatched" for split in splits if f"{split}_mismatched" in self.file_names]
        return list(dict.fromkeys([*splits, *extra]))


_YES_NO = _Classes(("0", "1"))
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")


def _task(name: str, columns: tuple[str, ...], labels: tuple[str, ...], metrics: tuple[str, ...], about: str) -> Task:
    return Task(name, "classification", columns, labels, metrics[0], about, other_metrics=metrics[1:])


_ACCURACY = ("accuracy",)
_SOURCES = (
    GlueSource(
        _task("cola", ("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",), "is it good English?"),
        "CoLA", "label", _YES_NO, ("sentence",), header=("source", "label", "star", "sentence"),
    ),
    GlueSource(
        _task("sst2", ("sentence",), ("negative", "positive"), _ACCURACY, "sentiment of film reviews"),
        "SST-2", "label", _YES_NO, ("sentence",),
    ),
    GlueSource(
        _task("mrpc", ("#1 String", "#2 String"), ("not_equivalent", "equivalent"), ("accuracy", "f1"),
              "do two news sentences say the same?"),
        "MRPC", "Quality", _YES_NO, _PAIR,
    ),
    GlueSource(
        Task("stsb", "regression", _PAIR, (), "pearson", "similarity of two sentences, 0 to 5", ("spearman",)),
        "STS-B", "score", _Range(0, 5), _PAIR,
    ),
    GlueSource(
        _task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1"),
              "do two questions ask the same?"),
        "QQP", "is_duplicate", _YES_NO, ("question1", "question2"),
    ),
    GlueSource(
        _task("mnli", _PAIR, _NLI, _ACCURACY, "does the premise entail, contradict or leave open?"),
        "MNLI", "gold_label", _Classes(_NLI), ("premise", "hypothesis"), file_names=_MNLI_FILES,
    ),
    GlueSource(
        _task("qnli", ("question", "sentence"), _ENTAILMENT, _ACCURACY, "does the sentence answer the question?"),
        "QNLI", "label", _Classes(_ENTAILMENT), ("question", "sentence"),
    ),
    GlueSource(
        _task("rte", _PAIR, _ENTAILMENT, _ACCURACY, "does the first text entail the second?"),
        "RTE", "label", _Classes(_ENTAILMENT), _PAIR,
    ),
    GlueSource(
        _task("wnli", _PAIR, ("not_entailment", "entailment"), _ACCURACY, "is the pronoun resolved correctly?"),
        "WNLI", "label", _YES_NO, _PAIR,
    ),
)  # fmt: skip
GLUE: dict[str, GlueSource] = {source.task.name: source for source in _SOURCES}


# Local files ----------------------------------------------------------------------------------------------------------


def _from_file(source: GlueSource, folder: Path, split: str) -> Dataset:
    """Read an official file: no quoting, lines end with a line feed only, columns are found by name in the header.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a test file, because a submission needs every row.
    """
    path, task = folder / source.file_names[split], source.task
    if not path.is_file():
        raise AttendropError(f"the folder {str(folder)!r} has no file {path.name!r}, which {task.name} {split} needs.")
    lines = [line.removesuffix("\r") for line in decode(path).rstrip("\r\n").split("\n")]
    labelled = not split.startswith("test")
    headless = labelled and bool(source.header)
    header = source.header if headless else tuple(lines.pop(0).split("\t"))
    wanted = (*task.text_columns, *((source.label_column,) if labelled else ()))
    for column in wanted:
        if column not in header:
            hint = did_you_mean(column, header) or f"; its header is {', '.join(map(repr, header))}."
            raise AttendropError(f"{path} has no column {column!r}{hint}")
    rows, broken = [], []
    for number, line in enumerate(lines, start=1 if headless else 2):
        values = line.split("\t")
        fields = dict(zip(header, values, strict=False))
        if len(values) != len(header):
            broken.append(f"line {number}: {counted(len(values), 'field')} instead of {len(header)}")
        elif labelled and not all(fields[column].strip() for column in wanted):
            broken.append(f"line {number}: an empty text or label")
        else:
            rows.append((number, fields))
    if not lines:
        raise AttendropError(f"{path} has no rows.")
    _judge_broken(path, broken, len(lines), labelled)
    return _to_dataset(source, path, rows, labelled)


def _judge_broken(path: Path, broken: list[str], total: int, labelled: bool) -> None:
    if not broken:
        return
    if not labelled or len(broken) > total * _BROKEN_SHARE:
        raise AttendropError(f"{path}, {broken[0]}; {len(broken)} of {total} rows are broken; download the file again.")
    warnings.warn(f"{path}: skipped {len(broken)} broken rows of {total}, the first at {broken[0]}.", stacklevel=5)


def _to_dataset(source: GlueSource, path: Path, rows: list[tuple[int, dict[str, str]]], labelled: bool) -> Dataset:
    columns: dict[str, list[Any]] = {
        key: [fields[name] for _, fields in rows]
        for key, name in zip(("text", "text_pair"), source.task.text_columns, strict=False)
    }
    if labelled:
        columns["label"] = [_label(source, f"{path}, line {n}", fields[source.label_column]) for n, fields in rows]
    columns["index"] = [_index(fields, position) for position, (_, fields) in enumerate(rows)]
    return Dataset.from_dict(columns)


def _label(source: GlueSource, place: str, label: str) -> int | float:
    try:
        return source.labels.read(label)
    except AttendropError as error:
        raise AttendropError(f"{place}: {error}") from None


def _index(fields: dict[str, str], position: int) -> int:
    """Return the row's number: the column "index" (QQP: "id") if there is one, otherwise its position."""
    written = fields.get("index", fields.get("id", ""))
    return int(written) if written.isdecimal() else position


# The hub --------------------------------------------------------------------------------------------------------------

_HUB_SPLITS = {"dev": "validation"}
_MNLI_HUB_SPLITS = {"dev": "validation_matched", "dev_mismatched": "validation_mismatched", "test": "test_matched"}


def _from_hub(source: GlueSource, split: str) -> Dataset:
    task = source.task
    hub_split = (_MNLI_HUB_SPLITS if task.name == "mnli" else _HUB_SPLITS).get(split, split)
    raw = load_from_hub(task, HUB_NAME, task.name, split=hub_split)
    columns = {key: list(raw[name]) for key, name in zip(("text", "text_pair"), source.hub_columns, strict=False)}
    if not split.startswith("test"):
        columns["label"] = list(raw["label"])
    columns["index"] = list(raw["idx"])
    return Dataset.from_dict(columns)
