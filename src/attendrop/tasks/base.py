"""Tasks: columns, classes and metrics; the data loaded for a task, and the files and data sets of named ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import datasets
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError, check_known
from attendrop.tasks.long_texts import DOCUMENT, HEAD, split_long
from attendrop.tasks.table import SkippedRow, text_lines
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.registry import get_task_type
from attendrop.wording import counted

_BROKEN_SHARE = 0.001  # only QQP has broken rows, about 20 in 360,000


@dataclass(frozen=True)
class Task:
    """A task, without its data."""

    name: str  # such as "rte"; the task of custom files is called "files"
    kind: str  # of the head, such as "classification"
    text_columns: tuple[str, ...]  # of the source files, one for each input of the head
    label_names: tuple[str, ...]  # the classes, in the order of their ids; empty if there are none
    metric: str  # the score by which models are selected, a key of what `compute_scores` returns
    description: str  # one line
    other_metrics: tuple[str, ...] = ()  # scores reported beside `metric`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the head, by name
    long_texts: str = HEAD  # what is done with texts that are too long, see `tasks/long_texts.py`
    group_columns: tuple[str, ...] = ()  # whose values make groups of rows that are also scored for themselves
    # Classes of models trained on other tasks, each with the class of this task that it is read as. Where there are
    # any, models with other classes are not scored.
    readings: tuple[Mapping[str, str], ...] = ()
    unknown_names: tuple[str, ...] = ()  # as in `TaskType`

    @cached_property
    def type(self) -> TaskType:
        """What this kind of task reads and predicts: model class, encoding, metrics, predictions."""
        return replace(get_task_type(self.kind, self.label_names, self.options), unknown_names=self.unknown_names)

    @property
    def num_labels(self) -> int:
        """Number of outputs per prediction: the number of classes, 1 for regression."""
        return len(self.type.output_names)

    def with_long_texts(self, wanted: str | None) -> Self:
        """Return the task with another treatment of long texts; None leaves it as it is.

        Raises:
            AttendropError: Rows of this task do not support it.
        """
        if wanted in (None, HEAD):
            return self if wanted is None else replace(self, long_texts=wanted)
        what, texts = f"long-texts {wanted!r} is for", len(self.text_columns)
        if not self.type.one_vector:
            raise AttendropError(f"{what} one prediction for each text, and the task is {self.kind}; omit it.")
        if texts > 1:
            raise AttendropError(f"{what} single texts, and the rows have {texts}; omit it.")
        return replace(self, long_texts=wanted)


@dataclass(frozen=True)
class TaskData:
    """The loaded splits of a task, by name: "train", "dev", "test", and others that it has ("dev_mismatched").

    Columns are ``task.type.inputs`` ("text", "text_pair" ...), "label" (class id, float ...; absent if the split has no
    labels), "index" (id of the row in a file of predictions), and in custom training data the further columns that
    :func:`load_files` was asked for.
    """

    task: Task
    splits: dict[str, Dataset]
    source: str  # description of where the data came from
    skipped: tuple[SkippedRow, ...] = ()  # because they are invalid
    looks_grouped: str = ""  # in words, by a column of the training file, where none was given


# Named tasks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of a named task as its file has it."""

    file: str | Path  # or data set on the hub, for messages
    place: str  # where it is in the file, such as "line 7"
    inputs: tuple[Any, ...]  # of the head, such as two texts
    label: Any = None  # or on the hub the id of its class; None: not known. Of all rows of a split, or of none
    others: Mapping[str, Any] = field(default_factory=dict)  # "index" (default: the row's number), and those of `Task`


