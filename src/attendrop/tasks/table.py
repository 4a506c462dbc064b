"""Rows of a file, by column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows

_NUL_PROBLEM = "it has a NUL character, which no text has"


@dataclass(frozen=True)
class Table:
    """Rows of a file.

    Attributes:
        path: The file.
        columns: The header.
        rows: One value per column: strings in CSV and TSV, typed values in other formats.
        places: Where each row is: "line 7" (with quoted line breaks, its first line) or, in Parquet, "row 7", from 1.
        index: Number of each row in the file, from 0, invalid rows included.
    """

    path: Path
    columns: list[str]
    rows: list[list[Any]]
    places: list[str]
    index: list[int]

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; raise AttendropError if there is none."""
        if name not in self.columns:
            hint = did_you_mean(name, self.columns) or f"; its columns are {', '.join(map(repr, self.columns))}."
            raise AttendropError(f"{self.path} has no column {name!r}{hint}")
        position = self.columns.index(name)
        return [row[position] for row in self.rows]

    def checked(self, column: str, problem_of: Callable[[Any], str | None], bad: BadRows) -> "Table":
        """Return the table without rows where ``problem_of`` finds a problem in a column; report these to ``bad``."""
        values = self.column(column)
        problems = [_NUL_PROBLEM if _has_nul(value) else problem_of(value) for value in values]
        return self._without(problems, bad, column)

    def checked_rows(
        self, columns: Sequence[str], problem_of: Callable[[list[Any]], str | None], bad: BadRows
    ) -> "Table":
        """Return the table without rows where ``problem_of`` finds that values of several columns do not fit."""
        values = zip(*(self.column(column) for column in columns), strict=True)
        return self._without([problem_of(list(row)) for row in values], bad, None)

    def _without(self, problems: Sequence[str | None], bad: BadRows, column: str | None) -> "Table":
        for row, problem in enumerate(problems):
            if problem is not None:
                content = dict(zip(self.columns, self.rows[row], strict=True))
                bad.add(self.path, self.places[row], problem, content, column)
        good = [row for row, problem in enumerate(problems) if problem is None]
        return self if len(good) == len(problems) else self.only(good)

    def only(self, rows: Sequence[int]) -> "Table":
        """Return the table with these of its rows, given by their place in it."""
        rows_of, places, index = ([values[row] for row in rows] for values in (self.rows, self.places, self.index))
        return Table(self.path, self.columns, rows_of, places, index)  # type: ignore[arg-type]


def _has_nul(value: Any) -> bool:
    """Tell whether a text has a NUL character, or one in a list or an object."""
    if isinstance(value, list | dict):
        return any(map(_has_nul, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "\0" in value
