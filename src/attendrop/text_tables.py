"""Tables of texts for a console, Markdown, LaTeX and CSV; those of pages are made by templates."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from attendrop.errors import printable

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


def aligned(rows: Sequence[Sequence[str]], align: str = LEFT, gap: str = "  ") -> list[str]:
    """Return the lines of a table for a console.

    Args:
        rows: Rows of equal length, the header first if there is one.
        align: ``l`` or ``r`` for each column; the last one also applies to further columns.
        gap: What stands between columns.
    """
    sides = _sides(align, len(rows[0]))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    columns = [(str.ljust if side == LEFT else str.rjust, width) for side, width in zip(sides, widths, strict=True)]
    lines = []
    for row in rows:
        # A letter of Chinese, Japanese or Korean is as wide as two others.
        cells = (pad(cell, width + len(cell) - cell_len(cell)) for cell, (pad, width) in zip(row, columns, strict=True))
        lines.append(gap.join(cells).rstrip())
    return lines


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = LEFT) -> str:
    """Return a table as Markdown.

    Args:
        header: Titles, in Markdown.
        rows: Cells, in Markdown, of which only ``|`` is escaped.
        align: See :func:`aligned`.
    """
    rules = ["---:" if side == RIGHT else "---" for side in _sides(align, len(header))]
    lines = [_without_bars(header), rules, *map(_without_bars, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_markdown(text: str) -> str:
    """Escape a text for Markdown; white space becomes single spaces, and no program that shows it finds HTML in it."""
    line = " ".join(printable(text).split())
    return _MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", line)


def latex_table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a floating table in LaTeX, for the package booktabs, with its first column on the left.

    Args:
        header: Titles, in LaTeX, as are the rows and the caption; see :func:`in_latex`.
        rows: Cells.
        caption: What stands above the table.
    """
    lines = [" & ".join(line) + r" \\" for line in (header, *rows)]
    sides = "".join(_sides(NAMES_LEFT, len(header)))
    above = (r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{sides}}}")
    below = (r"\bottomrule", r"\end{tabular}", r"\end{table}", "")
    return "\n".join([*above, r"\toprule", lines[0], r"\midrule", *lines[1:], *below])


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


def _sides(align: str, columns: int) -> list[str]:
    return list(align[:columns].ljust(columns, align[-1]))


def _without_bars(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in cells]


def csv_of_records(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV, with all columns that one of them has."""
    columns = dict.fromkeys(column for record in records for column in record)
    return csv_table(list(columns), ([record.get(column) for column in columns] for record in records))
