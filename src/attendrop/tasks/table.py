"""Files of rows as tables: formats and encodings, strict readers that name the line, rows left out; values of cells."""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import math
import os
import re
import sys
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError, check_known
from attendrop.support.files import finite, write_bytes
from attendrop.wording import counted, names_of

if TYPE_CHECKING:
    import pandas as pd

STDIN = "-"
SOURCE, TARGET, WORDS, TAGS = "source", "target", "tokens", "tags"
# Columns of a frame beside those of the file, which are named by texts: the line of each row, and what was read of it.
LINE, INPUTS, LABELS = 0, 1, 2
# What is done with labels of evaluation data that training lacks.
UNKNOWN_LABELS = (ERROR, WRONG) = ("error", "wrong")
COUNT_AS_WRONG = f"(--unknown-labels {WRONG} counts it as wrong)"
# Characters of a line or a field: no model reads so many, and a small .gz may unpack to one line beyond all memory.
LONGEST = 2**22
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Encodings that are distinguished, as Python names them, with their usual names.
ENCODINGS = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8 with a byte-order mark",
    "utf-16": "UTF-16",
    "cp1252": "Windows-1252 (a guess)",
}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# First bytes of ZIP archives, such as Excel workbooks, of old workbooks, and of Parquet files.
_NO_TEXT = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"PAR1")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HOW_TO_QUOTE = 'write them doubled in a quoted field, such as """I know,", or save the file as .jsonl'
_NO_VALUE = "the row has no value"
# Places that a message names, lines by which the separator is found, and rows that are collected at a time.
_SHOWN, _SNIFFED, _BLOCK = 5, 50, 4096
# Names of the columns of CoNLL-U that are read, with their places.
_CONLLU = {WORDS: 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
# What a comment of a column file begins with; in CoNLL-U no word begins with #.
_COMMENT = r"# (\S+ =|newdoc\b|newpar\b|id\b|\d+\s*$)|#\t\w+://"
# Labels in the lines of fastText.
_FASTTEXT = re.compile(r"(?<!\S)__label__(\S+)\s*")
# Names of the columns of files with a word in each row, and numbers of sentences, such as "Sentence: 1".
_SENTENCE = re.compile(r"sent(ence)?s?([ _-]*(#|id|idx|index|no|nr|num|number))?", re.IGNORECASE)
_DOCUMENT = re.compile(r"(doc(ument)?|article|text|file|thread)s?[ _-]*(#|id|idx|index|no|nr|num|number|name)", re.I)
_TOKEN, _NUMBER = re.compile(r"(token|word|form)s?", re.IGNORECASE), re.compile(r"(\w+:? )?\S*\d\S*")
HUB = "hub:"  # before names of data sets of the hub
# Number in the file, line and values of a row.
_Row = tuple[int, int, list[Any]]


def files_of(name: str | Path) -> tuple[Path, ...]:
    """Return the files that the name of custom data stands for: one, or parallel text files with commas between them.

    ``train.tr,train.en`` is two files, with a text and its translation in the same lines; ``book.xlsx:Sheet`` is a
    sheet of a file; ``hub:NAME``, a data set of the hub, is none that exists.
    """
    if sheet := sheet_of(name):
        return (Path(str(name).removesuffix(f":{sheet}")),)
    if "," not in str(name) or str(name).startswith(HUB) or Path(name).exists():
        return (Path(name),)
    return tuple(Path(part.strip()) for part in str(name).split(","))


def sheet_of(name: str | Path) -> str:
    """Return the sheet in a name such as ``book.xlsx:Sheet``; empty if it names none."""
    found = re.fullmatch(r".+\.xlsx:([^/\\:]+)", str(name), re.IGNORECASE)
    return found[1] if found and not Path(name).exists() else ""


def with_files(name: str, rename: Callable[[Path], str]) -> str:
    """Return the name of custom data with other names of its files."""
    if name.startswith(HUB):
        return name
    sheet = sheet_of(name)
    return ",".join(map(rename, files_of(name))) + (f":{sheet}" if sheet else "")


def extension_of(path: str | Path) -> str:
    """Return the extension of a file in lower case, such as ".csv" for ``a.csv`` and for ``a.CSV.gz``."""
    name = str(path).lower()
    return Path(name.removesuffix(".gz")).suffix or Path(name).suffix


def default_columns(name: str | None) -> tuple[tuple[str, ...], str | None, str]:
    """Return the text columns, the label column and the label type that the format of a file, "x.conll", implies."""
    if len(files := files_of(name or "")) > 1:
        return (SOURCE,), TARGET, "text"
    known = {".conll": ((WORDS,), TAGS), ".conllu": ((WORDS,), "upos"), ".txt": (("text",), None)}
    return (*known.get(extension_of(files[0]), ((), None)), "auto")


# Values ---------------------------------------------------------------------------------------------------------------

# What labels may be, and those of tables with columns of texts and a column of labels, whose columns are guessed.
LABEL_TYPES = ("auto", "choice", "class", "labels", "number", "spans", "tags", "text")
GUESSED = ("auto", "class", "labels", "number", "spans")
# Longer ones cannot be read as integers or floating-point numbers.
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}(\.0*)?")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Decimal commas, separators of thousands, percent signs.
_THOUSANDS = r"[0-9]{1,3}(([,.' \u00a0\u202f])[0-9]{3}(\3[0-9]{3})*)([.,][0-9]+)?"
_NOTATION = re.compile(rf"[+-]?([0-9]*[.,]?[0-9]+|{_THOUSANDS})\s?%?")
HOW_TO_WRITE = "write numbers with a decimal point, and without percent signs and separators of thousands, such as 0.5"
# Texts that often stand for a label that is not there.
MISSING = {"n/a", "#n/a", "na", "<na>", "none", "null", "(null)", "[null]", "\\n", "nil", "-", "--", "?"}
# How a column for each label says whether a row has it.
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# What may be between the labels of a row that has several, and after them, as forms of Microsoft write "price;speed;".
LABEL_SEPARATORS, _LAST_SEPARATOR = re.compile(r"[;|,]"), re.compile(r"(?<=[^;|,\n、；，])[;|,\n、；，]$")
# The first of these that is in a text divides it: before it, others may belong to names.
_SEPARATORS = re.compile(r"[;|；]"), re.compile("\n"), re.compile("[,、，]")
_JOINED = re.compile(r"\s*[^\w\s.'’()-]\s*|\s*\n\s*")
# An array of texts, as NumPy prints one: without commas between them.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_ARRAY = re.compile(rf"\[\s*(?:{_QUOTED.pattern})(?:\s+(?:{_QUOTED.pattern}))*\s*\]")
# Letters of scripts without spaces between words: Chinese and Japanese; Thai, Lao, Burmese and Khmer.
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LONG_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
# Signs of vowels and other marks, which \w does not match: Latin, Hebrew, Arabic, Indic scripts, Thai to Khmer.
MARKS = "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963"
MARKS += "\u0971-\u0df3\u0e31-\u0e4e\u0eb1-\u0ece\u0f71-\u0f84\u0f8d-\u0fbc\u102b-\u103e\u1056-\u109d\u17b4-\u17d3"
_WORD_LIKE = re.compile(rf"[{UNSPACED}]{{1,2}}|[{_LONG_UNSPACED}]{{1,6}}|[^\s{UNSPACED}{_LONG_UNSPACED}]+")


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def may_be_missing(text: str) -> bool:
    """Return whether a text is blank, or a word for what is not there, such as "n/a" or "nan"."""
    return text.strip().casefold() in {*MISSING, "", "nan", "nat"}


