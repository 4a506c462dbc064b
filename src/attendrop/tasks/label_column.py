"""The labels of one's own files: whether they are classes or numbers, and which classes there are."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.base import did_you_mean
from attendrop.tasks.table_files import Table

LABEL_TYPES = ("auto", "class", "number")
_KINDS = ("whole", "decimal", "text")
_WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# More distinct labels than this are not taken for classes unasked, if they are whole numbers or look like ids.
_MANY_CLASSES = 30


def label_problem(value: Any) -> str | None:
    """What is wrong with a label whatever the task; None if nothing is."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "the label is empty"
    if _written(value).lower() == "nan":
        return "the label is NaN"
    return None if isinstance(value, str | int | float) else f"{value!r} is neither a class nor a number"


def number_problem(value: Any) -> str | None:
    """What is wrong with a label of regression; None if nothing is."""
    written = _written(value)
    good = _kind(written) != "text" and math.isfinite(float(written))
    return None if good else f"the label {written!r} is not a finite number"


def class_problem(names: Sequence[str]) -> Callable[[Any], str | None]:
    """A function that says what is wrong with a label of a task with these classes; None if nothing is."""
    ids = _ids(names)

    def problem(value: Any) -> str | None:
        if _class_name(value) in ids or _written(value) in ids:
            return None
        hint = did_you_mean(_written(value), names) or f"; the classes are {_shortened(names)}."
        return f"the label {_written(value)!r} is not among those of training{hint.removesuffix('.')}"

    return problem


def as_numbers(values: Sequence[Any]) -> list[float]:
    """Labels without a `number_problem`, as numbers."""
    return [float(_written(value)) for value in values]


def as_class_ids(values: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Labels without a `class_problem`, as positions in `names`."""
    ids = _ids(names)
    return [ids[written] if (written := _written(value)) in ids else ids[_class_name(value)] for value in values]


def find_classes(tables: Mapping[str, Table], column: str, label_type: str) -> list[str]:
    """The classes of the "train" table (else of "dev") in order; empty if the labels are numbers to predict.

    A whole number is one class however it is written, `1` or `1.0`. With "auto", labels are numbers to predict if one
    has a decimal fraction or an exponent, else classes.
    Raises AttendropError, with "auto", for numbers mixed with text and for labels that may well be no classes: more
    than 30 whole numbers, or more than 30 texts of which most stand in one row; and for training data of one class.
    """
    if label_type == "number":
        return []
    source = tables.get("train") or tables["dev"]
    values = source.column(column)
    names = sorted({_class_name(value) for value in values}, key=_class_order)
    if label_type == "auto":
        if _are_numbers(tables, column):
            return []
        _refuse_doubtful(source, column, names)
    if "train" in tables and len(names) < 2:
        raise AttendropError(f"{source.path} has only one class, {names[0]!r}; training needs at least two.")
    return names


def _are_numbers(tables: Mapping[str, Table], column: str) -> bool:
    """Whether the labels are numbers with decimal fractions; raises AttendropError if they are mixed with text."""
    first = {kind: [found for table in tables.values() if (found := _first(table, column, kind))] for kind in _KINDS}
    numeric = first["whole"] + first["decimal"]
    if numeric and first["text"]:
        raise AttendropError(
            f"the labels mix numbers, such as {numeric[0]}, with text, such as {first['text'][0]}; correct them, "
            "or say that they are classes (label type 'class')."
        )
    return bool(first["decimal"])


def _refuse_doubtful(source: Table, column: str, names: Sequence[str]) -> None:
    if len(names) <= _MANY_CLASSES:
        return
    where = f"{source.path}, column {column!r}"
    if all(_kind(name) == "whole" for name in names):
        raise AttendropError(
            f"{where}: {len(names)} different whole numbers may be classes, numbers to predict or ids; say which with "
            "--label-type class or --label-type number, or name another label column."
        )
    if len(names) > len(source.rows) / 2:
        raise AttendropError(
            f"{where}: {len(names)} different labels in {len(source.rows)} rows look like ids; name another label "
            "column, or say with --label-type class that they are classes."
        )


def _first(table: Table, column: str, wanted: str) -> str | None:
    """The first label of a kind, with its place, or None."""
    for place, value in zip(table.places, table.column(column), strict=True):
        if _kind(_written(value)) == wanted:
            return f"{_written(value)!r} ({table.path}, {place})"
    return None


def _written(value: Any) -> str:
    return str(value).strip()


def _class_name(value: Any) -> str:
    """The label as a class is called: `1.0`, which pandas writes where a column of integers has gaps, is `1`."""
    written = _written(value)
    whole = "." in written and _WHOLE.fullmatch(written)
    return str(int(written.partition(".")[0])) if whole else written


def _ids(names: Sequence[str]) -> dict[str, int]:
    return {_class_name(name): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}


def _kind(written: str) -> str:
    return "whole" if _WHOLE.fullmatch(written) else "decimal" if _DECIMAL.fullmatch(written) else "text"


def _class_order(name: str) -> tuple[bool, int, str]:
    whole = _kind(name) == "whole"
    return not whole, int(name) if whole else 0, name


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
