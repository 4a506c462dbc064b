"""Format of a text file: its compression, its encoding, and the separator of its columns."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError

STDIN = "-"
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Encodings that are distinguished, as Python names them, with their usual names.
ENCODINGS = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8 with a byte-order mark",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16 without a byte-order mark (a guess)",
    "utf-16-be": "UTF-16 without a byte-order mark (a guess)",
    "cp1252": "Windows-1252 (a guess)",
}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_GZIP = b"\x1f\x8b"
# Kinds of files by their first bytes.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive, such as an Excel workbook, not text; unpack it, or name the workbook .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook, not text; save it as .xlsx, or as CSV in UTF-8",
    b"PAR1": "a Parquet file, not text; rename it to .parquet",
}
# NUL characters, and what `errors="surrogateescape"` makes of bytes that cannot be decoded.
_NOT_TEXT = re.compile("[\0\udc80-\udcff]")
_FASTTEXT = re.compile(r"(?<!\S)__label__\S+")
_ESCAPED = re.compile("[\udc80-\udcff]")
_BEYOND_ASCII = re.compile("[^\0-\x7f]")
_START, _BLOCK = 4096, 2**20  # bytes
# Characters of a line or a field: no model reads so many, and a small .gz may unpack to one line beyond all memory.
LONGEST = 2**24


def encoding_of(path: Path) -> str:
    """Find the encoding of a text file, a key of :data:`ENCODINGS`; raise AttendropError for another kind of file."""
    with _opened(path) as file:
        return _encoding(path, file)


@contextmanager
def text_lines(path: Path, newline: str = "\n") -> Iterator[Iterator[str]]:
    """Iterate over the lines of a text file, with their line ends; warn of an encoding that is a guess.

    Args:
        path: The file, which gzip may have packed; "-" is standard input.
        newline: As for ``open``.

    Raises:
        AttendropError: The file is empty, of another kind, or not in the encoding in which it begins.
    """
    with _opened(path) as file:
        encoding = _encoding(path, file)
        if encoding == "cp1252":
            warnings.warn(
                f"{path} is not UTF-8: it is read as Windows-1252, which is a guess; if letters are wrong, save it as "
                "UTF-8.",
                stacklevel=3,
            )
        if encoding == "cp1252" and file.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
        codec = "utf-8-sig" if encoding == "utf-8" else encoding
        text = io.TextIOWrapper(file, encoding=codec, errors="surrogateescape", newline=newline)
        try:
            valid, blank = _valid_lines(path, _lines(text)), list[str]()
            for line in valid:
                blank.append(line)
                if line.strip():
                    if marker := _FASTTEXT.search(line):
                        raise AttendropError(
                            f"{path} is a fastText file, with labels such as {marker[0]!r} in its texts; write a table "
                            "with the columns text and label, as .csv or .jsonl."
                        )
                    break
            else:
                raise AttendropError(f"{path} is empty.")
            yield chain(blank, valid)
        except UnicodeDecodeError as error:
            raise AttendropError(f"{path} is broken {ENCODINGS[encoding]} ({error.reason}).") from None
        finally:
            text.detach()


def delimiter_of(lines: Sequence[str], usual: str) -> str:
    """Find the separator of columns, given the first lines, the header first.

    It differs from the ``usual`` one if it divides the header into more columns, or the usual one does not divide most
    rows as it divides the header; and if it divides most rows into as many columns as the header.
    """
    widths = {each: [len(record) for record in csv.reader(lines, delimiter=each) if record] for each in SEPARATORS}
    if not widths[usual]:
        return usual  # blank lines

    def divides(delimiter: str) -> bool:
        header, *rows = widths[delimiter]
        return sum(row == header for row in rows) * 2 > len(rows) or (not rows and widths[usual][0] == 1)

    least = widths[usual][0] if divides(usual) else 1
    others = [each for each in SEPARATORS if widths[each][0] > least and divides(each)]
    return max(others, key=lambda each: widths[each][0], default=usual)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file, or standard input, which stays open, to read bytes; unpack what gzip packed."""
    with ExitStack() as stack:
        if str(path) == STDIN:
            file: Any = io.BufferedReader(sys.stdin.buffer)
            stack.callback(file.detach)
        else:
            file = stack.enter_context(path.open("rb"))
        try:
            yield gzip.GzipFile(fileobj=file) if file.peek(len(_GZIP)).startswith(_GZIP) else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise AttendropError(f"{path} is not a readable gzip file ({error}).") from None


def _encoding(path: Path, file: Any) -> str:
    """Find the encoding of an open file by its start and, unless it is UTF-16, by all of its bytes; rewind it."""
    start = bytes(file.peek(_START)[:_START])
    for magic, what in _NO_TEXT.items():
        if start.startswith(magic):
            raise AttendropError(f"{path} is {what}.")
    marked = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
    # In UTF-16, spaces, separators and line ends have a zero byte on one side; few letters have one on the other.
    zeros = {"utf-16-le": start[1::2].count(0), "utf-16-be": start[::2].count(0)}
    for encoding, others in zip(zeros, reversed(zeros.values()), strict=True):
        has_lines = zeros[encoding] > max(others, len(start) // 64) and "\n".encode(encoding) in start
        if marked is None and (has_lines or zeros[encoding] > len(start) // 4):
            return encoding
    if marked == "utf-16" or str(path) == STDIN:  # which cannot be read twice
        return marked or "utf-8"
    letters = broken = 0
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for block in chain(iter(partial(file.read, _BLOCK), b""), [b""]):
        text = decoder.decode(block, final=not block)
        if not text.isascii():
            broken += len(_ESCAPED.findall(text))
            letters += len(_BEYOND_ASCII.findall(text))
    file.seek(0)
    # Where most letters are UTF-8 already, the file is UTF-8 with a broken place. Some programs write the mark of UTF-8
    # before text that is not: the mark is a letter here.
    return "cp1252" if 2 * broken > letters else marked or "utf-8"


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Return lines, also those of a file in which all end in a carriage return, as once on Macs: it looks like one.

    Of a line that is too long, the beginning is returned.
    """
    lines = iter(partial(text.readline, LONGEST + 1), "")
    first = next(lines, "")
    return chain([first] if "\n" in first or len(first) > LONGEST else io.StringIO(first, newline="\r"), lines)


def _valid_lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST:
            raise AttendropError(f"{path}, line {number}: the line has more than {LONGEST:,} characters; divide it.")
        if wrong := _NOT_TEXT.search(line):
            byte = ord(wrong[0]) - 0xDC00
            problem = "a NUL character, which no text has; delete it, or save the file as UTF-8"
            if byte > 0:
                problem = f"byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
            raise AttendropError(f"{path}, line {number}: {problem}.")
        yield line
