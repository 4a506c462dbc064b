"""Readers of plain text: a row on each line, of one file or of two parallel ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice, zip_longest
from pathlib import Path

from attendrop.errors import AttendropError
from attendrop.tasks.bad_rows import BadRows
from attendrop.tasks.file_formats import SOURCE, TARGET
from attendrop.tasks.table import Table
from attendrop.tasks.text_lines import text_lines


def read_lines(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a text file in chunks: the column ``text`` has its lines."""
    return _tables(path, (path,), ("text",), size)


def read_parallel(files: Sequence[Path], size: int | None) -> Iterator[Table]:
    """Read two text files in chunks: the columns ``source`` and ``target`` have the lines of the first and the second.

    Raises:
        AttendropError: There are not two files, one is missing, or they have different numbers of lines.
    """
    named = ", ".join(map(str, files))
    if len(files) != 2:
        raise AttendropError(f"{named} are {len(files)} parallel files; give two, of the texts and of their targets.")
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise AttendropError(f"there is no file {missing[0]}.")
    return _tables(Path(named), files, (SOURCE, TARGET), size)


def _tables(path: Path, files: Sequence[Path], columns: Sequence[str], size: int | None) -> Iterator[Table]:
    with ExitStack() as stack:
        lines = [stack.enter_context(text_lines(file, "\n")) for file in files]
        rows = enumerate(zip_longest(*lines))
        while chunk := list(islice(rows, size)):
            for number, texts in chunk:
                if None in texts:
                    raise AttendropError(
                        f"{files[texts.index(None)]} ends before line {number + 1}, and the other file goes on; "
                        "parallel files have the same number of lines."
                    )
            values = [[text.rstrip("\r\n") for text in texts] for _, texts in chunk]
            yield Table(
                path, list(columns), values, [f"line {n + 1}" for n, _ in chunk], [number for number, _ in chunk]
            )
