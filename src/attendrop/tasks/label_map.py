"""Labels of files before a head reads them: in a column each, maps that merge variants, decimal commas."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.support.files import check_output, write_text
from attendrop.tasks.heads.builtin import NUMBER, SEVERAL_CLASSES
from attendrop.tasks.table import BadRows, Table
from attendrop.tasks.table_files import read_table
from attendrop.tasks.values import (
    LABEL_SEPARATORS,
    class_name,
    is_missing,
    json_list,
    label_names,
    may_be_missing,
    number_form,
    plain,
    pointed,
    written,
    yes_or_no,
)
from attendrop.wording import names_of

LABEL, MEANING = "label", "meaning"
# Spaces, which are all blanks in a plain text, and letters without a shape, such as a soft hyphen.
_UNSEEN = ("Zs", "Cf")
# How much rarer a misspelling is, at least.
_TIMES_RARER = 4
# Labels that are compared; more are hardly classes, and comparing takes the square of their number.
_MOST_LABELS = 300
# Labels that a message names.
_SHOWN = 5


def read_label_map(path: str | Path) -> dict[str, str]:
    """Read a file with the columns ``label`` and ``meaning``, or with two others in this order.

    Raises:
        AttendropError: The file cannot be read, or a label has two meanings.
    """
    table = read_table(path)
    names = [LABEL, MEANING] if {LABEL, MEANING} <= set(table.columns) else table.columns[:2]
    if len(names) < 2:
        raise AttendropError(f"the label map {path} has one column; give it two, {LABEL} and {MEANING}.")
    meanings: dict[str, str] = {}
    for place, row in zip(table.places, table.values(names), strict=True):
        label, meaning = map(_text, row)
        if meanings.setdefault(label, meaning) != meaning:
            known = meanings[label]
            raise AttendropError(f"{path}, {place}: {label!r} means {known!r} and {meaning!r}; delete one of them.")
    return meanings


def check_map(path: str | Path, meanings: Mapping[str, str], table: Table, column: str | None) -> None:
    """Raise AttendropError if a map, read from a path, has none of the labels in a column of a table."""
    names = label_columns(table.columns, column)
    values = names if len(names) > 1 else table.column(names[0]) if names else []
    found = {written(value) for value in values if not is_missing(value)}
    found |= {name for value in values for name in label_names(value)} | set(map(class_name, found))
    if found and not found & meanings.keys():
        shown = names_of(sorted(found)[:_SHOWN])
        raise AttendropError(
            f"the label map {path} has none of the labels of {table.path}, column {column!r}, such as {shown}; correct "
            f"its column {LABEL!r}, or omit it."
        )


def write_label_map(
    path: str | Path, counts: Mapping[str, int], inputs: Iterable[str | Path] = (), *, overwrite: bool = False
) -> None:
    """Write a draft of a label map, to be corrected: each label, its likely meaning, and its rows, of ``counts``.

    Raises:
        AttendropError: The file exists and may not be replaced, which ``inputs`` never are.
    """
    check_output(path, inputs, overwrite=overwrite)
    meanings = {label: group[0] for group in label_variants(counts) for label in group}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((LABEL, MEANING, "rows"))
    rows.writerows((label, meanings.get(label, label), count) for label, count in counts.items())
    write_text(Path(path), text.getvalue())


def label_variants(counts: Mapping[str, int]) -> list[list[str]]:
    """Group labels that may be the same: they differ in case, spaces and punctuation, or by a misspelling.

    A misspelling is much rarer than the label that it stands for; ``counts`` has the rows of each label. Groups have
    two labels or more, the most frequent first.
    """
    groups: list[list[str]] = []
    for label in sorted(counts, key=lambda each: -counts[each])[:_MOST_LABELS]:
        own = _plain(label)
        for group in groups:
            main = _plain(group[0])
            rare = _TIMES_RARER * counts[label] <= counts[group[0]]
            if (main == own and own) or (rare and _misspelt(own, main)):
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]


def _plain(label: str) -> str:
    """Return what two spellings of a label share. Signs of -1, C++ or <=50K, and points of numbers, stay."""
    text = "".join(letter for letter in plain(label).replace("_", " ") if unicodedata.category(letter) not in _UNSEEN)
    if any(letter.isdigit() for letter in text):
        return text
    return re.sub(r"(?<=\w)[-.,/'’\"()]+(?=\w)", "", text.strip(".,;:'’\"()"))


def _misspelt(first: str, second: str) -> bool:
    """Return whether two labels differ in one letter, or two if they are long; other digits are no misspelling."""
    if min(len(first), len(second)) < 4 or first.endswith(second) or second.endswith(first):
        return False  # "entailment" and "not entailment"
    digits = [[letter for letter in label if letter.isdigit()] for label in (first, second)]
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    length = len(first) + len(second)
    least = 1 - (2 if length < 20 else 4) / length  # a letter that is replaced is missing in both
    return digits[0] == digits[1] and matcher.real_quick_ratio() >= least and matcher.ratio() >= least


def label_columns(columns: Sequence[str], label_column: str | None) -> list[str]:
    """Return the columns of the labels: the one that is named, or several, comma-separated, with a label each."""
    if label_column is None:
        return []
    parts = [part.strip() for part in label_column.split(",")]
    known = sum(part in columns for part in parts)
    return parts if known == len(parts) or (known and label_column not in columns) else [label_column]


def as_meant(
    table: Table, column: str | None, meanings: Mapping[str, str], label_type: str, bad: BadRows | None = None
) -> Table:
    """Return the table with its labels, in a column that it may lack, replaced by what they mean.

    Several columns, see :func:`label_columns`, become an additional one with a list of the labels that a row has; a row
    with other values than yes or no is reported to ``bad``. Labels that ``meanings`` lacks are kept. A value may hold
    several labels if the label type is in ``SEVERAL_CLASSES``. If labels are numbers, by a type in ``NUMBER`` or all of
    them with "auto" but for missing ones, ``0,5`` is 0.5 in a file separated by semicolons, as spreadsheets write it.
    """
    if column not in table.columns and len(names := label_columns(table.columns, column)) > 1:
        table.values(names)  # raises if one is missing
        for name in names:
            table = table.checked(name, _yes_or_no_problem, bad or BadRows())
        marked = [[n for n, value in zip(names, row, strict=True) if yes_or_no(value)] for row in table.values(names)]
        table = table.with_column(str(column), marked)
    if column is None or column not in table.columns:
        return table
    if meanings:
        table = table.mapped(column, partial(_meaning, meanings, label_type in SEVERAL_CLASSES))
    numbers = label_type in NUMBER or (label_type == "auto" and all(map(_may_be_number, table.column(column))))
    if table.delimiter == ";" and numbers:
        table = table.mapped(column, lambda value: pointed(value) if _is_number(value) else value)
    return table


def _yes_or_no_problem(value: Any) -> str | None:
    if yes_or_no(value) is not None:
        return None
    return f"{value!r} does not say whether the row has this label; write 0 or 1"


def _meaning(meanings: Mapping[str, str], several: bool, value: Any) -> Any:
    if isinstance(value, list):
        return [_meaning(meanings, False, each) for each in value]
    for label in (text := _text(value), class_name(text)):  # drafts have 1 for 1.0
        if label in meanings:
            return meanings[label]
    if isinstance(value, str) and (found := json_list(value)) is not None:
        return [_meaning(meanings, False, each) for each in found]
    if several and isinstance(value, str) and (listed := labels_in(value)):
        return [meanings.get(label, label) for label in listed]
    return value


def labels_in(value: str) -> list[str]:
    """Return the labels of a row that may have several, as JSON or with separators between them."""
    listed = json_list(value)
    return [label for each in (LABEL_SEPARATORS.split(value) if listed is None else listed) if (label := _text(each))]


def _is_number(value: Any) -> bool:
    return not str(value).strip() or number_form(pointed(str(value)).strip()) in ("whole", "decimal")


def _may_be_number(value: Any) -> bool:
    return _is_number(value) or may_be_missing(str(value))


def _text(value: Any) -> str:
    return "" if is_missing(value) else written(value)


def label_counts(values: Iterable[Any], *, several: bool) -> dict[str, int]:
    """Count labels, the most frequent first; with ``several``, a value may be a list, or hold several labels."""
    counts: Counter[str] = Counter()
    for value in values:
        listed = value if isinstance(value, list) else [value]
        if several and isinstance(value, str):
            listed = labels_in(value)
        counts.update(label for each in listed if (label := _text(each)))
    return dict(counts.most_common())