def written(value: Any) -> str:
    """Return the text of a label, without surrounding spaces; empty for a missing one."""
    return "" if is_missing(value) else str(value).strip()


def plain(text: str) -> str:
    """Return a text without differences of case, spaces and Unicode forms of the same letters."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def count_words(text: str) -> int:
    """Count the words of a text; where a script has no spaces, as many letters are one as an average word has."""
    return len(text.split() if text.isascii() else _WORD_LIKE.findall(text))


def read_text(value: Any) -> str:
    """Return a text; raise BadValue for an empty one, a missing number and what is none. "NaN" is a text."""
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str):
        raise BadValue("the text is empty")
    raise BadValue("the text is NaN" if is_missing(value) else f"{value!r} is not text")


def number_form(label: str) -> str:
    """Return the form of a label: "whole", "decimal", "notation" or "text".

    Whole numbers may end with ``.0``; "decimal" are other numbers; "notation" is what looks like a number, but is not
    read as one, such as ``0,5`` or ``10%``.
    """
    if _WHOLE.fullmatch(label):
        return "whole"
    if _DECIMAL.fullmatch(label):
        return "decimal"
    return "notation" if _NOTATION.fullmatch(label) else "text"


def class_name(value: Any) -> str:
    """Return the class name of a label: ``1.0``, which pandas writes for integers in a column with gaps, is ``1``."""
    name = written(value)
    return str(int(name.partition(".")[0])) if "." in name and number_form(name) == "whole" else name


def read_class(value: Any) -> str:
    """Return the class name of a label, also of the only one in a list; raise BadValue if it is no class or number."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = "" if value is None else str(value).strip()
    if text.lower() in ("", "nan"):
        raise BadValue("the label is NaN" if text else "the label is empty")
    if not isinstance(value, str | int | float):
        raise BadValue(f"{value!r} is neither a class nor a number")
    return class_name(value)


def yes_or_no(value: Any) -> bool | None:
    """Read a value that says whether a row has a label, such as ``1`` or ``false``; None of others."""
    text = str(value).strip().lower()
    return _YES_NO.get(text.split(".")[0] if number_form(text) == "whole" else text)


