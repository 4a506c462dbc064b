"""Encodings, separators and workbooks: what is read as the same table."""

from __future__ import annotations

import codecs
import gzip
import io
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zipfile import ZipFile

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.dialect import ENCODINGS, delimiter_of, encoding_of
from attendrop.tasks.heads.classification import Classification, Regression
from attendrop.tasks.table import BadRows, Table
from attendrop.tasks.table_files import read_table

ROWS = [["Größe, Preis", "ja"], ["zwei\nZeilen", "nein"], ["“gut”", "ja"]]
TEXT = 'text;label\n"Größe, Preis";ja\n"zwei\nZeilen";nein\n“gut”;ja\n'


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_are_found_and_a_guess_is_told(tmp_path: Path, encoding: str) -> None:
    content, packed = TEXT.encode(encoding), encoding.startswith("utf-16")
    path = tmp_path / ("a.CSV.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert encoding_of(path) == encoding
    warned = r"a\.csv is not UTF-8: it is read as Windows-1252, which is a guess"
    with pytest.warns(UserWarning, match=warned) if encoding == "cp1252" else nullcontext():
        table = read_table(path)
    assert (table.columns, table.rows, table.delimiter) == (["text", "label"], ROWS, ";")


def test_the_mark_of_utf_8_does_not_make_windows_1252_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(codecs.BOM_UTF8 + TEXT.encode("cp1252"))  # as some programs write for Excel
    assert encoding_of(path) == "cp1252"
    with pytest.warns(UserWarning, match="is read as Windows-1252, which is a guess"):
        table = read_table(path)
    assert (table.columns, table.rows) == (["text", "label"], ROWS)
    path.write_bytes(TEXT.encode("utf-8-sig") + "“broken”;ja".encode("cp1252"))
    with pytest.raises(AttendropError, match=r"a\.csv, line 6: byte 0x93 is not UTF-8"):
        read_table(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["текст,метка\nпривет мир,да\n", "文本,标签\n我喜欢这部一流的电影并再看一次,好\n"])
def test_utf_16_without_a_mark_is_found_in_other_scripts(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    table = read_table(tmp_path / "a.csv")
    assert [table.columns, *table.rows] == [line.split(",") for line in text.splitlines()]


@pytest.mark.filterwarnings("ignore:.*a guess")
def test_a_file_that_ends_in_its_only_letter_of_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\none,café".encode("cp1252"))
    assert read_table(tmp_path / "a.csv").rows == [["one", "café"]]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.txt.gz", "a.conll.gz"])
@pytest.mark.parametrize("place", [1, 2])
def test_a_line_beyond_all_memory_is_refused_when_it_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: int
) -> None:
    monkeypatch.setattr("attendrop.tasks.dialect.LONGEST", 1000)
    first = b'{"text": "label"}\n' if "jsonl" in name else b"text\tlabel\n"
    (tmp_path / name).write_bytes(gzip.compress(first * (place - 1) + b"a" * 10**6))
    with pytest.raises(AttendropError, match=f"line {place}: the line has more than 1,000 characters; divide it"):
        read_table(tmp_path / name)


def test_a_field_beyond_all_memory_is_refused_when_it_is_met(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"' + "many words\n" * 1_700_000)
    with pytest.raises(AttendropError, match=r"line 2: broken quoting [(]field larger than field limit"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize(("encoding", "packed"), [("utf-8", False), ("utf-8-sig", True), ("utf-16", False)])
def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch, packed: bool, encoding: str) -> None:
    content = TEXT.encode(encoding)
    stdin = io.TextIOWrapper(io.BytesIO(gzip.compress(content) if packed else content))
    monkeypatch.setattr("sys.stdin", stdin)
    rows = stream_file("-", text_columns=["text"], head=Classification(("ja",)), size=9, bad=BadRows(), format="csv")
    assert [row for chunk in rows for row in chunk.columns["text"]] == [text for text, _ in ROWS]
    assert not stdin.buffer.closed


@pytest.mark.parametrize(
    ("lines", "usual", "found"),
    [
        (["text;label", "a;b"], ",", ";"),
        (["text, note|label|id", "x, y|z|w"], "\t", "|"),  # into the most columns
        (["text|label|id", "a|b|c", "a, b|c|d"], ",", "|"),
        (["text,label", "a;b;c,d"], ",", ","),  # the header decides
        (["a;b;c,d", "a,b", "c,d"], ",", ","),  # and most rows agree
        (["id;Why, how, and what?;label", "1;so it is;x", "2;no;y"], ",", ";"),  # although commas make more columns
        (["Is it, in short, good?", "a", "b"], "\t", "\t"),
        (["text;label"], ",", ";"),
        (["", ""], ",", ","),
        (['"text";"label"', '"a;b";"c', 'd"'], ",", ";"),
    ],
)
def test_the_separator_is_the_one_that_divides_the_header(lines: list[str], usual: str, found: str) -> None:
    assert delimiter_of([f"{line}\n" for line in lines], usual) == found


@pytest.mark.parametrize("said", ["sep=;", "SEP=;\r"])
def test_the_line_that_tells_excel_the_separator_is_no_header(tmp_path: Path, said: str) -> None:
    (tmp_path / "a.csv").write_bytes(f"{said}\ntext, in words;label\none, two;1\n".encode("utf-8-sig"))
    table = read_table(tmp_path / "a.csv")
    assert (table.columns, table.rows, table.places) == (["text, in words", "label"], [["one, two", "1"]], ["line 3"])
    (tmp_path / "a.csv").write_text(f"{said}\n")
    with pytest.raises(AttendropError, match=r"a\.csv has no rows"):
        read_table(tmp_path / "a.csv")


def test_columns_of_the_same_name_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,note,note,,,note.2\none,1,2,3,4,5\n,,,,,\n\ntwo,1,2,3,4,5\n")
    with (
        pytest.warns(UserWarning, match=r"more than one column 'note': column 3 is read as 'note\.2'"),
        pytest.warns(UserWarning, match=r"more than one column 'note\.2': column 6 is read as 'note\.2\.2'"),
    ):
        table = read_table(tmp_path / "a.csv")
    assert table.columns == ["text", "note", "note.2", "", ".2", "note.2.2"]
    assert (table.places, table.index) == (["line 2", "line 5"], [0, 2])  # as pandas numbers them


def test_of_many_columns_those_that_are_read_are_not_all_named(tmp_path: Path) -> None:
    """Each column that was read named all of them, and each without a name tried the numbers of those before it."""
    (tmp_path / "a.csv").write_text("text" + "," * 9_999 + "\none" + "," * 9_999)
    names: Counter[str] = Counter()

    class Name(str):
        def __repr__(self) -> str:
            names[self] += 1
            return super().__repr__()

    table = replace(read_table(tmp_path / "a.csv"), columns=[Name("text"), *map(Name, range(9_999))])
    assert table.column("text") == ["one"] and not names
    with pytest.raises(AttendropError, match=r"has no column 'x'; its columns are 'text', '0', '1', "):
        table.column("x")


def scores(folder: Path, separator: str, *labels: str) -> str:
    path = folder / "a.csv"
    path.write_text("".join(f'text{separator}"{label}"\n' for label in ("score", *labels)))
    return str(path)


def test_decimal_commas_are_read_where_semicolons_separate_columns(tmp_path: Path) -> None:
    options = {"text_columns": ["text"], "label_column": "score"}
    name = scores(tmp_path, ";", "0,5", "-1,25", "3")
    data = load_files(train_file=name, **options)
    assert data.task.kind == "regression" and data.splits["train"]["label"] == [0.5, -1.25, 3.0]
    assert load_files(train_file=name, label_type="class", **options).task.label_names == ("3", "-1,25", "0,5")
    (chunk,) = stream_file(name, **options, head=Regression(), size=9, bad=BadRows())
    assert chunk.columns["label"] == [0.5, -1.25, 3.0]
    with pytest.raises(AttendropError, match="look like numbers, but are not read as such"):
        load_files(train_file=scores(tmp_path, ",", "0,5", "1,5"), **options)
    with pytest.raises(AttendropError, match=r"mix numbers, such as '0.5' .* text, such as '-' .*--skip-bad-rows"):
        load_files(train_file=scores(tmp_path, ";", "0,5", "-", "1,5"), **options)


# Workbooks ------------------------------------------------------------------------------------------------------------


def workbook(path: Path, *rows: list[object], first: str = "Sheet") -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = first
    sheet = book.create_sheet("tickets")
    for row in rows:
        sheet.append(row)
    book.save(path)
    return path


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace a pattern in the XML of a workbook."""
    with ZipFile(path) as book:
        parts = {name: book.read(name).decode() for name in book.namelist()}
    with ZipFile(path, "w") as book:
        for name, content in parts.items():
            book.writestr(name, re.sub(old, new, content))


def test_a_workbook_is_read_as_its_csv_would_be(tmp_path: Path) -> None:
    day = datetime(2024, 5, 31)
    header: list[object] = ["text", "label", "date", "score", None]
    path = workbook(tmp_path / "a.xlsx", [], header, ["one", 1, day, 0.5], [], ["two", 2.0, None, 3])
    with pytest.warns(UserWarning, match=r"Sheet, tickets, 'tickets' is read; to read another, move it to the"):
        table: Table = read_table(path)
    assert table.columns == ["text", "label", "date", "score"]
    assert table.rows == [["one", "1", "2024-05-31", "0.5"], ["two", "2", "", "3"]]
    assert table.places == ["line 3", "line 5"]


@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_broken_workbooks_are_refused(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["one", "yes", "more"])
    with pytest.raises(AttendropError, match=r"line 2: 3 fields where the header has 2; the first row with"):
        read_table(path)
    path.write_bytes(path.read_bytes()[:99])
    with pytest.raises(AttendropError, match=r"a\.xlsx is not a readable Excel workbook"):
        read_table(path)
    with pytest.raises(AttendropError, match=r"a\.xlsx has no rows"):
        read_table(workbook(path))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("<fill>.*?</fill>", "<fill />", "is not a readable Excel workbook"),  # as some programs write it
        ("<v>1</v>", "<v>1.2.3</v>", "is not a readable Excel workbook"),
        ("</row>", "", "is not a readable Excel workbook"),
        ("schemas.openxmlformats.org/officeDocument/2006", "purl.oclc.org/ooxml/officeDocument", "has no sheet"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_what_openpyxl_cannot_parse_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    """Each was a traceback, or a workbook without rows."""
    rewrite(path := workbook(tmp_path / "a.xlsx", ["text", "label"], ["one", 1]), old, new)
    with pytest.raises(AttendropError, match=rf"a\.xlsx {problem}"):
        read_table(path)


@pytest.mark.filterwarnings("error", "ignore:.*of its sheets")
def test_what_is_not_read_of_a_workbook_is_not_said_to_be_lost(tmp_path: Path) -> None:
    """With a list to choose labels from, a report said "Data Validation extension is not supported"."""
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["one", "yes"])
    lists = '<extLst><ext uri="{CCE6A557-97BC-4b89-ADB6-D9C93CAAB3DF}" /></extLst></worksheet>'
    rewrite(path, "</worksheet>", lists)
    assert read_table(path).rows == [["one", "yes"]]


@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_letters_that_excel_escapes_are_read_as_it_shows_them(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["one_x000D_\ntwo", "_x005F_x000D_"])
    assert read_table(path).rows == [["one\r\ntwo", "_x000D_"]]


@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_a_workbook_is_read_whole_whatever_size_it_says(tmp_path: Path) -> None:
    """Some programs write the size of a sheet wrong, or hide sheets of lists."""
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["one", "yes"], ["two", "no"])
    book = pytest.importorskip("openpyxl").load_workbook(path)
    hidden = book.create_sheet("lists", 0)
    hidden.append(["x", "y"])
    hidden.sheet_state = "hidden"
    book.save(path)
    rewrite(path, r'<dimension ref="[^"]*"', '<dimension ref="A1"')
    assert read_table(path).rows == [["one", "yes"], ["two", "no"]]
    packed = tmp_path / "a.xlsx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(AttendropError, match=r"a\.xlsx\.gz is packed; unpack it"):
        read_table(packed)
