"""Choices of a question, and labels that name the correct one, as they are written in files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from attendrop.tasks.label_column import number_form, written
from attendrop.tasks.word_lists import json_list

# The letters of choices, of which a question has no more than these.
LETTERS = ascii_uppercase


def listed(value: Any) -> list[Any] | None:
    """Return a list of choices, also as JSON; None for anything else."""
    return value if isinstance(value, list) else json_list(value) if isinstance(value, str) else None


def read_choices(values: Sequence[Any]) -> list[str]:
    """Return the choices in one column, as a list, or in several, of which the last ones may be empty."""
    found = listed(values[0]) if len(values) == 1 else None
    choices = ["" if _is_missing(value) else str(value).strip() for value in (values if found is None else found)]
    while found is None and choices and not choices[-1]:
        choices.pop()
    return choices


def is_letter(label: Any) -> bool:
    """Tell whether a label is the letter of a choice."""
    return len(written(label)) == 1 and written(label).upper() in LETTERS


def choice_number(label: Any) -> int | None:
    """Return the number of a choice from 0, given its letter or that number; None for anything else."""
    text = written(label)
    if is_letter(label):
        return LETTERS.index(text.upper())
    number = int(float(text)) if number_form(text) == "whole" else -1
    return number if number >= 0 else None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
