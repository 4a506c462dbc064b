"""Rows of a file that cannot be used: an error, or left out and listed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError


@dataclass(frozen=True)
class SkippedRow:
    """A row that was left out.

    file, place: where it stands, such as "train.csv", "line 7". reason: what is wrong with it. row: its content, values
    by column, or what could be read of a row without columns.
    """

    file: str
    place: str
    reason: str
    row: Any


class BadRows:
    """Decides about bad rows: the first is an AttendropError, or with `skip` each is left out and kept in `skipped`."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.skipped: list[SkippedRow] = []

    def add(self, path: Path, place: str, problem: str, row: Any, column: str | None = None) -> None:
        """Report a bad row; `problem` is a sentence without its full stop."""
        reason = f"column {column!r}: {problem}" if column is not None else problem
        if not self.skip:
            separator = ", " if column is not None else ": "
            raise AttendropError(f"{path}, {place}{separator}{reason}. --skip-bad-rows leaves such rows out.")
        self.skipped.append(SkippedRow(str(path), place, reason, row))


def write_skipped(path: str | Path, skipped: Sequence[SkippedRow]) -> None:
    """Write rows that were left out as JSON lines, in the order of each file: `file`, `place`, `reason`, `row`."""
    files = list(dict.fromkeys(row.file for row in skipped))
    ordered = sorted(skipped, key=lambda row: (files.index(row.file), int(row.place.split()[-1])))
    lines = [json.dumps(asdict(row), ensure_ascii=False, default=str) + "\n" for row in ordered]
    Path(path).write_text("".join(lines), encoding="utf-8", errors="backslashreplace", newline="")
