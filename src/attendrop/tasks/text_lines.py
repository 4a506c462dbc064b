"""Lines of text files in UTF-8; errors name the file and the line."""

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from attendrop.errors import AttendropError

STDIN = "-"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what `errors="surrogateescape"` makes of bytes that are not UTF-8


def decode(path: Path) -> str:
    """Read a UTF-8 file without its byte-order mark; raise AttendropError if it is empty or not UTF-8."""
    with text_lines(path, "\n") as lines:
        return "".join(lines)


@contextmanager
def text_lines(path: Path, newline: str) -> Iterator[Iterator[str]]:
    """Iterate over the lines of a UTF-8 file, with their line ends; ``newline`` is that of ``open``.

    Raises:
        AttendropError: The file is empty or not UTF-8.
    """
    binary = sys.stdin.buffer if str(path) == STDIN else path.open("rb")
    text = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline=newline)
    try:
        valid = _valid_lines(path, text)
        blank: list[str] = []
        for line in valid:
            blank.append(line)
            if line.strip():
                break
        else:
            raise AttendropError(f"{path} is empty.")
        yield chain(blank, valid)
    finally:
        if binary is sys.stdin.buffer:
            text.detach()
        else:
            text.close()


def _valid_lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        wrong = _NOT_UTF8.search(line)
        if wrong:
            byte = ord(wrong[0]) - 0xDC00
            raise AttendropError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8.")
        if "\0" in line:
            raise AttendropError(
                f"{path}, line {number}: a NUL character, which no text has; delete it, or save the file as UTF-8."
            )
        yield line