@dataclass(frozen=True)
class Source:
    """Files of a task in a folder of its own, and its data sets on the hub."""

    task: Task
    folders: tuple[str, ...]  # names of its folder, in lower case without dashes; in messages, the first one
    # By split, for each of its files: the possible names or patterns, of which the first that exists is read.
    file_names: Mapping[str, tuple[tuple[str, ...], ...]]
    read: Callable[[Sequence[Path], str], Iterable[Row]]  # reads the rows of a split from its files
    # Names of the data sets on the hub, each with that of its configuration if it has several; none: not there.
    hub: tuple[tuple[str, ...], ...] = ()
    of_hub: Callable[[str, Dataset], Iterable[Row]] | None = None  # reads the rows of a data set, given its name
    # How files write the classes, in the order of ``task.label_names``; None: as in files of one's own.
    labels: tuple[str, ...] | None = None
    hub_splits: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"})  # where names are others
    revision: str | None = None  # on the hub
    within: str | None = None  # folder of a group of tasks, which may hold the task's folder

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, see :func:`attendrop.tasks.registry.load_task`."""
        for split in splits:
            problem = f"{self.task.name} has no split {split!r}"
            check_known(split, self.file_names, problem, f"it has {', '.join(self.file_names)}")
        folder = self._folder(data_dir)
        mismatched = [f"{split}_mismatched" for split in splits if f"{split}_mismatched" in self.file_names]
        if folder is None:
            found = {split: self._from_hub(split) for split in dict.fromkeys([*splits, *mismatched])}
            return TaskData(self.task, found, f"Hugging Face hub {self.hub[0][0]}")
        there = [split for split in mismatched if all(self._files(folder, split))]
        found = {split: self._from_files(folder, split) for split in dict.fromkeys([*splits, *there])}
        return TaskData(self.task, found, f"local folder {folder}")

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files that :meth:`load` would read; none if the task is loaded from the hub."""
        folder = self._folder(data_dir)
        found = [] if folder is None else [file for split in self.file_names for file in self._files(folder, split)]
        return list(dict.fromkeys(file for file in found if file is not None))

    def _folder(self, data_dir: str | Path | None) -> Path | None:
        """Find the task's folder in ``data_dir``, otherwise in ``$ATTENDROP_DATA``; None if that has none.

        ``data_dir`` may be the folder itself: it has its name, in which cases and dashes do not matter, or its files.
        """
        given = data_dir or os.environ.get("ATTENDROP_DATA")
        if not given:
            return None
        root = Path(given).expanduser()
        if data_dir and not root.is_dir():
            raise AttendropError(f"the data folder {str(root)!r} does not exist; name a folder of the task's files.")
        parents = ([root / self.within] if self.within else []) + [root]
        children = [child for parent in parents if parent.is_dir() for child in sorted(parent.iterdir())]
        wanted = {name.lower().replace("-", "") for name in self.folders}
        for folder in (*children, root):
            if folder.is_dir() and folder.name.lower().replace("-", "") in wanted:
                return folder
        if not data_dir:
            return None
        files = [name for split in self.file_names.values() for names in split for name in names]
        if any(any(root.glob(file)) for file in files):
            return root
        name = self.folders[0]
        places = f"neither '{self.within}/{name}' nor '{name}'" if self.within else f"no folder '{name}'"
        raise AttendropError(
            f"the data folder {str(root)!r} holds {places}, nor a file such as {files[0]!r}; name a folder that has "
            "one."
        )

    def _files(self, folder: Path, split: str) -> list[Path | None]:
        """Return the files of a split; None for each that is missing."""
        return [
            next((path for name in names for path in sorted(folder.glob(name))), None)
            for names in self.file_names[split]
        ]

    def _from_files(self, folder: Path, split: str) -> Dataset:
        paths = []
        for path, names in zip(self._files(folder, split), self.file_names[split], strict=True):
            if path is None:
                raise AttendropError(
                    f"the folder {str(folder)!r} has no file of {self.task.name} {split}, such as {names[0]!r}."
                )
            paths.append(path)
        rows = list(self.read(paths, split))
        if not rows:
            raise AttendropError(f"{paths[0]} has no row of {self.task.name} {split}.")
        return self._dataset(rows)

    def _from_hub(self, split: str) -> Dataset:
        if self.of_hub is None:
            raise AttendropError(
                f"{self.task.name} is not in a local folder, and not on the hub; name the folder that holds "
                f"'{self.folders[0]}' with --data-dir or ATTENDROP_DATA."
            )
        options = {} if self.revision is None else {"revision": self.revision}
        rows: list[Row] = []
        for names in self.hub:
            try:
                raw = datasets.load_dataset(*names, split=self.hub_splits.get(split, split), **options)
            except Exception as error:  # the hub's client and its HTTP library raise many classes
                reason = str(error).strip().partition("\n")[0]
                raise AttendropError(
                    f"{self.task.name} is not in a local folder, and loading {names[0]} from the hub failed "
                    f"({type(error).__name__}: {reason}); name a folder of its files with --data-dir or ATTENDROP_DATA."
                ) from error
            rows += self.of_hub(names[0], raw)
        if split.startswith("test"):
            rows = [replace(row, label=None) if row.label == -1 else row for row in rows]
        return self._dataset(rows)

    def _dataset(self, rows: Sequence[Row]) -> Dataset:
        """Make a data set of rows; raise AttendropError for a row whose values or label are wrong."""
        task_type = self.task.type
        labelled = any(row.label is not None for row in rows)
        for row in rows:
            if not labelled:
                problem = task_type.texts_problem(row.inputs)
            elif self.labels is None:
                problem = task_type.texts_problem(row.inputs) or task_type.value_problem(row.label)
                problem = problem or task_type.label_problem(row.label) or task_type.row_problem(row.inputs, row.label)
            else:
                wrong = isinstance(row.label, str) and row.label not in self.labels
                problem = f"the label {row.label!r} is not one of {', '.join(self.labels)}" if wrong else None
            if problem is not None:
                raise AttendropError(f"{row.file}, {row.place}: {problem}.")
        values = zip(*(row.inputs for row in rows), strict=True)
        columns: dict[str, list[Any]] = dict(zip(task_type.inputs, map(list, values), strict=False))
        if labelled:
            ids = {label: number for number, label in enumerate(self.labels or ())}
            labels = [ids.get(row.label, row.label) if ids else row.label for row in rows]
            columns["label"] = labels if ids else task_type.read_labels(labels)
        columns |= {name: [row.others[name] for row in rows] for name in rows[0].others}
        return Dataset.from_dict({**columns, "index": columns.get("index", list(range(len(rows))))})


