"""Words of messages, and tables of texts for a console, Markdown, LaTeX and CSV; pages have templates."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from attendrop.errors import printable

# Number of names that a message lists, with counts and without.
_LISTED, MOST_NAMES = 10, 50
# Smaller numbers are zero, but for rounding: 1 % of the least score.
_ROUNDING = 1e-16

LEFT, RIGHT, NAMES_LEFT = "l", "r", "lr"
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "≤": r"$\leq$",
}
# In words such as "max_train_samples", in intervals and before numbers, other signs mean nothing.
_MARKUP = re.compile(r"[\\`*]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[])")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted_rows(rows: int, what: str, windows: int) -> str:
    """Return a number of rows with what they are, such as "16 rows, 40 windows"; of whole rows without windows."""
    return f"{rows} {what}" if windows == rows else f"{rows} {what}, {counted(windows, 'window')}"


def counts_of(counts: Mapping[str, int]) -> str:
    """List names with their counts, such as "'B-LOC' (3), 'I-LOC' (1)", the first ten."""
    shown = ", ".join(f"{name!r} ({count})" for name, count in islice(counts.items(), _LISTED))
    return shown + (f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else "")


def names_of(names: Sequence[str], separator: str = ", ", most: int = MOST_NAMES) -> str:
    """List names, such as "'text', 'label'", the first fifty."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return separator.join([*map(repr, names[:most]), *more])


def decimals(smallest: float, usual: int) -> int:
    """Return with how many decimals numbers are shown that differ by as little as ``smallest``: ``usual`` or more."""
    return max(usual, -math.floor(math.log10(smallest))) if _ROUNDING < smallest < 1 else usual


def score_text(value: float, like: float | None = None, sign: str = "") -> str:
    """Format a score, or a difference of scores ``like`` the given one, with more than four decimals if it is small."""
    return f"{value:{sign or 'z'}.{decimals(abs(value if like is None else like) / 100, 4)}f}"


def interval_of(difference: Mapping[str, float | None] | None, like: float) -> str:
    """Format the ends, ``low`` and ``high``, of the 95 % interval of a difference of scores ``like`` the given one.

    It is empty if nothing was changed.
    """
    if difference is None:
        return ""
    low, high = difference["low"], difference["high"]
    if low is None or high is None:
        return "too few rows to tell"
    return f"{score_text(low, like, '+')} to {score_text(high, like, '+')}"


def aligned(rows: Sequence[Sequence[str]], align: str = LEFT, gap: str = "  ") -> list[str]:
    """Return the lines of a table for a console.

    Args:
        rows: Rows of equal length, the header first if there is one.
        align: ``l`` or ``r`` for each column; the last one also applies to further columns.
        gap: What stands between columns.
    """
    from rich.cells import cell_len  # of the command line

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    sides = align[: len(widths)].ljust(len(widths), align[-1])
    lines = []
    for row in rows:
        # A letter of Chinese, Japanese or Korean is as wide as two others.
        padding = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (c + pad if side == LEFT else pad + c for c, pad, side in zip(row, padding, sides, strict=True))
        lines.append(gap.join(cells).rstrip())
    return lines


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = LEFT) -> str:
    """Return a table as Markdown.

    Args:
        header: Titles, in Markdown.
        rows: Cells, in Markdown, of which only ``|`` is escaped.
        align: See :func:`aligned`.
    """
    sides = align[: len(header)].ljust(len(header), align[-1])
    lines = [[cell.replace("|", r"\|") for cell in cells] for cells in (header, *rows)]
    lines.insert(1, ["---:" if side == RIGHT else "---" for side in sides])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_markdown(text: str) -> str:
    """Escape a text for Markdown; white space becomes single spaces, and no program that shows it finds HTML in it."""
    line = " ".join(printable(text).split())
    return _MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", line)


def in_latex(text: str) -> str:
    """Escape a text for LaTeX; white space becomes single spaces."""
    escaped = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    # At the beginning of a row, these would belong to the end of the row before.
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def csv_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def csv_of_records(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV, with all columns that one of them has."""
    columns = dict.fromkeys(column for record in records for column in record)
    return csv_table(list(columns), ([record.get(column) for column in columns] for record in records))
