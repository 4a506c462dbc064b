"""One's own files as a task: the text columns, whether the labels are classes or numbers, what is wrong with them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.base import Task, TaskData, did_you_mean
from attendrop.tasks.label_column import (
    LABEL_TYPES,
    as_class_ids,
    as_numbers,
    class_problem,
    find_classes,
    label_problem,
    number_problem,
)
from attendrop.tasks.table_files import Table, read_chunks, read_table
from attendrop.tasks.token_columns import TokenColumn, numbers_problem, read_numbers


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
    skip_bad_rows: bool = False,
) -> TaskData:
    """Load one's own .csv, .tsv, .jsonl or .parquet files as the splits "train", "dev" and "test".

    text_columns: one or two. label_column: needed for train and eval files; a predict file's labels are not read.
    label_type: "auto": whole numbers and text are classes, but if one label has a decimal fraction (or an exponent) all
        are numbers; "class" and "number" decide it. Labels of all files count; spaces around them do not, and a whole
        number is one class whether it is written `1` or `1.0`.
    label_names: the classes, in order, of a model that exists; empty for a model of numbers. Without it they are the
        labels of the training file (else of the eval file): integers by value, then text by the alphabet.
    token_columns: further columns to read, of the training file alone. "train" then has them, by their names, and
        "place": where a row stands in the file.
    skip_bad_rows: leave out bad rows and list them as the data's `skipped`; the default raises for the first.

    The index of a row is its number in the file, from 0. Raises AttendropError, with file, line and column, for a file
    that `read_chunks` refuses, a missing column, an empty or NaN text or label, integers or decimals mixed with text, a
    label that training does not have, labels that may be no classes, training data of a single class, and token columns
    that are not of their kind.
    """
    text_columns = tuple(text_columns)
    _check_request(text_columns, label_column, label_type, token_columns)
    paths = {"train": train_file, "dev": eval_file, "test": predict_file}
    bad = BadRows(skip=skip_bad_rows)
    tables = {split: read_table(path, bad) for split, path in paths.items() if path is not None}
    if not tables:
        raise AttendropError("give at least one file: for training, for evaluation or for prediction.")
    tables = {split: _with_texts(table, text_columns, bad) for split, table in tables.items()}
    labelled = [split for split in tables if split != "test"]
    if labelled and label_column is None:
        raise AttendropError("the column of the labels is not given; it is needed to train and to evaluate.")
    if not labelled and label_names is None:
        raise AttendropError("a file for prediction alone does not tell the classes; give the model's label names.")
    for split in labelled:
        tables[split] = _not_empty(tables[split].checked(str(label_column), label_problem, bad))
    if label_names is None:
        label_names = find_classes({split: tables[split] for split in labelled}, str(label_column), label_type)
    for split in labelled:
        tables[split] = _not_empty(_with_labels(tables[split], str(label_column), label_names, bad))
    for column in token_columns if "train" in tables else ():
        tables["train"] = _not_empty(tables["train"].checked(column.name, numbers_problem(column), bad))
    splits = {
        split: _columns(table, text_columns, label_column if split in labelled else None, label_names)
        for split, table in tables.items()
    }
    if token_columns and "train" in tables:
        splits["train"] |= {column.name: read_numbers(tables["train"], column) for column in token_columns}
        splits["train"]["place"] = tables["train"].places
    files = ", ".join(str(table.path) for table in tables.values())
    task = files_task(text_columns, label_names)
    data = {split: Dataset.from_dict(columns) for split, columns in splits.items()}
    return TaskData(task, data, files, tuple(bad.skipped))


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file. columns: as in `TaskData.splits`. table: these rows, with all columns of the file."""

    columns: dict[str, list[Any]]
    table: Table


def stream_file(
    file: str | Path,
    *,
    text_columns: Sequence[str],
    label_names: Sequence[str],
    label_column: str | None = None,
    size: int,
    bad: BadRows,
    format: str | None = None,
) -> Iterator[Chunk]:
    """Read a file, of any length, for a model that exists: `size` rows at a time, with labels if they have a column.

    file, format, bad: as for `read_chunks`; the other arguments and errors are as for `load_files`.
    """
    text_columns = tuple(text_columns)
    _check_request(text_columns, label_column, "auto", ())
    for table in read_chunks(file, size, bad, format=format):
        table = _with_texts(table, text_columns, bad)
        if label_column is not None:
            table = table.checked(label_column, label_problem, bad)
            table = _with_labels(table, label_column, label_names, bad)
        if table.rows:
            yield Chunk(_columns(table, text_columns, label_column, label_names), table)


def files_task(text_columns: Sequence[str], label_names: Sequence[str]) -> Task:
    """The task of one's own files: with these classes, or with numbers if there are none."""
    if label_names:
        metrics = ("accuracy", "f1_macro", "matthews_correlation")
        return Task(
            "files", "classification", tuple(text_columns), tuple(label_names), metrics[0], "own files", metrics[1:]
        )
    return Task("files", "regression", tuple(text_columns), (), "pearson", "own files", ("spearman", "mse"))


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
    if label_type not in LABEL_TYPES:
        hint = did_you_mean(label_type, LABEL_TYPES) or f"; it is one of {', '.join(LABEL_TYPES)}."
        raise AttendropError(f"there is no label type {label_type!r}{hint}")


def _with_texts(table: Table, text_columns: tuple[str, ...], bad: BadRows) -> Table:
    for name in text_columns:
        table = table.checked(name, _text_problem, bad)
    return table


def _with_labels(table: Table, column: str, label_names: Sequence[str], bad: BadRows) -> Table:
    return table.checked(column, class_problem(label_names) if label_names else number_problem, bad)


def _not_empty(table: Table) -> Table:
    if not table.rows:
        raise AttendropError(f"{table.path} has no row that can be used: all were left out.")
    return table


def _columns(
    table: Table, text_columns: tuple[str, ...], label_column: str | None, label_names: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns of a data set, made of a table without bad rows."""
    columns = {key: table.column(name) for key, name in zip(("text", "text_pair"), text_columns, strict=False)}
    columns["index"] = table.index
    if label_column is not None:
        labels = table.column(label_column)
        columns["label"] = as_class_ids(labels, label_names) if label_names else as_numbers(labels)
    return columns


def _text_problem(value: Any) -> str | None:
    """What is wrong with a text; None if nothing is. The string "NaN" is a text, a missing number is none."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "the text is empty"
    if isinstance(value, float) and math.isnan(value):
        return "the text is NaN"
    return None if isinstance(value, str) else f"{value!r} is not a text"
