"""Values in files: texts, numbers, classes, lists and choices, as they are written, and what is wrong with them."""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError

if TYPE_CHECKING:
    from attendrop.tasks.table import Table

# Longer ones cannot be read as integers or floating-point numbers.
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}(\.0*)?")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Decimal commas, separators of thousands, percent signs.
_THOUSANDS = r"[0-9]{1,3}(([,.' \u00a0\u202f])[0-9]{3}(\3[0-9]{3})*)([.,][0-9]+)?"
_NOTATION = re.compile(rf"[+-]?([0-9]*[.,]?[0-9]+|{_THOUSANDS})\s?%?")
_HOW_TO_WRITE = "write numbers with a decimal point, and without percent signs and separators of thousands, such as 0.5"
# Texts that often stand for a label that is not there.
_MISSING = {"n/a", "#n/a", "na", "<na>", "none", "null", "(null)", "[null]", "\\n", "nil", "-", "--", "?"}
_BLANK = _MISSING | {"", "nan", "nat"}
# How a column for each label says whether a row has it.
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# What may be between the labels of a row that has several.
LABEL_SEPARATORS = re.compile(r"[;|,]")
_TOO_LARGE = 1e18  # its square, a loss, is near the largest number of float32
_SHOWN = 3
# An array of texts, as NumPy prints one: without commas between them.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_ARRAY = re.compile(rf"\[\s*(?:{_QUOTED.pattern})(?:\s+(?:{_QUOTED.pattern}))*\s*\]")
_OF_TEXTS = re.compile(r"""\[\s*["'].*["']\s*\]""", re.DOTALL)
# Letters of scripts without spaces between words: Chinese and Japanese; Thai, Lao, Burmese and Khmer.
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LONG_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD_LIKE = re.compile(rf"[{UNSPACED}]{{1,2}}|[{_LONG_UNSPACED}]{{1,6}}|[^\s{UNSPACED}{_LONG_UNSPACED}]+")
# The letters of choices, of which a question has no more than these.
LETTERS = ascii_uppercase

# Any value -----------------------------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def may_be_missing(text: str) -> bool:
    """Return whether a text is blank, or a word for what is not there, such as "n/a" or "nan"."""
    return text.strip().casefold() in _BLANK


def written(value: Any) -> str:
    """Return the text of a label, without surrounding spaces; empty for a missing one."""
    return "" if is_missing(value) else str(value).strip()