@dataclass(frozen=True)
class TabbedFile:
    """Reader of files with tabs and without quoting, whose lines end with a line feed only; columns are found by name.

    Rows with a wrong number of fields, an empty text or an empty label are skipped with a warning if they are at most
    one in a thousand. More of them is an error, as is one in a file without labels: a submission needs every row.
    """

    texts: tuple[str, ...]
    label: str
    header: tuple[str, ...] = ()  # the columns of files that have no header line
    index: str = "index"  # column with the ids of rows; where it has no whole number, rows are numbered
    groups: tuple[str, ...] = ()
    tests_have_labels: bool = False
    read_label: Callable[[str, str], Any] = lambda label, place: label  # converts a label, given the place of its row

    def read(self, paths: Sequence[Path], split: str) -> Iterator[Row]:
        """Yield the rows of the file of a split; raise AttendropError if it has none, or lacks a column."""
        (path,) = paths
        labelled = self.tests_have_labels or not split.startswith("test")
        wanted = (*self.texts, *((self.label,) if labelled else ()))
        with text_lines(path) as text:
            lines = [line.removesuffix("\n").removesuffix("\r").split("\t") for line in text]
        has_header = not self.header or set(wanted) <= set(lines[0])
        header = lines[0] if has_header else list(self.header)
        for column in (*wanted, *self.groups):
            problem = f"{path} has no column {column!r}"
            check_known(column, header, problem, f"its header is {', '.join(map(repr, header))}")
        rows: list[Row] = []
        broken = []
        for number, values in enumerate(lines[has_header:], start=1 + has_header):
            fields, place = dict(zip(header, values, strict=False)), f"line {number}"
            if len(values) != len(header):
                broken.append(f"{place}: {counted(len(values), 'field')} instead of {len(header)}")
            elif labelled and not all(fields[column].strip() for column in wanted):
                broken.append(f"{place}: an empty text or label")
            else:
                index = fields.get(self.index, "")
                others: dict[str, Any] = {group: fields[group] for group in self.groups}
                others["index"] = int(index) if index.isdecimal() else len(rows)
                label = self.read_label(fields[self.label], f"{path}, {place}") if labelled else None
                rows.append(Row(path, place, tuple(fields[column] for column in self.texts), label, others))
        if not rows and not broken:
            raise AttendropError(f"{path} has no rows.")
        count = len(rows) + len(broken)
        if broken and (not labelled or len(broken) > count * _BROKEN_SHARE):
            raise AttendropError(
                f"{path}, {broken[0]}; {len(broken)} of {count} rows are broken; download the file again."
            )
        if broken:
            skipped = f"skipped {len(broken)} broken rows of {count}, the first at {broken[0]}"
            warnings.warn(f"{path}: {skipped}.", stacklevel=5)
        yield from rows


