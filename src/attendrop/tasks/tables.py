"""Tables as people keep them: CSV, TSV, JSON lines and Parquet, read strictly, with errors that name the place."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from attendrop.errors import AttendropError
from attendrop.tasks.base import did_you_mean


@dataclass(frozen=True)
class Table:
    """A file's rows.

    columns: the header. rows: one value per column, strings in CSV and TSV, what the file says elsewhere. places: where
    each row stands, "line 7" (with quoted line breaks: the line it begins on) or, in Parquet, "row 7", counted from 1.
    """

    path: Path
    columns: list[str]
    rows: list[list[Any]]
    places: list[str]

    def column(self, name: str) -> list[Any]:
        """The values of a column; raises AttendropError with the nearest name if there is none."""
        if name not in self.columns:
            raise AttendropError(f"{self.path} has no column {name!r}{self._missing_hint(name)}")
        position = self.columns.index(name)
        return [row[position] for row in self.rows]

    def _missing_hint(self, name: str) -> str:
        hint = did_you_mean(name, self.columns)
        if hint:
            return hint
        for delimiter, word in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
            if len(self.columns) == 1 and delimiter in self.columns[0]:
                return f": its header is separated by {word}, but .csv is read with commas and .tsv with tabs."
        return f"; its columns are {', '.join(map(repr, self.columns))}."


def read_table(path: str | Path) -> Table:
    """Read a .csv, .tsv, .jsonl or .parquet file.

    Text files are UTF-8, with or without a byte-order mark. CSV and TSV have a header, quote as RFC 4180 does, and may
    have quoted line breaks; no string is taken for a missing value.
    Raises AttendropError for a missing, empty or broken file, an unknown extension and duplicate columns.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise AttendropError(f"{path} has the extension {path.suffix!r}; the files that can be read are {_EXTENSIONS}.")
    if not path.is_file():
        raise AttendropError(f"there is no file {path}." if not path.exists() else f"{path} is not a file.")
    table = read(path)
    duplicates = [column for column, count in Counter(table.columns).items() if count > 1]
    if duplicates:
        raise AttendropError(f"{path} has more than one column {duplicates[0]!r}; give each its own name.")
    if not table.rows:
        raise AttendropError(f"{path} has no rows.")
    return table


def decode(path: Path) -> str:
    """The text of a UTF-8 file without its byte-order mark; an empty or wrongly encoded file is an AttendropError."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AttendropError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8."
        ) from None
    if not text.strip():
        raise AttendropError(f"{path} is empty.")
    return text


def _read_delimited(path: Path, delimiter: str) -> Table:
    records = _records(path, delimiter)
    _, header = next(records)
    rows, places = [], []
    for line, record in records:
        if not record and len(header) > 1:
            continue
        if len(record or [""]) != len(header):
            raise AttendropError(
                f"{path}, line {line}: {len(record)} fields where the header has {len(header)}; "
                "a field that contains the separator must be quoted."
            )
        rows.append(record or [""])
        places.append(f"line {line}")
    return Table(path, header, rows, places)


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The records with the line each begins on."""
    text = decode(path).rstrip("\r\n")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for record in reader:
            yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        raise AttendropError(
            f"{path}, line {line}: broken quoting ({error}); a field that begins with a quote must end with one, and "
            "quotes inside it are doubled."
        ) from None


def _read_json_lines(path: Path) -> Table:
    objects, places = [], []
    for number, line in enumerate(decode(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_without_duplicates)
        except ValueError as error:
            raise AttendropError(f"{path}, {place}: not valid JSON ({error}).") from None
        if not isinstance(row, dict):
            raise AttendropError(f'{path}, {place}: every line must be an object such as {{"text": ...}}.')
        objects.append(row)
        places.append(place)
    columns = list(dict.fromkeys(key for row in objects for key in row))
    return Table(path, columns, [[row.get(column) for column in columns] for row in objects], places)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key occurs twice")
    return row


def _read_parquet(path: Path) -> Table:
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise AttendropError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from None
    columns = [column.to_pylist() for column in table.columns]
    places = [f"row {number}" for number in range(1, table.num_rows + 1)]
    return Table(path, table.column_names, [list(row) for row in zip(*columns, strict=True)], places)


_READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": lambda path: _read_delimited(path, ","),
    ".tsv": lambda path: _read_delimited(path, "\t"),
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
_EXTENSIONS = ", ".join(_READERS)