def parsed(value: Any) -> Any:
    """Return what a text stands for in JSON, or as Python or NumPy print it, as in pandas; other values as they are."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{", "("):
        return value
    text = value.strip()
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        if _ARRAY.fullmatch(text):  # of which Python would join the texts
            return [ast.literal_eval(quoted) for quoted in _QUOTED.findall(text)]
        return ast.literal_eval(text)
    return value


def listed(value: Any) -> list[Any] | None:
    """Return a list, also one that a text stands for, or the choices of Label Studio; None for anything else."""
    found = parsed(value)
    found = found["choices"] if isinstance(found, dict) and found.keys() == {"choices"} else found
    return found if isinstance(found, list) else None


def label_names(value: Any) -> list[str]:
    """Return the names in a label of a file: a list, a list in JSON, or a text with separators; missing ones empty."""
    found = listed(value)
    if found is None:
        whole = written(value)
        text = _LAST_SEPARATOR.sub("", whole)
        separator = next((each for each in _SEPARATORS if each.search(whole)), LABEL_SEPARATORS)
        found = separator.split(text) if text else []
    return list(map(written, found))


def joined_labels(labels: Iterable[Any]) -> str | None:
    """Describe a label such as ``urgent|vip``, whose parts are in other labels, too; None if there is none."""
    names = {label.strip(): None for label in dict.fromkeys(each for each in labels if isinstance(each, str))}
    for split, told in ((label_names, ""), (_JOINED.split, "write ';' between them, and ")):
        parts_of = {name: {*map(str.strip, split(name))} for name in names}
        counts = Counter(chain.from_iterable(parts_of.values()))
        for name, parts in parts_of.items():
            # Names of groups with others below them, such as food:price, have signs between them, too.
            known = parts <= names.keys() if told else all(counts[part] > 1 for part in parts)
            if len(parts) > 1 and all(parts) and known:
                return (
                    f"{name!r} joins other labels: if rows have several labels, or none, {told}set --label-type labels"
                )
    return None


# Rows -----------------------------------------------------------------------------------------------------------------


class BadValue(ValueError):
    """What is wrong with values of a row, a sentence without its full stop; of several columns, the place of one."""

    def __init__(self, problem: str, column: int | None = None) -> None:
        super().__init__(problem)
        self.column = column


@dataclass(frozen=True)
class SkippedRow:
    """A row that was skipped."""

    file: str
    place: str  # where in the file it is, such as "line 7"
    reason: str
    row: Any  # values by column, or what could be read of a row that has no columns


@dataclass(kw_only=True)
class BadRows:
    """Collector of invalid rows."""

    skip: bool = False  # keep invalid rows in `skipped` instead of raising an error for the first
    unknown_labels: str | None = None  # whether labels that training lacks are an "error", or count as "wrong"
    skipped: list[SkippedRow] = field(default_factory=list)  # the invalid rows
    # These, and rows without any value, by their number in the file, from 0: they have no answer.
    left_out: dict[int, SkippedRow] = field(default_factory=dict)

    def add(self, path: Path, place: str, index: int, reason: str, row: Any) -> None:
        """Report an invalid row, see :class:`SkippedRow`; raise AttendropError unless such rows are skipped."""
        if not self.skip:
            end = "" if reason.endswith("?") else "."  # after a suggestion
            separator = ", " if reason.startswith("column '") else ": "
            raise AttendropError(f"{path}, {place}{separator}{reason}{end} Correct it, or add --skip-bad-rows.")
        self.left_out[index] = SkippedRow(str(path), place, reason, row)
        self.skipped.append(self.left_out[index])


def in_order(skipped: Sequence[SkippedRow]) -> list[SkippedRow]:
    """Sort skipped rows in the order of each file."""
    files = list(dict.fromkeys(row.file for row in skipped))
    return sorted(skipped, key=lambda row: (files.index(row.file), int(row.place.split()[-1])))


def write_skipped(path: str | Path, skipped: Sequence[SkippedRow]) -> None:
    """Write skipped rows as JSON lines, in the order of each file: ``file``, ``place``, ``reason``, ``row``."""
    lines = [json.dumps(finite(asdict(row)), ensure_ascii=False, default=str) + "\n" for row in in_order(skipped)]
    write_bytes(Path(path), "".join(lines).encode(errors="backslashreplace"))


def skipped_places(skipped: Sequence[SkippedRow]) -> str:
    """Return where the first skipped rows are: "train.csv: line 3, line 9; dev.csv: line 2, ..."."""
    places: dict[str, list[str]] = {}
    for row in in_order(skipped)[:_SHOWN]:
        places.setdefault(row.file, []).append(row.place)
    shown = "; ".join(f"{file}: {', '.join(found)}" for file, found in places.items())
    return shown + (", ..." if len(skipped) > _SHOWN else "")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file, or of a part of it."""

    path: Path
    # The column :data:`LINE`, the line of each row from 1 (with quoted line breaks, its first line), and those of the
    # file: texts in CSV, TSV and workbooks, typed values in other formats. Its index is the number of each row in the
    # file, from 0, invalid rows included.
    frame: pd.DataFrame
    unit: str = "line"  # what a row is called in messages; "row" in files without lines
    delimiter: str = ""  # separator of the columns in CSV and TSV files

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def own_columns(self) -> list[str]:
        """The names of the columns of the file."""
        return [name for name in self.frame.columns if isinstance(name, str)]

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns; in place of one with objects those of their entries, such as ``meta.channel``."""
        names = list[str]()
        for name in self.own_columns:
            values = [] if self.delimiter else self.column(name)
            objects = [value for value in values if isinstance(value, dict)]
            entries = list(dict.fromkeys(chain(*(_entries(name, value) for value in objects))))
            entries = entries if len(entries) <= 100 else []  # more are no columns
            whole = not entries or not all(isinstance(value, dict) or is_missing(value) for value in values)
            names += [name, *entries] if whole else entries
        return names

    @property
    def places(self) -> list[str]:
        """Where each row is, such as "line 7"."""
        return [f"{self.unit} {line}" for line in self.frame[LINE]]

    def column(self, name: str | int) -> list[Any]:
        """Return the values of a column; raise AttendropError if there is none."""
        if name not in self.frame.columns and name not in self.columns:  # naming columns takes longer than finding one
            listed = f"its columns are {names_of(self.columns)}"
            check_known(str(name), self.columns, f"{self.path} has no column {name!r}", listed)
        if name in self.frame.columns:
            return list(self.frame[name].tolist())
        own = next(each for each in self.own_columns if str(name).startswith(f"{each}."))
        return [_entries(own, value).get(str(name)) for value in self.column(own)]

    def values(self, names: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """Return the values of some columns, row by row; raise AttendropError if one is missing."""
        return list(zip(*map(self.column, names), strict=True)) if names else [()] * len(self)

    def with_column(self, name: str | int, values: Sequence[Any]) -> Table:
        """Return the table with other values in a column, or with another column, the last."""
        import pandas as pd

        frame = self.frame.copy(deep=False)
        frame[name] = pd.Series(values, frame.index, object)
        return replace(self, frame=frame)

    def with_absent(self, names: Sequence[str]) -> Table:
        """Return the table with empty columns, with a warning, for those that it lacks, if each row names its own."""
        table, named_by_rows = self, extension_of(self.path) in (".json", ".jsonl")
        for name in [name for name in names if named_by_rows and name not in self.columns]:
            warnings.warn(f"{self.path} has no {name!r} in its first rows, where it is read as blank.", stacklevel=2)
            table = table.with_column(name, [None] * len(self))
        return table

    def read(
        self, columns: Sequence[Any], read: Callable[..., Any], bad: BadRows, into: str | int | None = None
    ) -> Table:
        """Read each row by a function of values, into a column if one is given; leave out rows that raise BadValue."""
        found, good, typed = [], [], not self.delimiter  # only JSON and Parquet can hold what is no character
        for row, values in enumerate(self.values(columns)):
            try:
                refuse_broken(values if typed else ())
                found.append(read(*values))
                good.append(True)
            except BadValue as problem:
                good.append(False)
                line, index = self.frame[LINE].iloc[row], int(self.frame.index[row])
                content = {name: self.frame[name].iloc[row] for name in self.own_columns}
                column = problem.column if len(columns) > 1 else 0
                where = "" if column is None else f"column {columns[column]!r}: "
                bad.add(self.path, f"{self.unit} {line}", index, f"{where}{problem}", content)
        table = self if all(good) else replace(self, frame=self.frame[good])
        return table if into is None else table.with_column(into, found)


def _entries(name: str, value: Any) -> dict[str, Any]:
    """Return the entries of an object, and of those in it, by names such as ``meta.channel``; another value alone."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    return {key: entry for inner, each in value.items() for key, entry in _entries(f"{name}.{inner}", each).items()}


def refuse_broken(values: Iterable[Any], column: int | None = None) -> None:
    """Raise BadValue for a text with a NUL character or half of a surrogate pair, as JSON can write, also in a list."""
    for number, value in enumerate(values):
        place = number if column is None else column  # that of a list for the texts in it
        if isinstance(value, list):
            refuse_broken(value, place)
        elif isinstance(value, str) and ("\0" in value or (not value.isascii() and _SURROGATE.search(value))):
            raise BadValue("it has a NUL character, or half of a surrogate pair, which no text has", place)


