"""Checks of label columns: missing values, numbers and text."""

import math
import re
from collections.abc import Mapping
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.table import Table

_FORMS = ("whole", "decimal", "text")
_WHOLE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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
    good = number_form(number) != "text" and math.isfinite(float(number))
    return None if good else f"the label {number!r} is not a finite number"


def written(value: Any) -> str:
    """Return the text of a label, without surrounding spaces."""
    return str(value).strip()


def number_form(label: str) -> str:
    """Return the form of a label: "whole" (with or without ``.0``), "decimal" (other numbers) or "text"."""
    return "whole" if _WHOLE.fullmatch(label) else "decimal" if _DECIMAL.fullmatch(label) else "text"


def are_numbers(tables: Mapping[str, Table], column: str) -> bool:
    """Tell whether the labels are numbers with decimal fractions.

    Raises:
        AttendropError: Numbers are mixed with text.
    """
    first = {form: [found for table in tables.values() if (found := _first(table, column, form))] for form in _FORMS}
    numeric = first["whole"] + first["decimal"]
    if numeric and first["text"]:
        raise AttendropError(
            f"the labels mix numbers, such as {numeric[0]}, with text, such as {first['text'][0]}; correct them, "
            "or set the label type to 'class'."
        )
    return bool(first["decimal"])


def _first(table: Table, column: str, form: str) -> str | None:
    """Return the first label of a form, with its place, or None."""
    for place, value in zip(table.places, table.column(column), strict=True):
        if number_form(written(value)) == form:
            return f"{written(value)!r} ({table.path}, {place})"
    return None
