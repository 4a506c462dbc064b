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
# NUL characters, and what `errors="surrogateescape"` makes of bytes that are not UTF-8.
_NOT_TEXT = re.compile("[\0\udc80-\udcff]")
_AS_CSV = "save the sheet as CSV, in UTF-8 and with commas"
# What a file is that begins with these bytes.
_OTHER_FORMATS = {
    b"\x1f\x8b": "a gzip file, not text; unpack it",
    b"PK\x03\x04": f"a ZIP archive, such as an Excel workbook, not text; unpack it, or {_AS_CSV}",
    b"\xd0\xcf\x11\xe0": f"an Excel workbook, not text; {_AS_CSV}",
    b"PAR1": "a Parquet file, not text; rename it to .parquet",
    b"\xff\xfe": "text in UTF-16; save the file as UTF-8",
    b"\xfe\xff": "text in UTF-16; save the file as UTF-8",
}


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
    start = b""
    for number, line in enumerate(lines, start=1):
        wrong = _NOT_TEXT.search(line)
        start = start or line[:8].encode(errors="surrogateescape")
        if wrong:
            raise AttendropError(f"{path}{_problem(start, number, ord(wrong[0]))}.")
        yield line


def _problem(start: bytes, line: int, character: int) -> str:
    """Describe a file that is not text, given its first bytes, and the first character that is none."""
    for magic, what in _OTHER_FORMATS.items():
        if start.startswith(magic):
            return f" is {what}"
    if character == 0:
        return f", line {line}: a NUL character, which no text has; delete it, or save the file as UTF-8"
    return f", line {line}: byte 0x{character - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