def hub_rows(texts: Sequence[str], groups: Sequence[str], name: str, raw: Dataset) -> Iterator[Row]:
    """Yield the rows of a data set of the hub, given its columns of texts and of groups; their ids are in "idx"."""
    columns = (raw[column][:] for column in (*texts, *groups))
    numbers = raw["idx"][:] if "idx" in raw.column_names else range(len(raw))
    for label, number, *values in zip(raw["label"][:], numbers, *columns, strict=True):
        others = dict(zip(groups, values[len(texts) :], strict=True)) | {"index": number}
        yield Row(name, f"row {number}", tuple(values[: len(texts)]), label, others)


def encode(dataset: Dataset, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Tokenize the texts, without padding (the collator pads batches).

    Args:
        dataset: The rows.
        task: The task.
        tokenizer: The tokenizer.
        max_length: Maximum number of tokens, including special tokens, at most that of the tokenizer; the longer of two
            texts is truncated first.

    Returns:
        What :meth:`TaskType.tokenize` makes of the rows, "labels", if there are any, and "length", in tokens.
        Where a row can become several, as texts in windows do, "document", the number of the row in the data set.

    Raises:
        AttendropError: ``max_length`` leaves no room for the texts, or the head leaves out all rows.
    """
    limit = task.type.length_limit(tokenizer, max_length, dataset.column_names)
    encoded = dataset.map(
        lambda columns, rows: encode_columns(columns, task, tokenizer, limit, first_row=rows[0]),
        batched=True,
        with_indices=True,
        remove_columns=dataset.column_names,
        desc="tokenising",
        # Rows in memory have no use for a fingerprint, for which the whole tokenizer would be hashed in seconds.
        new_fingerprint=None if dataset.cache_files else uuid4().hex,
    )
    if not len(encoded):
        raise AttendropError(f"none of {len(dataset)} rows has a token that the model knows.")
    return encoded


def encode_columns(
    columns: dict[str, list[Any]],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    first_row: int = 0,
) -> dict[str, list[Any]]:
    """Tokenize rows as :func:`encode` does, from number ``first_row``, to :meth:`TaskType.length_limit`."""
    task_type, whole = task.type, task.long_texts == HEAD
    tokens = task_type.tokenize(columns, tokenizer, max_length if whole else None)
    encoded = dict(tokens) if whole else split_long(tokens, tokenizer, max_length, task.long_texts)
    encoded["length"] = task_type.lengths(encoded)
    documents = encoded.get(DOCUMENT)
    if "label" in columns:
        labels = columns["label"] if documents is None else [columns["label"][row] for row in documents]
        encoded["labels"] = task_type.targets(labels, tokens, tokenizer)
    return encoded if documents is None else encoded | {DOCUMENT: [first_row + row for row in documents]}
