"""Rows of a file, by column; invalid ones raise an error, or are skipped and listed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError, check_choice, check_known
from attendrop.support.files import finite, write_bytes
from attendrop.wording import names_of

# What is done with labels of evaluation data that training lacks.
UNKNOWN_LABELS = (ERROR, WRONG) = ("error", "wrong")
COUNT_AS_WRONG = f"(--unknown-labels {WRONG} counts it as wrong)"
# Number of skipped rows that are named.
_SHOWN = 5


@dataclass(frozen=True)
class SkippedRow:
    """A row that was skipped."""

    file: str
    place: str  # where in the file it is, such as "line 7"
    reason: str
    row: Any  # values by column, or what could be read of a row that has no columns


class BadRows:
    """Collector of invalid rows.

    Args:
        skip: Keep invalid rows in ``skipped`` instead of raising an error for the first.
        unknown_labels: Whether labels that training lacks are invalid, ``"error"`` (default), or count as ``"wrong"``.

    Attributes:
        skipped: The invalid rows.
        left_out: These, and rows without any value, by their number in the file, from 0: they have no answer.
    """

    def __init__(self, *, skip: bool = False, unknown_labels: str | None = None) -> None:
        check_choice("unknown_labels", unknown_labels or ERROR, UNKNOWN_LABELS)
        self.skip = skip
        self.keeps_unknown = unknown_labels == WRONG
        self.skipped: list[SkippedRow] = []
        self.left_out: dict[int, SkippedRow] = {}

    def add(self, path: Path, place: str, index: int, problem: str, row: Any, column: str | None = None) -> None:
        """Report an invalid row, see :class:`SkippedRow`; a problem is a sentence without its full stop.

        Raises:
            AttendropError: Invalid rows are not skipped.
        """
        reason = f"column {column!r}: {problem}" if column is not None else problem
        if not self.skip:
            end = "" if reason.endswith("?") else "."  # after a suggestion
            separator = ", " if column is not None else ": "
            raise AttendropError(f"{path}, {place}{separator}{reason}{end} Correct it, or add --skip-bad-rows.")
        self.left_out[index] = SkippedRow(str(path), place, reason, row)
        self.skipped.append(self.left_out[index])

    def add_empty(self, path: Path, place: str, index: int) -> None:
        """Report a row without any value, such as a line of separators, which is not invalid."""
        self.left_out[index] = SkippedRow(str(path), place, "the row has no value", {})


def write_skipped(path: str | Path, skipped: Sequence[SkippedRow]) -> None:
    """Write skipped rows as JSON lines, in the order of each file: ``file``, ``place``, ``reason``, ``row``."""
    lines = [json.dumps(finite(asdict(row)), ensure_ascii=False, default=str) + "\n" for row in _in_order(skipped)]
    write_bytes(Path(path), "".join(lines).encode(errors="backslashreplace"))


def skipped_places(skipped: Sequence[SkippedRow]) -> str:
    """Return where the first skipped rows are: "train.csv: line 3, line 9; dev.csv: line 2, ..."."""
    places: dict[str, list[str]] = {}
    for row in _in_order(skipped)[:_SHOWN]:
        places.setdefault(row.file, []).append(row.place)
    shown = "; ".join(f"{file}: {', '.join(found)}" for file, found in places.items())
    return shown + (", ..." if len(skipped) > _SHOWN else "")


def _in_order(skipped: Sequence[SkippedRow]) -> list[SkippedRow]:
    files = list(dict.fromkeys(row.file for row in skipped))
    return sorted(skipped, key=lambda row: (files.index(row.file), int(row.place.split()[-1])))


_NUL_PROBLEM = "it has a NUL character, which no text has"


@dataclass(frozen=True)
class Table:
    """Rows of a file."""

    path: Path
    columns: list[str]
    rows: list[list[Any]]  # one value per column: strings in CSV and TSV, typed values in other formats
    places: list[str]  # "line 7" (with quoted line breaks, its first line) or, in Parquet, "row 7", from 1
    index: list[int]  # number of each row in the file, from 0, invalid rows included
    delimiter: str = ""  # separator of the columns in CSV and TSV files

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; raise AttendropError if there is none."""
        if name not in self.columns:  # naming columns takes longer than finding one
            listed = f"its columns are {names_of(self.columns)}"
            check_known(name, self.columns, f"{self.path} has no column {name!r}", listed)
        position = self.columns.index(name)
        return [row[position] for row in self.rows]

    def values(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the values of some columns, row by row; raise AttendropError if one is missing."""
        return list(zip(*map(self.column, names), strict=True))

    def mapped(self, column: str, function: Callable[[Any], Any]) -> Table:
        """Return the table with the values of a column replaced by those of a function."""
        values, at = map(function, self.column(column)), self.columns.index(column)
        rows = [[*row[:at], value, *row[at + 1 :]] for row, value in zip(self.rows, values, strict=True)]
        return replace(self, rows=rows)

    def with_column(self, name: str, values: Sequence[Any]) -> Table:
        """Return the table with another column, the last."""
        rows = [[*row, value] for row, value in zip(self.rows, values, strict=True)]
        return replace(self, columns=[*self.columns, name], rows=rows)

    def checked(self, column: str, problem_of: Callable[[Any], str | None], bad: BadRows) -> Table:
        """Return the table without rows where ``problem_of`` finds a problem in a column; report these to ``bad``."""
        problems = [_NUL_PROBLEM if _has_nul(value) else problem_of(value) for value in self.column(column)]
        return self._without(problems, bad, column)

    def checked_rows(
        self, columns: Sequence[str], problem_of: Callable[[Sequence[Any]], str | None], bad: BadRows
    ) -> Table:
        """Return the table without rows where ``problem_of`` finds that values of several columns do not fit."""
        return self._without(list(map(problem_of, self.values(columns))), bad, None)

    def _without(self, problems: Sequence[str | None], bad: BadRows, column: str | None) -> Table:
        for row, problem in enumerate(problems):
            if problem is not None:
                content = dict(zip(self.columns, self.rows[row], strict=True))
                bad.add(self.path, self.places[row], self.index[row], problem, content, column)
        good = [row for row, problem in enumerate(problems) if problem is None]
        return self if len(good) == len(problems) else self.only(good)

    def only(self, rows: Sequence[int]) -> Table:
        """Return the table with these of its rows, given by their place in it."""
        rows_of, places, index = ([values[row] for row in rows] for values in (self.rows, self.places, self.index))
        return replace(self, rows=rows_of, places=places, index=index)  # type: ignore[arg-type]


def _has_nul(value: Any) -> bool:
    """Return whether a text has a NUL character, or one in a list or an object."""
    if isinstance(value, list | dict):
        return any(map(_has_nul, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "\0" in value


def in_chunks(
    path: Path, columns: list[str], rows: Iterator[tuple[int, str, list[Any]]], size: int | None
) -> Iterator[Table]:
    """Yield tables of at most ``size`` rows, each given by its index, its place and its values."""
    while chunk := list(islice(rows, size)):
        index, places, values = map(list, zip(*chunk, strict=True))
        yield Table(path, columns, values, places, index)