def tables_of(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[_Row],
    size: int | None = None,
    unit: str = "line",
    delimiter: str = "",
) -> Iterator[Table]:
    """Yield tables of at most ``size`` rows, each with its number, line and values."""
    import pandas as pd

    rows = iter(rows)
    while True:
        index, lines, cells = list[int](), list[int](), [list[Any]() for _ in columns]
        # Columns grow by blocks, for many small lists take time and memory.
        while block := list(islice(rows, _BLOCK if size is None else min(_BLOCK, size - len(index)))):
            numbers, places, values = zip(*block, strict=True)
            index += numbers
            lines += places
            for column, part in zip(cells, zip(*values, strict=True), strict=True):
                column += part
        if not index:
            return
        frame = pd.DataFrame(dict(zip((LINE, *columns), (lines, *cells), strict=True)), index, dtype=object)
        yield Table(path, frame, unit, delimiter)


# Reading --------------------------------------------------------------------------------------------------------------


def read_table(path: str | Path, bad: BadRows | None = None) -> Table:
    """Read a file as one table, see :func:`read_chunks`; it is remembered, for a run guesses, checks and loads."""
    bad, files = bad or BadRows(), files_of(path)
    there = all(file.is_file() for file in files)  # else reading says what is missing
    states = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in map(os.stat, files)] if there else []
    table, found, said = read_once(str(path), tuple(states))
    for message in said:
        warnings.warn(message, stacklevel=2)
    for row, left_out in found.left_out.items():
        if left_out.reason == _NO_VALUE:
            bad.left_out[row] = left_out
        else:
            bad.add(Path(left_out.file), left_out.place, row, left_out.reason, left_out.row)
    if table is None:
        first, skipped = found.skipped[0], counted(len(found.skipped), "row")
        raise AttendropError(f"{path} has no valid row: {skipped} skipped; {first.place}: {first.reason}.")
    return table


@lru_cache(maxsize=4)
def read_once(path: str, states: tuple[tuple[int, ...], ...]) -> tuple[Table | None, BadRows, list[str]]:
    """Read a file, whose ``states`` change with it; return what is left out of it, and warnings, too."""
    bad = BadRows(skip=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = next(read_chunks(path, None, bad), None)
    return table, bad, [str(warning.message) for warning in caught]


def column_names(path: str | Path) -> list[str]:
    """Return the columns of a file."""
    return read_table(path, BadRows(skip=True)).columns


def read_chunks(
    path: str | Path, size: int | None, bad: BadRows | None = None, *, format: str | None = None
) -> Iterator[Table]:
    """Read a file in chunks, by its extension: a table, sentences, lines of text, or two parallel texts.

    Tables are .csv, .tsv, .xlsx (the first sheet with rows, or ``book.xlsx:Sheet``), .jsonl, .json (JSON lines, or an
    array of objects, also as the only entry of an object) and .parquet files, and data sets of the hub, ``hub:NAME``.
    Text may be packed by gzip, with ``.gz`` after the extension, in one of :data:`ENCODINGS`. CSV and TSV files have a
    header, quoting as in RFC 4180, and may have quoted line breaks; the separator is the one that divides the header,
    or what a line ``sep=;`` before it says. No string is read as a missing value. The columns of JSON lines are those
    of the rows read so far. Where a table has a word in each row, and a column with numbers of sentences, a row becomes
    a sentence. A row of plain text (.txt) is a line, the column ``text``, with ``label`` where lines begin as for
    fastText, ``__label__x``; and of two parallel texts a line of both, ``source`` and ``target``. A row of a column
    file is a sentence, whose values are lists with an entry for each word: ``tokens``, ``column_2`` and so on, and last
    ``tags`` (.conll); or ``tokens``, ``lemma``, ``upos``, ``xpos``, ``feats`` and ``deprel`` (.conllu).

    Args:
        path: The file; "-" is standard input. Two files, ``"train.tr,train.en"``, are read in parallel.
        size: Number of rows in a chunk, at most; None reads one table.
        bad: Handling of invalid rows, such as those with a wrong number of fields. By default, the first raises.
        format: Format such as "csv"; by default, the extension of ``path``.

    Raises:
        AttendropError: The file is missing, empty or broken, or its extension is unknown.
    """
    if len(files := files_of(path)) > 1:
        if len(files) != 2:
            raise AttendropError(f"{path} are {len(files)} parallel files; give two, the texts and their targets.")
        if missing := [file for file in files if not file.is_file()]:
            raise AttendropError(f"there is no file {missing[0]}.")
        yield from _read_lines(files, (SOURCE, TARGET), size)
        return
    if str(path).startswith(HUB):
        place, *given = str(path).removeprefix(HUB).split(":")
        if len(given) > 2:
            raise AttendropError(f"{path} is not of the form {HUB}NAME, {HUB}NAME:SPLIT or {HUB}NAME:CONFIG:SPLIT.")
        try:
            for part in read_hub([place, *given[:-1]], given[-1] if given else "train", size):
                yield replace(part, path=Path(path))
        except Exception as error:  # of any class: what is wrong with the name, the network or the files
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            told = f"{path} cannot be loaded ({reason}); save it as .parquet, or correct the name."
            raise AttendropError(told) from None
        return
    name, suffix = str(path), f".{format}" if format is not None else extension_of(files[0])
    path, bad, file = Path(path), bad or BadRows(), files[0]
    if name != STDIN and not file.is_file() and (suffix in _READERS or not file.suffix or file.is_dir()):
        raise AttendropError(f"{file} is not a file." if file.exists() else f"there is no file {file}.")
    if suffix not in _READERS:
        raise AttendropError(f"{path} has the unknown extension {suffix!r}; save it as one of {', '.join(_READERS)}.")
    if suffix in (".parquet", ".xlsx") and (name == STDIN or name.lower().endswith(".gz")):
        raise AttendropError(f"A {suffix} file is neither read from standard input nor packed; give the name of one.")
    rows_before, table = len(bad.skipped), None
    for table in _READERS[suffix](path, size, bad):
        yield table
    if table is None and len(bad.skipped) == rows_before:
        raise AttendropError(f"{path} has no rows.")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, str]]:
    """Open a text file, or standard input, which stays open, unpacked, to read bytes; find its encoding."""
    with ExitStack() as stack:
        if str(path) == STDIN:
            file: Any = io.BufferedReader(sys.stdin.buffer)
            stack.callback(file.detach)
        else:
            file = stack.enter_context(path.open("rb"))
        try:
            file = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(b"\x1f\x8b") else file
            start = bytes(file.peek(4096)[:4096])
            if start.startswith(_NO_TEXT):
                raise AttendropError(
                    f"{path} is no text, but an archive, an Excel workbook or a Parquet file; unpack it, name it .xlsx "
                    "or .parquet, or save it as CSV in UTF-8."
                )
            encoding = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
            if encoding is None and str(path) != STDIN:  # which cannot be read twice
                letters = broken = 0
                decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
                for block in chain(iter(partial(file.read, 2**20), b""), [b""]):
                    text = decoder.decode(block, final=not block)
                    if not text.isascii():
                        broken += len(_SURROGATE.findall(text))
                        letters += len(text) - len(text.encode("ascii", "ignore"))
                file.seek(0)
                # Where most letters are UTF-8 already, the file is UTF-8 with a broken place.
                encoding = "cp1252" if 2 * broken > letters else None
            yield file, encoding or "utf-8"
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise AttendropError(f"{path} is not a readable gzip file ({error}).") from None


