"""Strict readers of files with rows, of all formats; errors name the file and the line."""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.tasks.dialect import LONGEST, STDIN, delimiter_of, text_lines
from attendrop.tasks.file_formats import extension_of, files_of
from attendrop.tasks.table import BadRows, Table, in_chunks
from attendrop.tasks.text_files import read_conll, read_conllu, read_lines, read_parallel
from attendrop.tasks.values import number_form
from attendrop.wording import counted

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("\r\n|\r|\n")
# Line before the header that names the separator to Excel.
_SEPARATOR_LINE = re.compile(r"sep=([,;|\t])\s*", re.IGNORECASE)
_HOW_TO_QUOTE = 'write them doubled in a quoted field, such as """I know,", or save the file as .jsonl'
_HOW_TO_DIVIDE = "a field that contains the separator must be quoted"
# Number of places that a warning names, and of lines by which the separator is found.
_SHOWN, _SNIFFED = 5, 50


def read_table(path: str | Path, bad: BadRows | None = None, most: int | None = None) -> Table:
    """Read a file, or its first ``most`` rows, as one table; see :func:`read_chunks`."""
    bad = bad or BadRows()
    table = next(read_chunks(path, most, bad), None)
    if table is None:
        first = bad.skipped[0]
        raise AttendropError(
            f"{path} has no valid row: {counted(len(bad.skipped), 'row')} skipped; {first.place}: {first.reason}."
        )
    return table


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file, of which only the first valid row is read."""
    return read_table(path, BadRows(skip=True), 1).columns


def read_chunks(
    path: str | Path, size: int | None, bad: BadRows | None = None, *, format: str | None = None
) -> Iterator[Table]:
    """Read a file in chunks, by its extension: a table, sentences, lines of text, or two parallel texts.

    Tables are .csv, .tsv, .xlsx (the first sheet with rows), .jsonl, .json (an array of objects, or JSON lines) and
    .parquet files. Text may be packed by gzip,
    with ``.gz`` after the extension; see :mod:`attendrop.tasks.dialect` for its encoding. CSV and TSV files have a
    header, quoting as in RFC 4180, and may have quoted line breaks; the separator is the one that divides the header,
    or what a line ``sep=;`` before it says. No string is read as a missing value. The columns of JSON lines are those
    of the rows read so far. A row of a column file (.conll, .conllu) is a sentence, and of plain text (.txt) a line,
    see :mod:`attendrop.tasks.text_files`.

    Args:
        path: The file; "-" is standard input. Two files, ``"train.tr,train.en"``, are read in parallel.
        size: Number of rows in a chunk; None reads one table.
        bad: Handling of rows with a wrong number of fields, of lines that are not JSON objects, and of broken
            sentences. By default, the first raises.
        format: Format such as "csv"; by default, the extension of ``path``.

    Yields:
        Tables of at most ``size`` rows.

    Raises:
        AttendropError: The file is missing, empty or broken, or its extension is unknown.
    """
    if len(files := files_of(path)) > 1:
        yield from read_parallel(files, size)
        return
    name, suffix = str(path), f".{format}" if format is not None else extension_of(path)
    path, bad = Path(path), bad or BadRows()
    if name != STDIN and not path.is_file() and (suffix in _READERS or not path.suffix or path.is_dir()):
        raise AttendropError(f"{path} is not a file." if path.exists() else f"there is no file {path}.")
    if suffix not in _READERS:
        fix = _SAVED_AS.get(suffix, f"give a file with one of {', '.join(_READERS)}")
        raise AttendropError(f"{path} has the unknown extension {suffix!r}; {fix}.")
    if name == STDIN and suffix in (".parquet", ".xlsx"):
        raise AttendropError(f"A {suffix} file cannot be read from standard input; give its name.")
    if suffix in (".parquet", ".xlsx") and name.lower().endswith(".gz"):
        raise AttendropError(f"{path} is packed; unpack it: `gunzip {path}`.")
    rows_before = len(bad.skipped)
    table = None
    for table in _READERS[suffix](path, size, bad):
        yield table
    if table is None and len(bad.skipped) == rows_before:
        raise AttendropError(f"{path} has no rows.")


def _read_delimited(path: Path, size: int | None, bad: BadRows, usual: str) -> Iterator[Table]:
    csv.field_size_limit(LONGEST)  # for all readers of the process; the default of 131,072 is too low for documents
    with text_lines(path, "") as raw:
        lines = _joined_at_returns(path, raw)
        first = list(islice(lines, _SNIFFED))
        if said := _SEPARATOR_LINE.fullmatch(first[0]):
            first[0] = "\n"  # no header, but a line to count
        delimiter = said[1] if said else delimiter_of(first, usual)
        records = _records(path, chain(first, lines), delimiter)
        header = _own_names(path, next(records, (0, []))[1])
        for table in in_chunks(path, header, _fitting(path, header, records, bad, _HOW_TO_DIVIDE), size):
            _warn_of_joined_rows(table, delimiter)
            yield replace(table, delimiter=delimiter)


def _warn_of_joined_rows(table: Table, delimiter: str) -> None:
    """Warn of rows with a field that seems to hold whole rows, between two quotes that are part of texts."""
    begins, ends = (
        {value for value, count in Counter(row[place] for row in table.rows).items() if value and count > 1}
        for place in (0, -1)
    )
    numbers = not ends and all(number_form(row[-1]) != "text" for row in table.rows[:_SNIFFED])
    joined = []
    for row, place in zip(table.rows, table.places, strict=True):
        if not any("\n" in field or "\r" in field for field in row):
            continue  # nearly all; splitting takes longer
        fields = [_LINE_END.split(field) for field in row]
        if any(_holds_rows(*field, len(row), delimiter, begins, ends, numbers) for field in enumerate(fields)):
            first = int(place.removeprefix("line "))
            joined.append(f"{first}-{first + sum(len(lines) - 1 for lines in fields)}")
    if joined:
        shown = ", ".join(joined[:_SHOWN]) + (f" and {len(joined) - _SHOWN} more" if len(joined) > _SHOWN else "")
        warnings.warn(
            f"{table.path}: quotes join what look like separate rows (lines {shown}): each is read as one row. If the "
            f"quotes are part of the texts, {_HOW_TO_QUOTE}.",
            stacklevel=2,
        )


def _holds_rows(
    column: int, lines: list[str], width: int, delimiter: str, begins: set[str], ends: set[str], numbers: bool
) -> bool:
    """Return whether a line of a field begins or ends as rows do, or has more separators than prose, and no spaces."""
    for number, line in enumerate(lines if len(lines) > 1 else []):
        last = number == len(lines) - 1
        others = (column if number == 0 else 0) + (width - 1 - column if last else 0)  # outside of the field
        count = line.count(delimiter)
        begin, end = line.partition(delimiter)[0], line.rpartition(delimiter)[2]
        if count and ((number and begin in begins) or (not last and end in ends)):
            return True
        is_row = count > 2 or (numbers and number_form(end) != "text")
        if count and count == width - 1 - others and delimiter + " " not in line and is_row:
            return True
    return False


def _own_names(path: Path, header: list[str]) -> list[str]:
    """Strip names, and number the columns that have that of an earlier one: ``note``, ``note.2``, with a warning."""
    names, numbers = dict[str, str](), dict[str, int]()
    for place, name in enumerate(map(str.strip, header)):
        number, own = numbers.get(name, 1), name
        while own in names:
            number += 1
            own = f"{name}.{number}"
        names[own], numbers[name] = name, number
        if number > 1 and name:
            warnings.warn(
                f"{path} has more than one column {name!r}: column {place + 1} is read as {own!r}.", stacklevel=3
            )
    return list(names)


def _fitting(
    path: Path, header: list[str], records: Iterable[tuple[int, list[str]]], bad: BadRows, hint: str
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the rows with as many fields as the header, with their index and place; rows without a value are none."""
    index = 0
    for line, record in records:
        if not any(record) and len(header) > 1:
            if record:  # blank lines are not rows to pandas, either
                bad.add_empty(path, f"line {line}", index)
                index += 1
            continue
        values = record or [""]
        if len(values) == len(header):
            yield index, f"line {line}", values
        else:
            problem = f"{counted(len(values), 'field')} where the header has {len(header)}"
            returns = any("\r" in value for value in values)
            problem += f"; {'a carriage return without a line feed ends no row' if returns else hint}"
            bad.add(path, f"line {line}", index, problem, values)
        index += 1


