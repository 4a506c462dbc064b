"""One's own files as a task: the text columns, whether the labels are classes or numbers, what is wrong with them."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData, did_you_mean
from attendrop.tasks.columns import TokenColumn, read_numbers
from attendrop.tasks.tables import Table, read_table

_LABEL_TYPES = ("auto", "class", "number")
_KINDS = ("integer", "decimal", "text")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def load_files(
    *,
    train_file: str | Path | None = None,
    eval_file: str | Path | None = None,
    predict_file: str | Path | None = None,
    text_columns: Sequence[str],
    label_column: str | None = None,
    label_type: str = "auto",
    label_names: Sequence[str] | None = None,
    token_columns: Sequence[TokenColumn] = (),
) -> TaskData:
    """Load one's own .csv, .tsv, .jsonl or .parquet files as the splits "train", "dev" and "test".

    text_columns: one or two. label_column: needed for train and eval files; a predict file's labels are not read.
    label_type: "auto": integers and text are classes, but if one label has a decimal point (or an exponent) all are
        numbers; "class" and "number" decide it. Labels of all files count; spaces around them do not.
    label_names: the classes, in order, of a model that exists; empty for a model of numbers. Without it they are the
        labels of the training file (else of the eval file): integers by value, then text by the alphabet.
    token_columns: further columns to read, of the training file alone. "train" then has them, by their names, and
        "place": where a row stands in the file.

    The index of a row is its number in the file, from 0. Raises AttendropError, with file, line and column, for a file
    that `read_table` refuses, a missing column, an empty or NaN text or label, integers or decimals mixed with text, a
    label that training does not have, training data of a single class, and token columns that are not of their kind.
    """
    text_columns = tuple(text_columns)
    _check_request(text_columns, label_column, label_type, token_columns)
    paths = {"train": train_file, "dev": eval_file, "test": predict_file}
    tables = {split: read_table(path) for split, path in paths.items() if path is not None}
    if not tables:
        raise AttendropError("give at least one file: for training, for evaluation or for prediction.")
    splits = {split: _texts(table, text_columns) for split, table in tables.items()}
    labelled = {split: table for split, table in tables.items() if split != "test"}
    if labelled and label_column is None:
        raise AttendropError("the column of the labels is not given; it is needed to train and to evaluate.")
    if not labelled and label_names is None:
        raise AttendropError("a file for prediction alone does not tell the classes; give the model's label names.")
    labels = {split: _Labels(table, str(label_column)) for split, table in labelled.items()}
    if label_names is None:
        label_names = _classes(labels, label_type)
    for split, column in labels.items():
        splits[split]["label"] = column.class_ids(label_names) if label_names else column.numbers()
    if token_columns and "train" in tables:
        splits["train"] |= {column.name: read_numbers(tables["train"], column) for column in token_columns}
        splits["train"]["place"] = tables["train"].places
    task = _task(text_columns, tuple(label_names))
    files = ", ".join(str(table.path) for table in tables.values())
    return TaskData(task, {split: Dataset.from_dict(columns) for split, columns in splits.items()}, files)


def _task(text_columns: tuple[str, ...], label_names: tuple[str, ...]) -> Task:
    if label_names:
        metrics = ("accuracy", "f1_macro", "matthews_correlation")
        return Task("files", "classification", text_columns, label_names, metrics[0], "own files", metrics[1:])
    return Task("files", "regression", text_columns, (), "pearson", "own files", ("spearman", "mse"))


def _check_request(
    text_columns: tuple[str, ...], label_column: str | None, label_type: str, token_columns: Sequence[TokenColumn]
) -> None:
    if len(text_columns) not in (1, 2):
        raise AttendropError(f"a task reads one or two text columns, not {len(text_columns)}.")
    labels = [label_column] if label_column is not None else []
    named = [*text_columns, *labels, *(column.name for column in token_columns)]
    repeated = [name for name in named if named.count(name) > 1]
    if repeated:
        raise AttendropError(f"the column {repeated[0]!r} is named twice; text, label and token columns must differ.")
    if label_type not in _LABEL_TYPES:
        hint = did_you_mean(label_type, _LABEL_TYPES) or f"; it is one of {', '.join(_LABEL_TYPES)}."
        raise AttendropError(f"there is no label type {label_type!r}{hint}")


def _texts(table: Table, text_columns: tuple[str, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for key, name in zip(("text", "text_pair"), text_columns, strict=False):
        columns[key] = table.column(name)
        for place, text in zip(table.places, columns[key], strict=True):
            if _missing(text):
                raise AttendropError(f"{table.path}, {place}, column {name!r}: the text is {_missing(text)}.")
            if not isinstance(text, str):
                raise AttendropError(f"{table.path}, {place}, column {name!r}: {text!r} is not a text.")
    columns["index"] = list(range(len(table.rows)))
    return columns


def _missing(value: Any) -> str | None:
    """What is wrong with a value that says nothing, "empty" or "NaN"; None if nothing is."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "empty"
    return "NaN" if str(value).strip().lower() == "nan" else None


