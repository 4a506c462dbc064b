"""Loading of custom files as a task: text columns, type of the labels, checks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import candidate_heads
from attendrop.tasks.table import BadRows, Table
from attendrop.tasks.table_files import read_chunks, read_table
from attendrop.tasks.token_columns import TokenColumn, numbers_problem, read_numbers
from attendrop.tasks.values import joined_labels
from attendrop.wording import counted


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
    unknown_labels: str | None = None,
    shift_column: str | None = None,
) -> TaskData:
    """Load custom files, of a format that :func:`read_chunks` reads, as the splits "train", "dev" and "test".

    The index of a row is its number in the file, from 0.

    Args:
        train_file: File of the split "train".
        eval_file: File of the split "dev".
        predict_file: File of the split "test"; its labels are not read.
        text_columns: As many column names as the head reads: of classification and regression, one or two; of multiple
            choice, the question and the choices, in one column or several.
        label_column: Required for ``train_file`` and ``eval_file``.
        label_type: One of ``LABEL_TYPES`` of :mod:`attendrop.tasks.heads.registry`. With "auto", labels are tags if
            texts are lists of words, choices if there are more than two text columns or the second has lists, answers
            if they are objects as SQuAD has them, several labels if they are lists, numbers if at least one has a
            decimal fraction or an exponent, otherwise whole numbers and text are classes. The labels of all files
            count. Spaces around labels are ignored, and ``1`` and ``1.0`` are the same class. Numbers with decimal
            commas, percent signs or separators of thousands are none, and refused unless classes are asked for.
        head: Head of an existing model, with its classes. By default, the classes are the labels of the training file
            (otherwise of the evaluation file): integers by value, then text in alphabetical order.
        token_columns: Further columns of the training file to read. "train" then has them, and "place", where each row
            is in the file.
        skip_bad_rows: Skip invalid rows and list them in ``skipped`` of the result. By default, the first raises.
        unknown_labels: ``"wrong"``: classes and tags of the evaluation file that training lacks count as wrong; the
            task has them as ``unknown_names``. ``"error"``, the default: such rows are invalid.
        shift_column: Column of the training file of which "train" keeps the values as text, as :data:`SHIFT_VALUES`.

    Returns:
        The task and its splits, one for each file.

    Raises:
        AttendropError: :func:`read_chunks` refuses a file; a column is missing; a text or label is empty or NaN;
            numbers are mixed with text; a label does not occur in training; it is unclear whether labels are classes;
            the training data have a single class; or a token column is not of its kind. The message names the file,
            the line and the column.
    """
    text_columns = tuple(text_columns)
    _check_names(text_columns, label_column, token_columns)
    paths = {"train": train_file, "dev": eval_file, "test": predict_file}
    bad = BadRows(skip=skip_bad_rows, unknown_labels=unknown_labels)
    tables = {split: read_table(path, bad) for split, path in paths.items() if path is not None}
    if not tables:
        raise AttendropError("no file is given; give at least one for training, evaluation or prediction.")
    kinds: tuple[type[Head], ...] = () if head is None else (type(head),)
    if head is None:
        first = next(iter(tables.values()))
        texts = [first.column(name)[0] for name in text_columns]
        labels = first.column(label_column) if label_column in first.columns else []
        kinds = candidate_heads(label_type, texts, next((label for label in labels if label is not None), None))
    reader = head or kinds[0]
    _check_inputs(text_columns, token_columns, reader)
    tables = {split: _with_texts(table, text_columns, reader, bad) for split, table in tables.items()}
    scored = [split for split in tables if split != "test"]
    for split in scored:
        rows = enumerate(zip(*(tables[split].column(name) for name in text_columns), strict=True))
        tables[split] = tables[split].only([row for row, texts in rows if not reader.leaves_out(texts)])
    labelled = scored if reader.needs_labels or label_column is not None else []
    if labelled and label_column is None:
        raise AttendropError("no label column is given; training and evaluation need one.")
    if not labelled and head is None and reader.needs_labels:
        raise AttendropError("a file for prediction does not define the classes; give the head of the model.")
    asked = head is not None or label_type != "auto"
    for split in labelled:
        joined = None if asked else joined_labels(tables[split].column(str(label_column)))
        problem = partial(_value_problem, reader, joined)
        tables[split] = _not_empty(tables[split].checked(str(label_column), problem, bad))
    if head is None:
        found = {split: tables[split] for split in labelled}
        kind = next(kind for kind in kinds if asked or kind.suits(found, str(label_column)))
        head = kind.from_labels(found, str(label_column), asked=asked)
    if bad.keeps_unknown and "dev" in labelled:
        head = head.with_unknown(tables["dev"].column(str(label_column)))
    for split in scored:
        tables[split] = _not_empty(_with_labels(tables[split], text_columns, label_column, head, bad))
    for column in token_columns if "train" in tables else ():
        tables["train"] = _not_empty(tables["train"].checked(column.name, numbers_problem(column), bad))
    splits = {
        split: _columns(table, text_columns, label_column if split in labelled else None, head)
        for split, table in tables.items()
    }
    if token_columns and "train" in tables:
        splits["train"] |= {column.name: read_numbers(tables["train"], column) for column in token_columns}
        splits["train"]["place"] = tables["train"].places
    if shift_column is not None and "train" in tables:
        splits["train"][SHIFT_VALUES] = [str(value) for value in tables["train"].column(shift_column)]
    files = ", ".join(str(table.path) for table in tables.values())
    task = files_task(text_columns, head)
    data = {split: Dataset.from_dict(columns) for split, columns in splits.items()}
    return TaskData(task, data, files, tuple(bad.skipped))


# Column of the training rows by which some are held out.
SHIFT_VALUES = "shift_values"


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file.

    Attributes:
        columns: As in ``TaskData.splits``.
        table: The same rows, with all columns of the file.
        unknown_names: As in ``Task``, of this chunk and those before.
    """

    columns: dict[str, list[Any]]
    table: Table
    unknown_names: tuple[str, ...]


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
    """Read a file of any length for an existing model, in chunks.

    Args:
        file: As in :func:`read_chunks`.
        text_columns: As for :func:`load_files`.
        head: Head of the model.
        label_column: Column of the labels; by default, labels are not read.
        size: Number of rows in a chunk.
        bad: As in :func:`read_chunks`.
        format: As in :func:`read_chunks`.

    Yields:
        Chunks of at most ``size`` valid rows.

    Raises:
        AttendropError: As :func:`load_files` says.
    """
    text_columns = tuple(text_columns)
    _check_names(text_columns, label_column, ())
    _check_inputs(text_columns, (), head)
    for table in read_chunks(file, size, bad, format=format):
        table = _with_texts(table, text_columns, head, bad)
        if label_column is not None:
            table = table.checked(label_column, head.value_problem, bad)
            if bad.keeps_unknown:
                head = head.with_unknown(table.column(label_column))
            table = _with_labels(table, text_columns, label_column, head, bad)
        if table.rows:
            yield Chunk(_columns(table, text_columns, label_column, head), table, head.unknown_names)


