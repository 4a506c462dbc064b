"""Checks of label columns: missing values, numbers and text."""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.table import Table

_WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Decimal commas, separators of thousands, percent signs.
_THOUSANDS = r"[0-9]{1,3}(([,.' \u00a0\u202f])[0-9]{3}(\3[0-9]{3})*)([.,][0-9]+)?"
_NOTATION = re.compile(rf"[+-]?([0-9]*[.,]?[0-9]+|{_THOUSANDS})\s?%?")
_HOW_TO_WRITE = "write numbers with a decimal point, and without percent signs and separators of thousands, such as 0.5"
# Texts that often stand for a label that is not there.
_MISSING = {"n/a", "#n/a", "na", "<na>", "none", "null", "nil", "-", "--", "?"}
# What may be between the labels of a row that has several.
LABEL_SEPARATORS = re.compile(r"[;|,]")
_TOO_LARGE = 1e18  # its square, a loss, is near the largest number of float32
_SHOWN = 3


def text_problem(value: Any) -> str | None:
    """Describe what is wrong with a text, or return None. The string "NaN" is a text; a missing number is not."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "the text is empty"
    if isinstance(value, float) and math.isnan(value):
        return "the text is NaN"
    return None if isinstance(value, str) else f"{value!r} is not text"


def value_problem(value: Any) -> str | None:
    """Describe what is wrong with a label, either a class or a number, or return None."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "the label is empty"
    if written(value).lower() == "nan":
        return "the label is NaN"
    return None if isinstance(value, str | int | float) else f"{value!r} is neither a class nor a number"


def number_problem(value: Any) -> str | None:
    """Describe what is wrong with a number to predict, or return None."""
    number = written(value)
    if number_form(number) in ("whole", "decimal") and math.isfinite(float(number)):
        if abs(float(number)) < _TOO_LARGE:
            return None
        return f"the label {number!r} is too large to train on; scale the numbers, best to about 1"
    hint = f"; {_HOW_TO_WRITE}" if number_form(number) == "notation" else ""
    return f"the label {number!r} is not a finite number{hint}"


def written(value: Any) -> str:
    """Return the text of a label, without surrounding spaces."""
    return str(value).strip()


def joined_labels(labels: Iterable[Any]) -> str | None:
    """Describe a label that is others joined by a separator, such as ``urgent|vip``; None if there is none."""
    names = dict.fromkeys(written(label) for label in labels if isinstance(label, str) and label.strip())
    for name in names:
        parts = [part.strip() for part in LABEL_SEPARATORS.split(name)]
        if len(parts) > 1 and all(part in names for part in parts):
            return f"{name!r} joins other labels: if rows have several labels, or none, set --label-type labels"
    return None


def number_form(label: str) -> str:
    """Return the form of a label: "whole", "decimal", "notation" or "text".

    Whole numbers may end with ``.0``; "decimal" are other numbers; "notation" is what looks like a number, but is not
    read as one, such as ``0,5`` or ``10%``.
    """
    if _WHOLE.fullmatch(label):
        return "whole"
    if _DECIMAL.fullmatch(label):
        return "decimal"
    return "notation" if _NOTATION.fullmatch(label) else "text"


def are_numbers(tables: Mapping[str, Table], column: str) -> bool:
    """Tell whether the labels are numbers with decimal fractions; warn of text that may be none, or a number.

    Raises:
        AttendropError: Numbers are mixed with text, or in a notation that is not read.
    """
    labels: dict[str, dict[str, str]] = {form: {} for form in ("whole", "decimal", "notation", "text")}
    for label, place in _labels(tables, column):
        labels[number_form(label)].setdefault(label, f"{label!r} ({place})")
    numeric, unread, text = labels["whole"] | labels["decimal"], labels["notation"], labels["text"]
    missing = {label: shown for label, shown in text.items() if label.casefold() in _MISSING}
    if unread and len(missing) == len(text):
        raise AttendropError(
            f"column {column!r}: the labels {_examples(unread)} look like numbers, but are not read as such; "
            f"{_HOW_TO_WRITE}, or set --label-type class if they are classes."
        )
    if numeric and text:
        raise AttendropError(
            f"column {column!r}: the labels mix numbers, such as {_examples(numeric, 1)}, with text, such as "
            f"{_examples(text, 1)}; correct them, or set --label-type class if they are classes, or --label-type "
            "number with --skip-bad-rows to leave out what is no number."
        )
    if unread:
        warnings.warn(
            f"column {column!r}: the labels {_examples(unread)} look like numbers, but are read as classes; "
            f"{_HOW_TO_WRITE}, or set --label-type class if they are classes.",
            stacklevel=2,
        )
    if missing:
        warnings.warn(
            f"column {column!r}: the labels {_examples(missing)} are read as classes; if they stand for missing "
            "labels, delete these rows, or empty the labels and add --skip-bad-rows; otherwise set --label-type class.",
            stacklevel=2,
        )
    return bool(labels["decimal"])


def _labels(tables: Mapping[str, Table], column: str) -> Iterator[tuple[str, str]]:
    """Yield the labels with their places."""
    for table in tables.values():
        for place, value in zip(table.places, table.column(column), strict=True):
            yield written(value), f"{table.path}, {place}"


def _examples(labels: Mapping[str, str], count: int = _SHOWN) -> str:
    """Show the first labels, each with its place."""
    return ", ".join(islice(labels.values(), count))
