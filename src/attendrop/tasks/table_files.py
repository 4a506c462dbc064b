"""Strict readers of files with rows, of all formats; errors name the file and the line."""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from attendrop.errors import AttendropError
from attendrop.tasks.file_formats import files_of
from attendrop.tasks.images import read_image_folder
from attendrop.tasks.table import BadRows, Table, in_chunks
from attendrop.tasks.text_files import STDIN, read_conll, read_conllu, read_lines, read_parallel, text_lines
from attendrop.wording import counted

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("\r\n|\r|\n")
_HOW_TO_QUOTE = 'write them doubled in a quoted field, such as """I know,", or save the file as .jsonl'
# Number of places that a warning names.
_SHOWN = 5


def read_table(path: str | Path, bad: BadRows | None = None) -> Table:
    """Read a file as one table; see :func:`read_chunks`."""
    bad = bad or BadRows()
    chunks = list(read_chunks(path, None, bad))
    if not chunks:
        raise AttendropError(f"{path} has no valid row: {len(bad.skipped)} were skipped.")
    return chunks[0]


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file, of which only the first valid row is read; see :func:`read_chunks`."""
    table = next(read_chunks(path, 1, BadRows(skip=True)), None)
    if table is None:
        raise AttendropError(f"{path} has no valid row.")
    return table.columns


def read_chunks(
    path: str | Path, size: int | None, bad: BadRows | None = None, *, format: str | None = None
) -> Iterator[Table]:
    """Read a .csv, .tsv, .jsonl, .parquet, .conll, .conllu or .txt file in chunks, two parallel text files, or images.

    Text files are UTF-8, with or without a byte-order mark. CSV and TSV files have a header, quoting as in RFC 4180,
    and may have quoted line breaks; no string is read as a missing value. The columns of JSON lines are those of the
    rows read so far. A row of a column file is a sentence, see :mod:`attendrop.tasks.text_files`; of plain text, a
    line, see :mod:`attendrop.tasks.text_files`; of a folder of images, an image, see
    :mod:`attendrop.tasks.images`.

    Args:
        path: The file or folder; "-" is standard input. Two files, ``"train.tr,train.en"``, are read in parallel.
        size: Number of rows in a chunk; None reads one table.
        bad: Handling of rows with a wrong number of fields, of lines that are not JSON objects, and of broken
            sentences. By default, the first raises.
        format: Format such as "csv"; by default, the extension of ``path``.

    Yields:
        Tables of at most ``size`` rows.

    Raises:
        AttendropError: The file is missing, empty or broken, its extension is unknown, its header has another
            separator, or a column occurs twice.
    """
    if len(files := files_of(path)) > 1:
        yield from read_parallel(files, size)
        return
    suffix = f".{format}" if format is not None else Path(path).suffix.lower()
    if suffix not in _READERS and Path(path).is_dir():
        yield from read_image_folder(Path(path), size)
        return
    if suffix not in _READERS and not Path(path).suffix and not Path(path).exists():
        raise AttendropError(f"there is no file or folder {path}.")
    if suffix not in _READERS:
        fix = _SAVED_AS.get(suffix, f"give a file with one of {', '.join(_READERS)}")
        raise AttendropError(f"{path} has the unknown extension {suffix!r}; {fix}.")
    path, bad = Path(path), bad or BadRows()
    if str(path) == STDIN and suffix == ".parquet":
        raise AttendropError("Parquet cannot be read from standard input; give a file.")
    if str(path) != STDIN and not path.is_file():
        raise AttendropError(f"there is no file {path}." if not path.exists() else f"{path} is not a file.")
    rows_before = len(bad.skipped)
    table = None
    for table in _READERS[suffix](path, size, bad):
        yield table
    if table is None and len(bad.skipped) == rows_before:
        raise AttendropError(f"{path} has no rows.")


def _read_delimited(path: Path, size: int | None, bad: BadRows, delimiter: str) -> Iterator[Table]:
    with text_lines(path, "") as lines:
        records = _records(path, lines, delimiter)
        _, header = next(records)
        _check_separator(path, header, delimiter)
        _check_columns(path, header)
        for table in in_chunks(path, header, _fitting(path, header, records, bad), size):
            _warn_of_joined_rows(table, delimiter)
            yield table


def _warn_of_joined_rows(table: Table, delimiter: str) -> None:
    """Warn of rows with a field that seems to hold whole rows, between two quotes that are part of texts."""
    labels = {label for label, count in Counter(row[-1] for row in table.rows).items() if count > 1}
    joined = []
    for row, place in zip(table.rows, table.places, strict=True):
        if not any("\n" in field or "\r" in field for field in row):
            continue  # nearly all; splitting takes longer
        fields = [_LINE_END.split(field) for field in row]
        if any(_holds_rows(lines, column, len(row), delimiter, labels) for column, lines in enumerate(fields)):
            first = int(place.removeprefix("line "))
            joined.append(f"{first}-{first + sum(len(lines) - 1 for lines in fields)}")
    if joined:
        shown = ", ".join(joined[:_SHOWN]) + (f" and {len(joined) - _SHOWN} more" if len(joined) > _SHOWN else "")
        warnings.warn(
            f"{table.path}: quotes join what look like separate rows (lines {shown}): each is read as one row. If the "
            f"quotes are part of the texts, {_HOW_TO_QUOTE}.",
            stacklevel=2,
        )


def _holds_rows(lines: list[str], column: int, width: int, delimiter: str, labels: set[str]) -> bool:
    """Tell whether a line of a field ends in a label, or has the separators of a row, without spaces as in prose."""
    for number, line in enumerate(lines if len(lines) > 1 else []):
        last = number == len(lines) - 1
        others = (column if number == 0 else 0) + (width - 1 - column if last else 0)  # outside of the field
        as_many = line.count(delimiter) == width - 1 - others and delimiter + " " not in line
        _, separator, end = line.rpartition(delimiter)
        if separator and (as_many or (not last and end in labels)):
            return True
    return False


def _fitting(
    path: Path, header: list[str], records: Iterator[tuple[int, list[str]]], bad: BadRows
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the rows with as many fields as the header, with their index and place."""
    index = 0
    for line, record in records:
        if not record and len(header) > 1:
            continue
        values = record or [""]
        if len(values) == len(header):
            yield index, f"line {line}", values
        else:
            problem = f"{counted(len(values), 'field')} where the header has {len(header)}"
            problem += "; a field that contains the separator must be quoted"
            bad.add(path, f"line {line}", problem, values)
        index += 1