def files_task(text_columns: Sequence[str], head: Head) -> Task:
    """Make the task of custom files.

    Args:
        text_columns: As for :func:`load_files`.
        head: The head, with its classes.
    """
    metric, *others = head.default_metrics
    columns = tuple(text_columns)
    names, unknown = head.label_names, head.unknown_names
    return Task(
        *("files", head.kind, columns, names, metric, "own files", tuple(others)),
        options=head.options(),
        unknown_names=unknown,
    )


def _check_names(text_columns: tuple[str, ...], label_column: str | None, token_columns: Sequence[TokenColumn]) -> None:
    labels = [label_column] if label_column is not None else []
    named = [*text_columns, *labels, *(column.name for column in token_columns)]
    repeated = [name for name in named if named.count(name) > 1]
    if repeated:
        raise AttendropError(f"the column {repeated[0]!r} is given twice; text, label and token columns must differ.")


def _check_inputs(
    text_columns: tuple[str, ...], token_columns: Sequence[TokenColumn], reader: Head | type[Head]
) -> None:
    least, most = reader.least_inputs, reader.most_inputs
    if not least <= len(text_columns) <= most:
        wanted = str(least) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"
        given = f"{counted(len(text_columns), 'text column')} {'is' if len(text_columns) == 1 else 'are'} given"
        raise AttendropError(f"{given}; give {wanted}.")
    for column in token_columns:
        if column.name in reader.inputs:
            raise AttendropError(f"the name of the column {column.name!r} is reserved; rename it.")


def _value_problem(reader: Head | type[Head], joined: str | None, value: Any) -> str | None:
    """Describe what is wrong with a label, and what else an empty one may mean where some labels join others."""
    found = reader.value_problem(value)
    return found if found is None or joined is None else f"{found}; {joined}"


def _with_labels(
    table: Table, text_columns: tuple[str, ...], label_column: str | None, head: Head, bad: BadRows
) -> Table:
    """Keep the rows whose labels the head can read, and which fit their texts; the label of no column is None."""
    columns = (*text_columns, *([] if label_column is None else [label_column]))

    def problem(row: list[Any]) -> str | None:
        texts, labels = row[: len(text_columns)], row[len(text_columns) :]
        return head.row_problem(head.read_texts(texts), labels[0] if labels else None)

    if label_column is not None:
        table = table.checked(label_column, head.label_problem, bad)
    return table.checked_rows(columns, problem, bad)


def _with_texts(table: Table, text_columns: tuple[str, ...], reader: Head | type[Head], bad: BadRows) -> Table:
    table = reader.located(table, text_columns)
    for number, name in enumerate(text_columns):
        table = table.checked(name, partial(reader.text_problem, column=number), bad)
    return table.checked_rows(text_columns, reader.texts_problem, bad)


def _not_empty(table: Table) -> Table:
    if not table.rows:
        raise AttendropError(f"{table.path} has no valid row: all were skipped.")
    return table


def _columns(table: Table, text_columns: tuple[str, ...], label_column: str | None, head: Head) -> dict[str, list[Any]]:
    """Make the columns of a data set from a table of valid rows."""
    texts = zip(*(table.column(name) for name in text_columns), strict=True)
    read = [head.read_texts(row) for row in texts]
    columns = {name: [row[place] for row in read] for place, name in enumerate(head.inputs_of(len(text_columns)))}
    columns["index"] = table.index
    if label_column is not None:
        columns["label"] = head.read_labels(table.column(label_column))
    return columns