def encoding_of(path: Path) -> str:
    """Find the encoding of a text file, a key of :data:`ENCODINGS`; raise AttendropError for another kind of file."""
    with _opened(path) as (_, encoding):
        return encoding


@contextmanager
def text_lines(path: Path, longest: int = LONGEST) -> Iterator[Iterator[str]]:
    """Iterate over the lines of a text file, with their line ends; warn of an encoding that is a guess.

    Lines end in a line feed, or in a carriage return in a file that begins without a line feed, as once on Macs. They
    have at most ``longest`` characters. The file may be packed by gzip; "-" is standard input.

    Raises:
        AttendropError: The file is empty, of another kind, or not in the encoding in which it begins.
    """
    with _opened(path) as (file, encoding):
        if encoding == "cp1252":
            warnings.warn(
                f"{path} is not UTF-8: it is read as Windows-1252, which is a guess; if letters are wrong, save it as "
                "UTF-8.",
                stacklevel=3,
            )
        codec = "utf-8-sig" if encoding == "utf-8" else encoding
        start = file.peek(4096).decode(codec, "replace")
        end = "\r" if "\r" in start and "\n" not in start else "\n"
        text = io.TextIOWrapper(file, encoding=codec, errors="surrogateescape", newline=end)

        def valid() -> Iterator[str]:
            for number, line in enumerate(iter(partial(text.readline, longest + 1), ""), start=1):
                if len(line) > longest:
                    problem = f"the line has more than {longest:,} characters; divide it"
                elif not line.isascii() and (wrong := re.search("[\0\udc80-\udcff]", line)) and wrong[0] != "\0":
                    problem = f"byte 0x{ord(wrong[0]) - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
                elif "\0" in line:
                    problem = "a NUL character, which no text has; delete it, or save the file as UTF-8"
                else:
                    yield line
                    continue
                raise AttendropError(f"{path}, line {number}: {problem}.")

        try:
            lines, first = valid(), list[str]()
            while not first or not first[-1].strip():
                if (line := next(lines, None)) is None:
                    raise AttendropError(f"{path} is empty.")
                first.append(line)
            yield chain(first, lines)
        except UnicodeDecodeError as error:
            raise AttendropError(f"{path} is broken {ENCODINGS[encoding]} ({error.reason}).") from None
        finally:
            text.detach()


# Tables of fields: CSV, TSV, workbooks --------------------------------------------------------------------------------


def delimiter_of(lines: Sequence[str], usual: str) -> str:
    """Find the separator of columns, given the first lines, the header first.

    It differs from the ``usual`` one if it divides the header into more columns, or the usual one does not divide most
    rows as it divides the header; and if it divides most rows into as many columns as the header.
    """
    lines = [line.replace("\r", " ") for line in lines]  # within a line, it is refused later
    widths = {each: [len(record) for record in csv.reader(lines, delimiter=each) if record] for each in SEPARATORS}
    if not widths[usual]:
        return usual  # blank lines

    def divides(delimiter: str) -> bool:
        header, *rows = widths[delimiter]
        return sum(row == header for row in rows) * 2 > len(rows) or (not rows and widths[usual][0] == 1)

    least = widths[usual][0] if divides(usual) else 1
    others = [each for each in SEPARATORS if widths[each][0] > least and divides(each)]
    return max(others, key=lambda each: widths[each][0], default=usual)


def _read_delimited(path: Path, size: int | None, bad: BadRows, usual: str) -> Iterator[Table]:
    csv.field_size_limit(LONGEST)  # for all readers of the process; the default of 131,072 is too low for documents
    with text_lines(path) as lines:
        first = list(islice(lines, _SNIFFED))
        if marker := _FASTTEXT.search(next(filter(str.strip, first))):
            raise AttendropError(f"{path} is a fastText file, with labels such as '{marker[0].strip()}'; name it .txt.")
        if said := re.fullmatch(r"sep=([,;|\t])\s*", first[0], re.IGNORECASE):  # which names it to Excel
            first[0] = "\n"  # no header, but a line to count
        delimiter = said[1] if said else delimiter_of(first, usual)
        spaced = 2 * sum(f'{delimiter} "' in line for line in first) > len(first)  # before quotes
        records = _records(path, chain(first, lines), delimiter, spaced=spaced and delimiter != "\t")
        header = _own_names(path, next((record for _, record in records if any(record)), []))
        rows = _rows_of(path, header, records, bad, "a field that contains the separator must be quoted")
        for table in tables_of(path, header, rows, size, delimiter=delimiter):
            # Fields that seem to hold whole rows, between two quotes that are part of texts: a line within such a field
            # begins or ends as other rows do, or has as many separators, without spaces after them.
            texts = ((n, v) for name in table.columns for n, v in enumerate(table.column(name)) if isinstance(v, str))
            broken, joined = sorted({n for n, text in texts if "\n" in text or "\r" in text}), list[str]()
            names = (table.columns[0], table.columns[-1]) if broken else ()
            often = [{v for v, count in Counter(table.column(name)).items() if v and count > 1} for name in names]
            for line, *row in table.frame.iloc[broken].itertuples(index=False, name=None):
                fields = [re.split("\r\n|\r|\n", field) for field in row if "\n" in field or "\r" in field]
                if any(
                    any(delimiter in each and each.partition(delimiter)[0] in often[0] for each in parts[1:])
                    or any(delimiter in each and each.rpartition(delimiter)[2] in often[1] for each in parts[:-1])
                    or any(
                        each.count(delimiter) == len(header) - 1 > 1 and f"{delimiter} " not in each
                        for each in parts[1:]
                    )
                    for parts in fields
                ):
                    joined.append(f"{line}-{line + sum(len(parts) - 1 for parts in fields)}")
            if joined:
                more = f" and {len(joined) - _SHOWN} more" if len(joined) > _SHOWN else ""
                warnings.warn(
                    f"{path}: quotes join what look like separate rows (lines {', '.join(joined[:_SHOWN])}{more}): "
                    f"each is read as one row. If the quotes are part of the texts, {_HOW_TO_QUOTE}.",
                    stacklevel=2,
                )
            yield table