class _Labels:
    """The label column of a file, as written there (without surrounding spaces).

    Every label is of one kind: "integer", "decimal" or "text".
    """

    def __init__(self, table: Table, column: str) -> None:
        self.table, self.column = table, column
        values = table.column(column)
        for place, value in zip(table.places, values, strict=True):
            if _missing(value):
                raise AttendropError(f"{self._at(place)}: the label is {_missing(value)}.")
            if not isinstance(value, str | int | float):
                raise AttendropError(f"{self._at(place)}: {value!r} is neither a class nor a number.")
        self.values = [str(value).strip() for value in values]
        self.kinds = [_kind(value) for value in self.values]

    def _at(self, place: str) -> str:
        return f"{self.table.path}, {place}, column {self.column!r}"

    def first(self, wanted: str) -> str | None:
        """The first label of a kind, with its place, or None."""
        for place, value, kind in zip(self.table.places, self.values, self.kinds, strict=True):
            if kind == wanted:
                return f"{value!r} ({self.table.path}, {place})"
        return None

    def numbers(self) -> list[float]:
        for place, value, kind in zip(self.table.places, self.values, self.kinds, strict=True):
            if kind == "text" or not math.isfinite(float(value)):
                raise AttendropError(f"{self._at(place)}: the label {value!r} is not a finite number.")
        return [float(value) for value in self.values]

    def class_ids(self, names: Sequence[str]) -> list[int]:
        ids = {name: i for i, name in enumerate(names)}
        for place, value in zip(self.table.places, self.values, strict=True):
            if value not in ids:
                hint = did_you_mean(value, names) or f"; the classes are {_shortened(names)}."
                raise AttendropError(f"{self._at(place)}: the label {value!r} is not among those of training{hint}")
        return [ids[value] for value in self.values]


def _kind(value: str) -> str:
    return "integer" if _INTEGER.fullmatch(value) else "decimal" if _DECIMAL.fullmatch(value) else "text"


def _classes(labels: dict[str, _Labels], label_type: str) -> list[str]:
    """The classes of the training file (else of the eval file) in order; empty if the labels are numbers."""
    if label_type == "number":
        return []
    if label_type == "auto":
        first = {kind: [found for column in labels.values() if (found := column.first(kind))] for kind in _KINDS}
        numeric = first["integer"] + first["decimal"]
        if numeric and first["text"]:
            raise AttendropError(
                f"the labels mix numbers, such as {numeric[0]}, with text, such as {first['text'][0]}; correct them, "
                "or say that they are classes (label type 'class')."
            )
        if first["decimal"]:
            return []
    source = labels.get("train") or labels["dev"]
    names = sorted(set(source.values), key=_class_order)
    if "train" in labels and len(names) < 2:
        raise AttendropError(f"{source.table.path} has only one class, {names[0]!r}; training needs at least two.")
    return names


def _class_order(name: str) -> tuple[bool, int, str]:
    integer = _kind(name) == "integer"
    return not integer, int(name) if integer else 0, name


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