def _records(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records with their first lines, without blank lines at the beginning and at the end."""
    csv.field_size_limit(2**31 - 1)  # for all readers of the process; the default of 131,072 is too low for documents
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1
    blank: list[tuple[int, list[str]]] = []
    try:
        begun = False
        for record in reader:
            if record:
                _check_quotes(path, line, record, delimiter)
                yield from blank if begun else ()
                begun, blank = True, []
                yield line, record
            else:
                blank.append((line, record))
            line = reader.line_num + 1
    except csv.Error as error:
        raise AttendropError(
            f"{path}, line {line}: broken quoting ({error}); a field that begins with a quote must end with one, and "
            "quotes inside it are doubled."
        ) from None


def _check_quotes(path: Path, line: int, record: list[str], delimiter: str) -> None:
    """Raise if a quoted field of a TSV file seems to hold whole rows: then its quotes are part of texts."""
    if delimiter == "\t" and any("\t" in field and "\n" in field for field in record):
        raise AttendropError(
            f"{path}, line {line}: a field begins with a quote, and holds tabs and line breaks up to the next one. If "
            f"the quotes are part of the texts, {_HOW_TO_QUOTE}."
        )


def _read_json_lines(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    columns: list[str] = []
    with text_lines(path, "\n") as lines:
        objects = _objects(path, lines, bad)
        while chunk := list(islice(objects, size)):
            index, places, found = map(list, zip(*chunk, strict=True))
            columns = list(dict.fromkeys(chain(columns, *found)))
            yield Table(path, columns, [[row.get(column) for column in columns] for row in found], places, index)


def _objects(path: Path, lines: Iterator[str], bad: BadRows) -> Iterator[tuple[int, str, dict[str, Any]]]:
    written = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    for index, (number, line) in enumerate(written):
        place = f"line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_without_duplicates)
        except ValueError as error:
            bad.add(path, place, f"not valid JSON ({error})", line)
            continue
        half = _lone_surrogate(line, row)
        if half is not None:
            bad.add(path, place, f"{half!r} is half of a surrogate pair, not a character", line)
        elif isinstance(row, dict):
            yield index, place, row
        else:
            bad.add(path, place, 'every line must be an object such as {"text": ...}', line)


def _lone_surrogate(line: str, row: Any) -> str | None:
    """Return half of a surrogate pair in a key or a value, or None."""
    if _ESCAPED_SURROGATE.search(line) is None:
        return None
    half = _SURROGATE.search(json.dumps(row, ensure_ascii=False))
    return None if half is None else half[0]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key occurs twice")
    return row


def _read_parquet(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            _check_columns(path, columns)
            first = 0
            for batch in [file.read()] if size is None else file.iter_batches(size):
                if batch.num_rows == 0:
                    continue
                index = list(range(first, first + batch.num_rows))
                rows = [list(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
                yield Table(path, columns, rows, [f"row {number + 1}" for number in index], index)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise AttendropError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from None


def _check_columns(path: Path, columns: list[str]) -> None:
    duplicates = [column for column, count in Counter(columns).items() if count > 1]
    if duplicates:
        raise AttendropError(f"{path} has more than one column {duplicates[0]!r}; give each its own name.")


def _check_separator(path: Path, header: list[str], delimiter: str) -> None:
    """Raise if another separator divides the header into more columns."""
    line = delimiter.join(header)
    if len(header) > 1 or ", " in line:  # commas in a question, as a header
        line = line.replace(",", "")
    others = [other for other in _SEPARATORS if other != delimiter and line.count(other) >= len(header)]
    if not others:
        return
    found, right = others[0], {",": "csv", "\t": "tsv"}.get(others[0])
    fix = f"save it with {_SEPARATORS[delimiter]}"
    if right is not None:
        fix = f"give --input-format {right}" if str(path) == STDIN else f"rename it to .{right}"
    raise AttendropError(
        f"{path}: its header is separated by {_SEPARATORS[found]}, but is read with {_SEPARATORS[delimiter]}; {fix}."
    )


_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "vertical bars"}
_READERS: dict[str, Callable[[Path, int | None, BadRows], Iterator[Table]]] = {
    ".csv": lambda path, size, bad: _read_delimited(path, size, bad, ","),
    ".tsv": lambda path, size, bad: _read_delimited(path, size, bad, "\t"),
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
    ".conll": read_conll,
    ".conllu": read_conllu,
    ".txt": read_lines,
}
# What to do with files of formats that are not read.
_SAVED_AS = dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV, in UTF-8 and with commas")
_SAVED_AS[".json"] = "save it as JSON lines, .jsonl, with an object for each row on its line"
