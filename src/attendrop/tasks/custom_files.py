"""One's own files as a task: the text columns, whether the labels are classes or numbers, what is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import find_head, head_class
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
    head: Head | None = None,
    token_columns: Sequence[TokenColumn] = (),
    skip_bad_rows: bool = False,
) -> TaskData:
    """Load one's own .csv, .tsv, .jsonl or .parquet files as the splits "train", "dev" and "test".

    text_columns: one or two. label_column: needed for train and eval files; a predict file's labels are not read.
    label_type: "auto": whole numbers and text are classes, but if one label has a decimal fraction (or an exponent) all
        are numbers; "class" and "number" decide it. Labels of all files count; spaces around them do not, and a whole
        number is one class whether it is written `1` or `1.0`.
    head: that of a model that exists, with its classes. Without it the classes are the labels of the training file
        (else of the eval file): integers by value, then text by the alphabet.
    token_columns: further columns to read, of the training file alone. "train" then has them, by their names, and
        "place": where a row stands in the file.
    skip_bad_rows: leave out bad rows and list them as the data's `skipped`; the default raises for the first.

    The index of a row is its number in the file, from 0. Raises AttendropError, with file, line and column, for a file
    that `read_chunks` refuses, a missing column, an empty or NaN text or label, integers or decimals mixed with text, a
    label that training does not have, labels that may be no classes, training data of a single class, and token columns
    that are not of their kind.
    """
    text_columns = tuple(text_columns)
    _check_request(text_columns, label_column, token_columns)
    reader = head or head_class(label_type)
    paths = {"train": train_file, "dev": eval_file, "test": predict_file}
    bad = BadRows(skip=skip_bad_rows)
    tables = {split: read_table(path, bad) for split, path in paths.items() if path is not None}
    if not tables:
        raise AttendropError("give at least one file: for training, for evaluation or for prediction.")
    tables = {split: _with_texts(table, text_columns, reader, bad) for split, table in tables.items()}
    labelled = [split for split in tables if split != "test" and reader.needs_labels]
    if labelled and label_column is None:
        raise AttendropError("the column of the labels is not given; it is needed to train and to evaluate.")
    if not labelled and head is None and reader.needs_labels:
        raise AttendropError("a file for prediction alone does not tell the classes; give the model's head.")
    for split in labelled:
        tables[split] = _not_empty(tables[split].checked(str(label_column), reader.value_problem, bad))
    if head is None:
        head = find_head({split: tables[split] for split in labelled}, str(label_column), label_type)
    for split in labelled:
        tables[split] = _not_empty(tables[split].checked(str(label_column), head.label_problem, bad))
    for column in token_columns if "train" in tables else ():
        tables["train"] = _not_empty(tables["train"].checked(column.name, numbers_problem(column), bad))
    splits = {
        split: _columns(table, text_columns, label_column if split in labelled else None, head)
        for split, table in tables.items()
    }
    if token_columns and "train" in tables:
        splits["train"] |= {column.name: read_numbers(tables["train"], column) for column in token_columns}
        splits["train"]["place"] = tables["train"].places
    files = ", ".join(str(table.path) for table in tables.values())
    task = files_task(text_columns, head)
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
    head: Head,
    label_column: str | None = None,
    size: int,
    bad: BadRows,
    format: str | None = None,
) -> Iterator[Chunk]:
    """Read a file, of any length, for a model that exists: `size` rows at a time, with labels if they have a column.

    file, format, bad: as for `read_chunks`; the other arguments and errors are as for `load_files`.
    """
    text_columns = tuple(text_columns)
    _check_request(text_columns, label_column, ())
    for table in read_chunks(file, size, bad, format=format):
        table = _with_texts(table, text_columns, head, bad)
        if label_column is not None:
            table = table.checked(label_column, head.value_problem, bad)
            table = table.checked(label_column, head.label_problem, bad)
        if table.rows:
            yield Chunk(_columns(table, text_columns, label_column, head), table)


def files_task(text_columns: Sequence[str], head: Head) -> Task:
    """The task of one's own files for a head, which has the classes."""
    metric, *others = head.default_metrics
    return Task("files", head.kind, tuple(text_columns), head.label_names, metric, "own files", tuple(others))


def _check_request(
    text_columns: tuple[str, ...], label_column: str | None, token_columns: Sequence[TokenColumn]
) -> None:
    if len(text_columns) not in (1, 2):
        raise AttendropError(f"a task reads one or two text columns, not {len(text_columns)}.")
    labels = [label_column] if label_column is not None else []
    named = [*text_columns, *labels, *(column.name for column in token_columns)]
    repeated = [name for name in named if named.count(name) > 1]
    if repeated:
        raise AttendropError(f"the column {repeated[0]!r} is named twice; text, label and token columns must differ.")


def _with_texts(table: Table, text_columns: tuple[str, ...], reader: Head | type[Head], bad: BadRows) -> Table:
    for name in text_columns:
        table = table.checked(name, reader.text_problem, bad)
    return table


def _not_empty(table: Table) -> Table:
    if not table.rows:
        raise AttendropError(f"{table.path} has no row that can be used: all were left out.")
    return table


def _columns(table: Table, text_columns: tuple[str, ...], label_column: str | None, head: Head) -> dict[str, list[Any]]:
    """The columns of a data set, made of a table without bad rows."""
    columns = {key: table.column(name) for key, name in zip(("text", "text_pair"), text_columns, strict=False)}
    columns["index"] = table.index
    if label_column is not None:
        columns["label"] = head.read_labels(table.column(label_column))
    return columns
