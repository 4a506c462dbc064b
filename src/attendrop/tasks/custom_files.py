"""Loading of custom files as a task: text columns, type of the labels, checks."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from datasets import Dataset

from attendrop.errors import AttendropError, check_known
from attendrop.tasks.base import OTHERS, TASK_TYPES, Task, TaskData
from attendrop.tasks.entities import as_iob2
from attendrop.tasks.inspection import as_meant, inspect_files, read_label_map, tells_label
from attendrop.tasks.splits import GROUP
from attendrop.tasks.table import (
    INPUTS,
    LABEL_TYPES,
    LABELS,
    WRONG,
    BadRows,
    Table,
    class_name,
    is_missing,
    may_be_missing,
    number_form,
    read_chunks,
    read_once,
)
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.classification import Classification
from attendrop.wording import counted

# Column of the training rows by whose values some are held out.
OOD_VALUES = "shift_values"


def load_files(
    *,
    train_file: str | Path,
    eval_file: str | Path | None = None,
    text_columns: Sequence[str],
    label_column: str | None = None,
    label_type: str = "auto",
    label_map: str | Path | None = None,
    skip_bad_rows: bool = False,
    unknown_labels: str | None = None,
    ood_column: str | None = None,
    group_column: str | None = None,
    with_columns: Sequence[str] | None = None,
) -> TaskData:
    """Load custom files, of a format that :func:`read_chunks` reads, as the splits "train" and "dev".

    The index of a row is its number in the file, from 0.

    Args:
        train_file: File of the split "train".
        eval_file: File of the split "dev".
        text_columns: One or two; for multiple choice, the question and the choices, in one column or several.
        label_column: Required. Several, comma-separated: a column of zeros and ones for each label that a row may have.
        label_type: One of ``LABEL_TYPES`` of :mod:`attendrop.tasks.table`. With "auto", that of
            :func:`attendrop.tasks.inspection.label_type_of`. Numbers in other notations (``10%``, ``1,000``) are
            refused unless classes are asked for, and so are labels that
            :func:`attendrop.tasks.inspection.check_form` recognises. Choices are never guessed.
        label_map: File that says what labels mean, see :func:`attendrop.tasks.inspection.read_label_map`.
        skip_bad_rows: Skip invalid rows and list them in ``skipped`` of the result. By default, the first raises.
        unknown_labels: ``"wrong"``: classes and tags of the evaluation file that training lacks count as wrong; the
            task has them as ``unknown_names``. ``"error"``, the default: such rows are invalid.
        ood_column: Column of the training file whose values "train" keeps as text, as :data:`OOD_VALUES`.
        group_column: Column, of all files, whose values all splits keep as text, as
            :data:`attendrop.tasks.splits.GROUP`: rows with the same value belong together.
        with_columns: Columns, of all files, that all splits keep as one text, ``channel: mail | ``, to be read in front
            of the first text, as :data:`attendrop.tasks.base.OTHERS`.

    Raises:
        AttendropError: :func:`read_chunks` or :func:`check_form` refuses a file; a column is missing; a text or a label
            is empty or NaN; numbers are mixed with text; a label does not occur in training; it is not clear whether
            labels are classes; the training data have a single class; or all rows of a file are of one group.
    """
    bad = BadRows(skip=skip_bad_rows, unknown_labels=unknown_labels)
    known = f"it is one of {', '.join(LABEL_TYPES)}"
    check_known(label_type, LABEL_TYPES, f"there is no label type {label_type!r}", known)
    if label_column is None:
        raise AttendropError("no label column is given; training and evaluation need one.")
    columns: dict[str, Any] = {"text_columns": text_columns, "label_column": label_column}
    found = inspect_files(train_file, eval_file, label_type=label_type, label_map=label_map, bad=bad, **columns)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    if found.unclear:
        raise AttendropError(found.unclear)
    kind = next(each for each in TASK_TYPES if each.label_type == found.label_type)
    _check_columns(kind, text_columns, label_column, with_columns or ())
    tables = {"train": found.table} if found.evaluated is None else {"train": found.table, "dev": found.evaluated}
    for split, table in tables.items():
        others = [*(with_columns or ()), *filter(None, (group_column, ood_column if split == "train" else None))]
        read = table.read(others, lambda *_: None, bad).read(text_columns, kind.read_inputs, bad, INPUTS)
        tables[split] = _not_empty(read.read([label_column], kind.read_names, bad))
    task_type = kind.from_labels(tables["train"], label_column)
    if bad.unknown_labels == WRONG and "dev" in tables:
        task_type = task_type.with_unknown(tables["dev"].column(label_column))
    splits = {}
    for split, table in tables.items():
        read = tables[split] = _not_empty(table.read([label_column, INPUTS], task_type.read_label, bad, LABELS))
        splits[split] = _columns(read, task_type, text_columns, with_columns or ())
        for name in with_columns or ():
            if split == "train" and tells_label(read.column(name), read.column(LABELS)):
                warnings.warn(
                    f"each value of {name!r} in {read.path} is of one label: if it is the label in other words, a "
                    "model learns nothing else; leave it out of with-columns.",
                    stacklevel=2,
                )
        if group_column is not None:
            names = map(class_name, read.column(group_column))
            splits[split][GROUP] = values = ["" if may_be_missing(name) else name for name in names]
            counts, where = Counter(filter(None, values)), f"group-column '{group_column}' of {read.path}"
            if len(counts) == 1 and len(values) == counts.total():
                raise AttendropError(f"{where} has a single value, {values[0]!r}; name another.")
            if max(counts.values(), default=1) == 1:  # an empty value is no group
                warnings.warn(f"{where} has no value twice: no rows are grouped.", stacklevel=2)
    if group_column is not None and "dev" in splits:
        trained_on = set(filter(None, splits["train"][GROUP]))
        if number := sum(value in trained_on for value in splits["dev"][GROUP]):
            warnings.warn(
                f"{number} of {counted(len(tables['dev']), 'row')} of {eval_file} are of a group that training rows "
                f"are of, by {group_column!r}: scores and intervals are not those of new groups.",
                stacklevel=2,
            )
    if ood_column is not None:
        splits["train"][OOD_VALUES] = ["" if is_missing(v) else str(v) for v in tables["train"].column(ood_column)]
    grouped, looks_grouped = [each for each in found.group_columns if each.name not in (with_columns or ())], ""
    if grouped and group_column is None:
        looks_grouped = (
            f"Column {grouped[0].name!r} has {grouped[0].distinct} values in {len(found.table)} rows: if the rows of "
            "one belong together, intervals over examples are too narrow, and held-out rows too easy; --group-column "
            f"{quote(grouped[0].name)} takes them together."
        )
    files = ", ".join(str(table.path) for table in tables.values())
    data = {split: Dataset.from_dict(columns) for split, columns in splits.items()}
    read_once.cache_clear()  # columns were guessed, and files checked, before
    return TaskData(files_task(text_columns, task_type), data, files, tuple(bad.skipped), looks_grouped)


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file, or of a data set."""

    columns: dict[str, list[Any]]  # as in ``TaskData.splits``
    table: Table | None = None  # the same rows, with all columns of the file
    unknown_names: tuple[str, ...] = ()  # as in ``TaskType``, of this chunk and those before