def _records(
    path: Path, lines: Iterable[str], delimiter: str, *, spaced: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records with their first lines, without blank lines; if ``spaced``, without spaces before fields."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=spaced)
    line = 1
    try:
        for record in reader:
            if delimiter == "\t" and any("\t" in field and "\n" in field for field in record):
                raise AttendropError(
                    f"{path}, line {line}: a field begins with a quote, and holds tabs and line breaks up to the next "
                    f"one. If the quotes are part of the texts, {_HOW_TO_QUOTE}."
                )
            if record:
                yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        problem = f"broken quoting ({error}); a field that begins with a quote ends with one, and doubles those inside"
        if "new-line character" in str(error):
            problem = "a carriage return without a line feed; write a line feed where a row ends, elsewhere a space"
        raise AttendropError(f"{path}, line {line}: {problem}.") from None


def _own_names(path: Path, header: list[str]) -> list[str]:
    """Strip names, and number repeated ones, ``note.2``; warn of these, and of a title above the header."""
    names, numbers = dict[str, str](), dict[str, int]()
    if 2 * sum(map(bool, map(str.strip, header))) < len(header):
        warnings.warn(
            f"{path}: of {len(header)} columns, the header names {names_of(list(filter(str.strip, header)))}; if this "
            "is a title, delete the lines above the header.",
            stacklevel=3,
        )
    for place, name in enumerate(map(str.strip, header)):
        number, own = numbers.get(name, 1), name
        while own in names:
            number += 1
            own = f"{name}.{number}"
        names[own], numbers[name] = name, number
        if number > 1 and name:
            said = f"{path} has more than one column {name!r}: column {place + 1} is read as {own!r}."
            warnings.warn(said, stacklevel=3)
    return list(names)


def _rows_of(
    path: Path, header: list[str], records: Iterable[tuple[int, list[str]]], bad: BadRows, hint: str
) -> Iterator[_Row]:
    """Yield the rows of a table; or its sentences, if it has a word in each row and a column that numbers sentences."""
    records, width = iter(records), len(header)
    begin = list(islice(records, 3))
    # Surveys say more of the columns under their names: Qualtrics the questions and ids, SurveyMonkey kinds of answers.
    ids = [any(row) and all(cell.startswith('{"ImportId"') for cell in row if cell) for _, row in begin]
    kinds = [row[:1] == [""] and {"Response", "Open-Ended Response"} & {*row} for _, row in begin[:1]]
    if more := ids.index(True) + 1 if any(ids) else int(any(kinds)):
        lines = ", ".join(f"line {line}" for line, _ in begin[:more])
        warnings.warn(f"{path}: what a survey says of its columns is no row: {lines}.", stacklevel=2)
    records, row = chain(begin[more:], records), next((row for _, row in begin[more:]), [])
    places = [[at for at, name in enumerate(header) if form.fullmatch(name)] for form in (_SENTENCE, _TOKEN)]
    documents = [at for at, name in enumerate(header) if _DOCUMENT.fullmatch(name)]  # where numbers may begin anew
    at, word = (each[0] if len(each) == 1 and len(row) == width else None for each in places)
    single = word is not None and all(
        len(each[word].split()) == 1 for _, each in begin[more:] if len(each) == width and any(each)
    )
    texts = any(len(cell.split()) > 2 for _, each in begin[more:] for place, cell in enumerate(each) if place != at)
    if at is None or word is None or not single or texts or not _NUMBER.fullmatch(row[at].strip()):
        for index, (line, record) in enumerate(records):
            if not any(record) and (width > 1 or not record):
                bad.left_out[index] = SkippedRow(str(path), f"line {line}", _NO_VALUE, {})
            elif len(record) == width:
                yield index, line, record
            else:
                problem = f"{counted(len(record), 'field')} where the header has {width}; {hint}"
                bad.add(path, f"line {line}", index, problem, record)
        return
    said = f"{path} has a word in each row: they are read as sentences, by the column {header[at]!r}."
    warnings.warn(said, stacklevel=2)

    known = set[tuple[str, ...]]()

    def numbered() -> Iterator[tuple[tuple[str, ...], int, list[str]]]:
        last: tuple[str, ...] = ("",)  # some write the number once for a sentence
        for line, record in records:
            if number := "".join(record[at : at + 1]).strip():
                last = (number, *(record[place] for place in documents if place < len(record)))
            if any(record):
                yield last, line, record

    for index, (number, group) in enumerate(groupby(numbered(), key=itemgetter(0))):
        words = list(group)
        _, line, record = next((each for each in words if len(each[2]) != width), words[0])
        problem = f"{counted(len(record), 'field')} where the header has {width}; {hint}"
        if number in known:
            problem = f"words of sentence {number[0]!r} are also before other sentences; sort them, or number each"
        if number in known or len(record) != width:
            bad.add(path, f"line {line}", index, problem, record)
        else:
            columns: list[Any] = [list(values) for values in zip(*(values for *_, values in words), strict=True)]
            columns[at] = number[0]
            yield index, line, columns
        known.add(number)


def _read_excel(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read the sheet that is named, or the first visible one that has rows under its header; values become text."""
    import pandas as pd

    wanted, (file,) = sheet_of(path), files_of(path)

    try:
        from openpyxl.utils.escape import unescape  # Excel writes a carriage return as _x000D_

        with warnings.catch_warnings(action="ignore"), pd.ExcelFile(file, "openpyxl") as book:  # of what writing loses
            known = [sheet.title for sheet in book.book.worksheets]
            titles = [sheet.title for sheet in book.book.worksheets if sheet.sheet_state == "visible"]
            titles = [title for title in known if title == wanted] if wanted else titles
            sheets = book.parse(titles or known[:1], header=None, dtype=object, na_filter=False)
    except ImportError:
        raise AttendropError(
            f"{file}: Excel workbooks need openpyxl; run `pip install 'attendrop[excel]'`, or save the sheet as CSV."
        ) from None
    except Exception as error:  # of any class: openpyxl hardly checks what it parses
        raise AttendropError(f"{file} is not a readable Excel workbook ({error}); save it anew, or as CSV.") from None
    if wanted and not titles:
        raise AttendropError(f"{file} has no sheet {wanted!r}; its sheets are {names_of(known)}.")
    for title, sheet in sheets.items():
        rows = ([unescape(_cell(value)) for value in row] for row in sheet.itertuples(index=False))
        lines = [(number, row if any(row) else []) for number, row in enumerate(rows, start=1)]
        filled = [place for place, (_, row) in enumerate(lines) if row]
        if len(filled) < 2:  # a title, say
            continue
        if len(sheets) > 1:
            warnings.warn(
                f"{path}: of its sheets {', '.join(titles)}, {title!r} is read; to read another, name it, as in "
                f"'{path}:{next(each for each in titles if each != title)}'.",
                stacklevel=2,
            )
        (_, header), *records = lines[filled[0] : filled[-1] + 1]  # blank rows between others have no answer
        width = max(number for number, name in enumerate(header, start=1) if name)
        # A row that is longer than the header has values without a column, an error as in CSV.
        fields = [(line, row if any(row[width:]) else row[:width]) for line, row in records]
        header = _own_names(path, header[:width])
        hint = "the first row with values must name every column"
        yield from tables_of(path, header, _rows_of(path, header, fields, bad, hint), size)
        return


def _cell(value: Any) -> str:
    """Write the value of a cell as CSV has it: 3 for 3.0, dates as 2024-05-31, nothing for an empty one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return "" if value is None or value != value else str(value)


# Typed values: JSON and Parquet ---------------------------------------------------------------------------------------


def _read_json(path: Path, size: int | None, bad: BadRows, *, may_be_array: bool = False) -> Iterator[Table]:
    def objects(lines: Iterable[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        there = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
        for index, (number, line) in enumerate(there):
            problem = f'every {unit} must be an object such as {{"text": ...}}'
            try:
                if isinstance(row := json.loads(line), dict):
                    yield index, number, row
                    continue
            except (ValueError, RecursionError) as error:
                array = "; name a file with a JSON array .json" if number == 1 and line.lstrip()[0] == "[" else ""
                problem = f"not valid JSON ({error}){array}"
            bad.add(path, f"{unit} {number}", index, problem, line)

    # An array may be a single line, and is in memory as a whole.
    with text_lines(path, 64 * LONGEST if may_be_array else LONGEST) as lines:
        unit = "line"
        if may_be_array:
            text = "".join(lines)
            found: Any = None
            try:
                found = json.loads(text)
            except (ValueError, RecursionError) as error:
                if text.lstrip().startswith("["):
                    raise AttendropError(f"{path} is not a valid JSON array ({error}).") from None
            if isinstance(found, dict):
                found = _rows_in(found)
                if isinstance(found, dict) and "\n" in text.strip():
                    entries = names_of(list(found))
                    raise AttendropError(f"{path} is one object, with {entries}; save the list of its rows alone.")
            lines, unit = (map(json.dumps, found), "row") if isinstance(found, list) else (io.StringIO(text), "line")
        columns, rows = list[str](), objects(lines)
        while chunk := list(islice(rows, size)):
            columns = list(dict.fromkeys(chain(columns, *(row for _, _, row in chunk))))
            values = ((index, line, [row.get(name) for name in columns]) for index, line, row in chunk)
            yield from tables_of(path, columns, values, None, unit)


def _rows_in(found: dict[str, Any]) -> Any:
    """Return the rows that one object holds: a list in it, or a table as pandas writes it; otherwise the object."""
    values = list(found.values())
    lists = [each for each in values if isinstance(each, list) and all(isinstance(row, dict) for row in each)]
    if len(lists) == 1 and not any(isinstance(each, str) and " " in each for each in values):
        return lists[0]
    if values and all(isinstance(each, dict) and each.keys() == values[0].keys() for each in values):
        if all(map(str.isdecimal, values[0])):
            return [dict(zip(found, row, strict=True)) for row in zip(*(each.values() for each in values), strict=True)]
        return values if all(map(str.isdecimal, found)) else found
    of_rows = not any(map(_TOKEN.fullmatch, found)) and all(isinstance(each, list) for each in values)
    if of_rows and len({len(each) for each in values}) == 1 < len(values):
        return [dict(zip(found, row, strict=True)) for row in zip(*values, strict=True)]
    return found


def _plain(value: Any) -> Any:
    """Return a typed value as JSON has it: dates and times are text, as in CSV."""
    if isinstance(value, Decimal):
        return float(value)
    return _cell(value) if isinstance(value, date | time) else value


def read_hub(
    names: Sequence[str], split: str, size: int | None = None, only: Collection[str] = (), **options: Any
) -> Iterator[Table]:
    """Read a split of a data set of the hub, or in a local folder, as ``datasets.load_dataset`` names it.

    Numbers of classes become their names. Images and sounds are left out, and columns other than ``only`` these.
    """
    import datasets

    rows = datasets.load_dataset(*names, split=split, **options)
    features = {key: each for key, each in rows.features.items() if not only or key in only}
    features = {key: of for key, of in features.items() if not hasattr(of, "decode_example") or hasattr(of, "int2str")}
    if not features:
        raise AttendropError(f"{names[0]} has images or sounds alone: {names_of(rows.column_names)}; name other data.")
    first = 0
    for batch in rows.select_columns(list(features)).iter(size or max(len(rows), 1)):
        columns = [list(map(_plain, batch[key])) for key in features]
        for column, of in zip(columns, features.values(), strict=True):
            if (classes := getattr(getattr(of, "feature", of), "names", None)) is not None:
                every = [*classes, None]  # -1: there is none
                column[:] = [
                    [every[number] for number in value]
                    if isinstance(value, list)
                    else every[-1 if value is None else value]
                    for value in column
                ]
        found = ((row, row + 1, list(each)) for row, each in enumerate(zip(*columns, strict=True), start=first))
        first += len(columns[0])
        yield from tables_of(Path(names[0]), list(features), found, None, "row")


def _read_parquet(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = _own_names(path, file.schema_arrow.names)
            batches = [file.read()] if size is None else file.iter_batches(size)
            parts = (zip(*(map(_plain, each.to_pylist()) for each in batch.columns), strict=True) for batch in batches)
            rows = ((row, row + 1, list(values)) for row, values in enumerate(chain.from_iterable(parts)))
            yield from tables_of(path, columns, rows, size, "row")
    except (pyarrow.ArrowException, OSError) as error:
        raise AttendropError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from None


# Plain text and column files ------------------------------------------------------------------------------------------


def _read_lines(files: Sequence[Path], columns: Sequence[str], size: int | None) -> Iterator[Table]:
    """Read a text file, or several with as many lines each, a column for each."""

    def rows() -> Iterator[_Row]:
        for index, texts in enumerate(zip_longest(*lines)):
            if None in texts:
                raise AttendropError(
                    f"{files[texts.index(None)]} ends before line {index + 1}, and the other file goes on; parallel "
                    "files have the same number of lines."
                )
            yield index, index + 1, [text.rstrip("\r\n") for text in texts]

    with ExitStack() as stack:
        lines = [stack.enter_context(text_lines(file)) for file in files]
        yield from tables_of(Path(", ".join(map(str, files))), columns, rows(), size)


def _read_texts(path: Path, size: int | None, bad: BadRows) -> Iterator[Table]:
    """Read a text file; where the first line has labels as for fastText, each line has some, one or several."""
    with text_lines(path) as lines:
        first = list(islice(lines, _SNIFFED))
        lines = chain(first, lines)
        if _FASTTEXT.match(first[0]) is None:
            filled = [line for line in first if line.strip()]
            words, tabs = {len(line.split()) for line in filled}, {line.count("\t") for line in filled}
            tags = {line.split()[-1] for line in filled}  # which repeat
            if 9 < len(filled) < len(first) and len(words) == 1 and words != {1} and 2 * len(tags) <= len(filled):
                raise AttendropError(f"{path} has words in its lines, and their tags; name it .conll.")
            if len(filled) > 1 and len(tabs) == 1 and tabs != {0}:
                raise AttendropError(f"{path} has {counted(tabs.pop(), 'tab')} in each line, as a table; name it .tsv.")
            yield from _read_lines([path], ["text"], size)
            return

        pairs = ([_FASTTEXT.sub("", line).strip(), _FASTTEXT.findall(line)] for line in lines)
        rows = ((index, index + 1, pair) for index, pair in enumerate(pairs))
        for table in tables_of(path, ["text", "label"], rows, size):
            labels = table.column("label")
            if all(len(each) < 2 for each in labels):
                labels = [next(iter(each), "") for each in labels]
            yield table.with_column("label", labels)


def read_sentences(lines: Iterable[str], comment: str = _COMMENT) -> Iterator[tuple[int, list[list[str]], list[str]]]:
    """Yield the sentences of a column file: the first line with a word, from 1, the words' fields, comments before it.

    Columns are separated by tabs where a line has one, otherwise by spaces; a blank line ends a sentence. Comments
    before a sentence, such as ``# name = value``, and the ``-DOCSTART-`` lines of CoNLL-2003 are not words.
    """
    first, words, comments = 0, list[list[str]](), list[str]()
    for number, line in enumerate(chain(lines, [""]), start=1):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith("-DOCSTART-"):
            if words:
                yield first, words, comments
            if words or not line.strip():
                words, comments = [], []
        elif not words and re.match(comment, line):
            comments.append(line.removeprefix("#").strip())
        else:
            first = first if words else number
            words.append(line.split("\t") if "\t" in line else line.split())


def _read_conll(path: Path, size: int | None, bad: BadRows, *, of_treebank: bool = False) -> Iterator[Table]:
    """Read a column file; one of Universal Dependencies without tokens of several words, 3-4, and empty words, 8.1."""
    with text_lines(path) as lines:
        sentences = read_sentences(lines, "#" if of_treebank else _COMMENT)
        if (begin := next(sentences, None)) is None:
            return
        width = 10 if of_treebank else len(begin[1][0])
        first, last = zip(*((word[0], word[-1]) for word in begin[1]), strict=True)
        are_tags = [[re.fullmatch(r"O|[BIESLU]-\S+", each) is not None for each in end] for end in (first, last)]
        if all(are_tags[0]) and not all(are_tags[1]) and "O" in first:
            raise AttendropError(f"{path} has the tags before the words; write each word first, and its tag last.")
        others = [f"column_{number}" for number in range(2, width)]
        columns = list(_CONLLU) if of_treebank else [WORDS, *others, *([TAGS] if width > 1 else [])]

        def rows() -> Iterator[_Row]:
            for index, (line, words, _) in enumerate(chain([begin], sentences)):
                if wrong := [number for number, word in enumerate(words) if len(word) != width]:
                    word = words[wrong[0]]
                    problem = f"{counted(len(word), 'column')} where there should be {width}"
                    bad.add(path, f"line {line + wrong[0]}", index, problem, word)
                else:
                    kept = [word for word in words if word[0].isdecimal() or not of_treebank]
                    places = _CONLLU.values() if of_treebank else range(width)
                    yield index, line, [[word[at] for word in kept] for at in places]

        yield from tables_of(path, columns, rows(), size)


_READERS: dict[str, Callable[[Path, int | None, BadRows], Iterator[Table]]] = {
    ".csv": partial(_read_delimited, usual=","),
    ".tsv": partial(_read_delimited, usual="\t"),
    ".xlsx": _read_excel,
    ".jsonl": _read_json,
    ".json": partial(_read_json, may_be_array=True),
    ".parquet": _read_parquet,
    ".conll": _read_conll,
    ".conllu": partial(_read_conll, of_treebank=True),
    ".txt": _read_texts,
}
