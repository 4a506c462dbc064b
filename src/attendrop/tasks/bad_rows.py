"""Handling of invalid rows: raise an error, or skip and list them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attendrop.argument_checks import check_choice
from attendrop.errors import AttendropError

# What is done with labels of evaluation data that training lacks.
UNKNOWN_LABELS = (ERROR, WRONG) = ("error", "wrong")
COUNT_AS_WRONG = f"(--unknown-labels {WRONG} counts it as wrong)"
# Number of skipped rows that are named.
_SHOWN = 5


@dataclass(frozen=True)
class SkippedRow:
    """A row that was skipped.

    Attributes:
        file: Path of the file.
        place: Where in the file the row is, such as "line 7", or where in the folder, such as "cats/1.jpg".
        reason: What is wrong with it.
        row: Its content: values by column, or what could be read of a row that has no columns.
    """

    file: str
    place: str
    reason: str
    row: Any


class BadRows:
    """Collector of invalid rows.

    Args:
        skip: Keep invalid rows in ``skipped`` instead of raising an error for the first.
        unknown_labels: Whether rows with labels that training lacks are invalid, ``"error"``, or count as
            ``"wrong"``; None: the former.
    """

    def __init__(self, *, skip: bool = False, unknown_labels: str | None = None) -> None:
        check_choice("unknown_labels", unknown_labels or ERROR, UNKNOWN_LABELS)
        self.skip = skip
        self.keeps_unknown = unknown_labels == WRONG
        self.skipped: list[SkippedRow] = []

    def add(self, path: Path, place: str, problem: str, row: Any, column: str | None = None) -> None:
        """Report an invalid row.

        Args:
            path: The file.
            place: Where in the file the row is, such as "line 7".
            problem: What is wrong with it: a sentence without its full stop.
            row: Its content.
            column: The column that has the problem.

        Raises:
            AttendropError: Invalid rows are not skipped.
        """
        reason = f"column {column!r}: {problem}" if column is not None else problem
        if not self.skip:
            separator = ", " if column is not None else ": "
            raise AttendropError(f"{path}, {place}{separator}{reason}. Correct it, or add --skip-bad-rows.")
        self.skipped.append(SkippedRow(str(path), place, reason, row))


def write_skipped(path: str | Path, skipped: Sequence[SkippedRow]) -> None:
    """Write skipped rows as JSON lines, in the order of each file: ``file``, ``place``, ``reason``, ``row``."""
    lines = [json.dumps(asdict(row), ensure_ascii=False, default=str) + "\n" for row in _in_order(skipped)]
    Path(path).write_text("".join(lines), encoding="utf-8", errors="backslashreplace", newline="")


def skipped_places(skipped: Sequence[SkippedRow]) -> str:
    """Return where the first skipped rows are: "train.csv: line 3, line 9; dev.csv: line 2, ..."."""
    places: dict[str, list[str]] = {}
    for row in _in_order(skipped)[:_SHOWN]:
        places.setdefault(row.file, []).append(row.place)
    shown = "; ".join(f"{file}: {', '.join(found)}" for file, found in places.items())
    return shown + (", ..." if len(skipped) > _SHOWN else "")


def _in_order(skipped: Sequence[SkippedRow]) -> list[SkippedRow]:
    files = list(dict.fromkeys(row.file for row in skipped))
    return sorted(skipped, key=lambda row: (files.index(row.file), _place_order(row.place)))


def _place_order(place: str) -> tuple[int, str]:
    """Return what orders places: the number of a line, or the name of a file."""
    number = place.split()[-1]
    return (int(number), "") if number.isdecimal() else (0, place)