def stream_file(
    file: str | Path,
    *,
    text_columns: Sequence[str],
    task_type: TaskType,
    label_column: str | None = None,
    label_map: str | Path | None = None,
    with_columns: Sequence[str] | None = None,
    size: int,
    bad: BadRows,
    format: str | None = None,
) -> Iterator[Chunk]:
    """Read a file of any length for an existing model, in chunks of at most ``size`` valid rows.

    Arguments and errors are those of :func:`read_chunks` and of :func:`load_files`; without a label column, labels are
    not read.
    """
    _check_columns(task_type, text_columns, label_column, with_columns or ())
    meanings = {} if label_map is None else read_label_map(label_map)
    label_type = task_type.label_type
    if isinstance(task_type, Classification) and {*map(number_form, task_type.label_names)} <= {"whole", "decimal"}:
        label_type = "auto"  # decimal commas are read as in training
    for table in read_chunks(file, size, bad, format=format):
        table = as_meant(table, label_column, meanings, label_type, bad)
        if label_type == "tags":
            (table,) = as_iob2([table], label_column, task_type.label_names)
        table = table.with_absent(with_columns or ()).read(with_columns or (), lambda *_: None, bad)
        table = table.read(text_columns, task_type.read_inputs, bad, INPUTS)
        if label_column is not None:
            table = table.read([label_column], task_type.read_names, bad)
            if bad.unknown_labels == WRONG:
                task_type = task_type.with_unknown(table.column(label_column))
            table = table.read([label_column, INPUTS], task_type.read_label, bad, LABELS)
        if len(table):
            columns = _columns(table, task_type, text_columns, with_columns or ())
            if with_columns:
                columns["text"] = [others + text for others, text in zip(columns[OTHERS], columns["text"], strict=True)]
            yield Chunk(columns, table, task_type.unknown_names)


def files_task(text_columns: Sequence[str], task_type: TaskType) -> Task:
    """Make the task of custom files, with the classes of a kind of task."""
    metric, *others = task_type.default_metrics
    return Task("files", task_type, tuple(text_columns), metric, "own files", tuple(others))


def _check_columns(
    reader: TaskType | type[TaskType], text_columns: Sequence[str], label_column: str | None, others: Sequence[str]
) -> None:
    labels = set() if label_column is None else {label_column, *map(str.strip, label_column.split(","))}
    named = [*text_columns, *others, *labels]
    if repeated := [name for name in (*text_columns, *others) if named.count(name) > 1]:
        raise AttendropError(f"the column {repeated[0]!r} is given twice; text, label and other columns must differ.")
    if others and reader.label_type not in ("class", "labels", "number"):
        raise AttendropError(f"with-columns is for classes, labels and numbers, and not for {reader.kind}; omit it.")
    least, most, given = reader.least_inputs, reader.most_inputs, len(text_columns)
    if not least <= given <= most:
        wanted = str(least) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"
        are = "is" if given == 1 else "are"
        raise AttendropError(f"{counted(given, 'text column')} {are} given; give {wanted}.")


def _columns(
    table: Table, task_type: TaskType, text_columns: Sequence[str], others: Sequence[str]
) -> dict[str, list[Any]]:
    """Make the columns of a data set from a table whose texts, and labels if there are any, were read.

    Of other columns, it has what they say in front of the text, ``channel: mail | priority: 2 | ``, without blanks. As
    in a class's name, ``2.0``, which pandas writes in a column with gaps, is ``2``; so it is in values of groups.
    """
    names, read = task_type.inputs_of(len(text_columns)), table.column(INPUTS)
    columns: dict[str, list[Any]] = {name: [row[place] for row in read] for place, name in enumerate(names)}
    columns["index"] = table.frame.index.tolist()
    if LABELS in table.frame.columns:
        columns["label"] = table.column(LABELS)
    if others:
        rows = [zip(others, map(class_name, values), strict=True) for values in table.values(others)]
        columns[OTHERS] = ["".join(f"{name}: {value} | " for name, value in row if value) for row in rows]
    return columns


def _not_empty(table: Table) -> Table:
    if not len(table):
        raise AttendropError(f"{table.path} has no valid row: all were skipped.")
    return table