def _joined_at_returns(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Join lines that end in a carriage return alone with the next, unless the first does, and warn of them.

    In its place is a NUL, which no text has, for the reader of CSV takes the end of any line for that of a row.
    """
    usual, joined, number, found = "", "", 1, list[int]()
    for line in lines:
        usual = usual or line[-1:]
        if usual == "\n" and line.endswith("\r"):
            joined += line[:-1] + "\0"
            found += [] if joined.count('"') % 2 or number in found[-1:] else [number]  # it may be in a quoted field
        else:
            yield joined + line
            joined, number = "", number + 1
    if joined:
        yield joined.replace("\0", "\n")
    if found:
        shown = ", ".join(map(str, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
        warnings.warn(
            f"{path}: a carriage return without a line feed is read as part of a text ({counted(len(found), 'line')}: "
            f"{shown}); where it is to end a row, write a line feed, and elsewhere best a space.",
            stacklevel=2,
        )


def _records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records with their first lines, without blank lines at the beginning and at the end."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line, begun = 1, False
    blank: list[tuple[int, list[str]]] = []
    try:
        for record in reader:
            if record:
                record = [value.replace("\0", "\r") for value in record]
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


def _read_excel(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read the first sheet that has rows; values become text, as in CSV."""
    try:
        import openpyxl
    except ImportError:
        raise AttendropError(
            f"{path}: Excel workbooks need openpyxl; run `pip install 'attendrop[excel]'`, or save the sheet as CSV."
        ) from None
    with _openpyxl_parses(path):
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    with closing(book):
        sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or book.worksheets
        if not sheets:
            raise AttendropError(f"{path} has no sheet that can be read; save it as a usual Excel workbook, or as CSV.")
        for sheet in sheets:
            sheet.reset_dimensions()  # which some programs write wrong
            rows = (row for row in enumerate(_sheet_lines(path, sheet), start=1) if any(row[1]))
            _, header = next(rows, (0, []))
            width = max((number for number, name in enumerate(header, start=1) if name), default=0)
            if width:
                break
        else:
            return
        if len(book.sheetnames) > 1:
            warnings.warn(
                f"{path}: of its sheets {', '.join(book.sheetnames)}, {sheet.title!r} is read; to read another, move "
                "it to the front, or save it as CSV.",
                stacklevel=2,
            )
        # A row that is longer than the header has values without a column, an error as in CSV.
        padded = ((line, row + [""] * (width - len(row))) for line, row in rows)
        records = ((line, row if any(row[width:]) else row[:width]) for line, row in padded)
        header = _own_names(path, header[:width])
        hint = "the first row with values must name every column"
        yield from in_chunks(path, header, _fitting(path, header, records, bad, hint), size)


@contextmanager
def _openpyxl_parses(path: Path) -> Iterator[None]:
    """Turn errors of openpyxl into a sentence, and drop its warnings, which are of what writing would lose."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # of any class: it hardly checks what it parses
        raise AttendropError(f"{path} is not a readable Excel workbook ({error}); save it anew, or as CSV.") from None


def _sheet_lines(path: Path, sheet: Any) -> Iterator[list[str]]:
    from openpyxl.utils.escape import unescape

    rows = sheet.iter_rows(values_only=True)
    while True:
        with _openpyxl_parses(path):
            row = next(rows, None)
        if row is None:
            return
        yield [unescape(_cell(value)) for value in row]  # Excel writes a carriage return as _x000D_


def _cell(value: Any) -> str:
    """Write the value of a cell as CSV has it: 3 for 3.0, dates as 2024-05-31, nothing for an empty one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return "" if value is None else str(value)


def _plain_value(value: Any) -> Any:
    """Return numbers as such, and dates and times as text, as CSV has them."""
    if isinstance(value, Decimal):
        return float(value)
    return _cell(value) if isinstance(value, date | time) else value


def _check_quotes(path: Path, line: int, record: list[str], delimiter: str) -> None:
    """Raise if a quoted field of a TSV file seems to hold whole rows: then its quotes are part of texts."""
    if delimiter == "\t" and any("\t" in field and "\n" in field for field in record):
        raise AttendropError(
            f"{path}, line {line}: a field begins with a quote, and holds tabs and line breaks up to the next one. If "
            f"the quotes are part of the texts, {_HOW_TO_QUOTE}."
        )


def _read_json_lines(path: Path, size: int | None, bad: BadRows, *, may_be_array: bool = False) -> Iterator[Table]:
    columns: list[str] = []
    with text_lines(path) as lines:
        start = [next(lines)]
        while not start[-1].strip():  # a line that is not blank follows
            start.append(next(lines))
        is_array = may_be_array and start[-1].lstrip().startswith("[")
        objects = (_elements if is_array else _objects)(path, chain(start, lines), bad)
        while chunk := list(islice(objects, size)):
            index, places, found = map(list, zip(*chunk, strict=True))
            columns = list(dict.fromkeys(chain(columns, *found)))
            yield Table(path, columns, [[row.get(column) for column in columns] for row in found], places, index)


def _elements(path: Path, lines: Iterable[str], bad: BadRows) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of a JSON array."""
    try:
        elements = json.loads("".join(lines), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise AttendropError(f"{path} is not a valid JSON array ({error}).") from None
    yield from _objects(path, map(json.dumps, elements), bad, "row")


def _objects(
    path: Path, lines: Iterable[str], bad: BadRows, unit: str = "line"
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of JSON lines, with their index and place."""
    written = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    for index, (number, line) in enumerate(written):
        place = f"{unit} {number}"
        try:
            row = json.loads(line, object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            array = "; name a file with a JSON array .json" if number == 1 and line.lstrip().startswith("[") else ""
            bad.add(path, place, index, f"not valid JSON ({error}){array}", line)
            continue
        half = _lone_surrogate(line, row)
        if half is not None:
            bad.add(path, place, index, f"{half!r} is half of a surrogate pair, not a character", line)
        elif isinstance(row, dict):
            yield index, place, row
        else:
            bad.add(path, place, index, f'every {unit} must be an object such as {{"text": ...}}', line)


def _lone_surrogate(line: str, row: Any) -> str | None:
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
    import pyarrow.parquet  # only here, for it takes as long to load as most files to read

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = _own_names(path, file.schema_arrow.names)
            first = 0
            for batch in [file.read()] if size is None else file.iter_batches(size):
                if batch.num_rows == 0:
                    continue
                index = list(range(first, first + batch.num_rows))
                values = ([_plain_value(value) for value in column.to_pylist()] for column in batch.columns)
                rows = [list(row) for row in zip(*values, strict=True)]
                yield Table(path, columns, rows, [f"row {number + 1}" for number in index], index)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise AttendropError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from None


_READERS: dict[str, Callable[[Path, int | None, BadRows], Iterator[Table]]] = {
    ".csv": lambda path, size, bad: _read_delimited(path, size, bad, ","),
    ".tsv": lambda path, size, bad: _read_delimited(path, size, bad, "\t"),
    ".xlsx": _read_excel,
    ".jsonl": _read_json_lines,
    ".json": partial(_read_json_lines, may_be_array=True),
    ".parquet": _read_parquet,
    ".conll": read_conll,
    ".conllu": read_conllu,
    ".txt": read_lines,
}
# What to do with files of formats that are not read.
_SAVED_AS = dict.fromkeys((".xls", ".ods"), "save it as .xlsx, or as CSV in UTF-8")