def plain(text: str) -> str:
    """Return a text without differences of case, spaces and Unicode forms of the same letters."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def count_words(text: str) -> int:
    """Count the words of a text; where a script has no spaces, as many letters are one as an average word has."""
    return len(text.split() if text.isascii() else _WORD_LIKE.findall(text))


def text_problem(value: Any) -> str | None:
    """Describe what is wrong with a text, or return None. The string "NaN" is a text; a missing number is not."""
    if isinstance(value, str):
        return "the text is empty" if not value or value.isspace() else None
    if value is None:
        return "the text is empty"
    return "the text is NaN" if is_missing(value) else f"{value!r} is not text"


def value_problem(value: Any) -> str | None:
    """Describe what is wrong with a label, either a class or a number, or return None."""
    text = "" if value is None else str(value).strip()
    if not text or text.lower() == "nan":
        return "the label is NaN" if text else "the label is empty"
    return None if isinstance(value, str | int | float) else f"{value!r} is neither a class nor a number"


# Numbers and classes -------------------------------------------------------------------------------------------------


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


def number_problem(value: Any) -> str | None:
    """Describe what is wrong with a number to predict, or return None."""
    number = written(value)
    if number_form(number) in ("whole", "decimal") and math.isfinite(float(number)):
        if abs(float(number)) < _TOO_LARGE:
            return None
        return f"the label {number!r} is too large to train on; scale the numbers, best to about 1"
    hint = f"; {_HOW_TO_WRITE}" if number_form(number) == "notation" else ""
    return f"the label {number!r} is not a finite number{hint}"


def class_name(value: Any) -> str:
    """Return the class name of a label: ``1.0``, which pandas writes for integers in a column with gaps, is ``1``."""
    name = written(value)
    return str(int(name.partition(".")[0])) if "." in name and number_form(name) == "whole" else name


def pointed(number: str) -> str:
    """Return a number with a decimal point where it has a decimal comma."""
    return number if "." in number else number.replace(",", ".")


def yes_or_no(value: Any) -> bool | None:
    """Read a value that says whether a row has a label, such as ``1`` or ``false``; None of others."""
    text = str(value).strip().lower()
    return _YES_NO.get(text.split(".")[0] if number_form(text) == "whole" else text)


def are_numbers(tables: Mapping[str, Table], column: str) -> bool:
    """Return whether the labels are numbers with decimal fractions; warn of text that may be none, or a number.

    Raises:
        AttendropError: Numbers are mixed with text, or in a notation that is not read.
    """
    labels: dict[str, dict[str, str]] = {form: {} for form in ("whole", "decimal", "notation", "text")}
    seen = set[str]()
    for table in tables.values():
        for place, label in zip(table.places, map(written, table.column(column)), strict=True):
            if label not in seen:
                seen.add(label)
                labels[number_form(label)][label] = f"{label!r} ({table.path}, {place})"
    numeric, unread, text = labels["whole"] | labels["decimal"], labels["notation"], labels["text"]
    missing = {label: shown for label, shown in text.items() if label.casefold() in _MISSING}

    def some(labels: Mapping[str, str], count: int = _SHOWN) -> str:
        return f"column {column!r}: the labels {', '.join(islice(labels.values(), count))}"

    if unread and len(missing) == len(text):
        raise AttendropError(
            f"{some(unread)} look like numbers, but are not read as such; {_HOW_TO_WRITE}, or set --label-type class "
            "if they are classes."
        )
    if numeric and text:
        raise AttendropError(
            f"column {column!r}: the labels mix numbers, such as {next(iter(numeric.values()))}, with text, such as "
            f"{next(iter(text.values()))}; correct them, or set --label-type class if they are classes, or "
            "--label-type number with --skip-bad-rows to leave out what is not a number."
        )
    if unread:
        warnings.warn(
            f"{some(unread)} look like numbers, but are read as classes; {_HOW_TO_WRITE}, or set --label-type class "
            "if they are classes.",
            stacklevel=2,
        )
    if named := (numeric | unread | text).get(column):
        warnings.warn(
            f"column {column!r}: the label {named} is also the name of the column; if the file has no header, give it "
            "one, for its first row is read as such; if the header is repeated, delete it there.",
            stacklevel=2,
        )
    if missing:
        warnings.warn(
            f"{some(missing)} are read as classes; if they stand for missing labels, delete these rows, or empty the "
            "labels and add --skip-bad-rows; otherwise set --label-type class.",
            stacklevel=2,
        )
    return bool(labels["decimal"])


# Several labels, words and tags, choices -----------------------------------------------------------------------------


def joined_labels(labels: Iterable[Any]) -> str | None:
    """Describe a label that is others joined by a separator, such as ``urgent|vip``; None if there is none."""
    names = {label.strip(): None for label in dict.fromkeys(each for each in labels if isinstance(each, str))}
    for name in names:
        parts = [part.strip() for part in LABEL_SEPARATORS.split(name)]
        if len(parts) > 1 and all(part and part in names for part in parts):
            return f"{name!r} joins other labels: if rows have several labels, or none, set --label-type labels"
    return None


def listed(value: Any) -> list[Any] | None:
    """Return a list, also one in JSON, or as Python or NumPy print one, which pandas writes; None for anything else."""
    if not isinstance(value, str):
        return value if isinstance(value, list) else None
    text = value.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            if _ARRAY.fullmatch(text):  # of which Python would join the texts
                return [ast.literal_eval(quoted) for quoted in _QUOTED.findall(text)]
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return found if isinstance(found, list) else None


def label_names(value: Any) -> list[str]:
    """Return the names in a label of a file: a list, a list in JSON, or a text with separators; missing ones empty."""
    found = listed(value)
    if found is None:
        text = written(value)
        found = LABEL_SEPARATORS.split(text) if text else []
    return list(map(written, found))


def read_list(value: Any) -> list[str] | None:
    """Read words or tags, a missing one as an empty text; return None if a value is neither a list nor a text."""
    found = listed(value)
    if found is None:
        is_text = isinstance(value, str) and not _OF_TEXTS.fullmatch(value.strip())  # a list that is not whole
        return value.split() if is_text else None
    return ["" if item is None else str(item) for item in found]


def list_problem(items: list[str] | None, what: str) -> str | None:
    """Describe what is wrong with a list of words or tags, as of :func:`read_list`, or return None."""
    if not items:
        return f"there is no {what}; give a list of {what}s, or {what}s with spaces between them"
    empty = [number for number, item in enumerate(items, start=1) if not item.strip()]
    return f"{what} {empty[0]} of {len(items)} is empty" if empty else None


def read_choices(values: Sequence[Any]) -> list[str]:
    """Return the choices in one column, as a list, or in several, of which the last ones may be empty."""
    found = listed(values[0]) if len(values) == 1 else None
    choices = list(map(written, values if found is None else found))
    while found is None and choices and not choices[-1]:
        choices.pop()
    return choices


def is_letter(label: Any) -> bool:
    """Return whether a label is the letter of a choice."""
    return len(written(label)) == 1 and written(label).upper() in LETTERS


def choice_number(label: Any) -> int | None:
    """Return the number of a choice from 0, given its letter or that number; None for anything else."""
    text = written(label)
    if is_letter(label):
        return LETTERS.index(text.upper())
    number = int(float(text)) if number_form(text) == "whole" else -1
    return number if number >= 0 else None
