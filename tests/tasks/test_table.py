"""Files as tables: encodings, separators, formats, places of rows, and the message for each mistake."""

from __future__ import annotations

import gzip
import io
import json
import re
import warnings
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow
import pyarrow.parquet
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.table import (
    ENCODINGS,
    BadRows,
    Table,
    default_columns,
    default_label_type,
    delimiter_of,
    encoding_of,
    read_chunks,
    read_table,
)
from attendrop.tasks.types.classification import Classification

ROWS = [("Größe, Preis", "ja"), ("zwei\nZeilen", "nein"), ("“gut”", "ja")]
TEXT = 'text;label\n"Größe, Preis";ja\n"zwei\nZeilen";nein\n“gut”;ja\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of each test, so that messages name files without a path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def rows(table: Table) -> list[tuple[Any, ...]]:
    return table.values(table.columns)


# Encodings and line ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_are_found_and_a_guess_is_told(encoding: str) -> None:
    content, packed = TEXT.encode(encoding), encoding.startswith("utf-16")
    name = write("a.CSV.gz" if packed else "a.csv", gzip.compress(content) if packed else content)
    assert encoding_of(Path(name)) == encoding
    warned = r"a\.csv is not UTF-8: it is read as Windows-1252, which is a guess"
    with pytest.warns(UserWarning, match=warned) if encoding == "cp1252" else nullcontext():
        table = read_table(name)
    assert (table.columns, rows(table), table.delimiter) == (["text", "label"], ROWS, ";")


@pytest.mark.parametrize(("name", "place"), [("a.csv.gz", 1), ("a.jsonl.gz", 2)])
def test_a_line_beyond_all_memory_is_refused_when_it_is_met(name: str, place: int) -> None:
    first = b'{"text": "label"}\n' if "jsonl" in name else b"text\tlabel\n"
    write(name, gzip.compress(first * (place - 1) + b"a" * 2**23))
    with pytest.raises(AttendropError, match=f"line {place}: the line has more than 4,194,304 characters; divide it"):
        read_table(name)


@pytest.mark.parametrize(("encoding", "packed"), [("utf-8", False), ("utf-8-sig", True), ("utf-16", False)])
def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch, packed: bool, encoding: str) -> None:
    content = TEXT.encode(encoding)
    stdin = io.TextIOWrapper(io.BytesIO(gzip.compress(content) if packed else content))
    monkeypatch.setattr("sys.stdin", stdin)
    found = stream_file(
        "-", text_columns=["text"], task_type=Classification(("ja",)), size=9, bad=BadRows(), format="csv"
    )
    assert [row for chunk in found for row in chunk.columns["text"]] == [text for text, _ in ROWS]
    assert not stdin.buffer.closed


CONLLU = """# newdoc
# text = I don't. It rains
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\t# 1\t_\tX\t_\t_\t_\t_\t_\t_
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "text,label\na,x\nb,y\n"),
        ("a.conll", "a\tO\ncat\tB\n\nthe\tO\n"),
        ("a.conllu", CONLLU),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"}'),
    ],
)
def test_lines_may_end_in_carriage_returns(name: str, text: str) -> None:
    """As those of old Macs do, and so does text that Excel exports for them; one within a line ends none."""
    tables = [read_table(write(name, text.replace("\n", end))) for end in ("\n", "\r\n", "\r")]
    assert rows(tables[0]) == rows(tables[1]) == rows(tables[2]) and len(tables[0]) > 1
    assert tables[0].places == tables[1].places == tables[2].places
    assert rows(read_table(write("b.txt", "a\rcat\ndog\n"))) == [("a\rcat",), ("dog",)]


# Tables of fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "usual", "found"),
    [
        (["text;label", "a;b"], ",", ";"),
        (["text, note|label|id", "x, y|z|w"], "\t", "|"),  # into the most columns
        (["text,label", "a;b;c,d"], ",", ","),  # the header decides
        (["a;b;c,d", "a,b", "c,d"], ",", ","),  # and most rows agree
        (["id;Why, how, and what?;label", "1;so it is;x", "2;no;y"], ",", ";"),  # although commas make more columns
        (["Is it, in short, good?", "a", "b"], "\t", "\t"),
        (["", ""], ",", ","),
        (['"text";"label"', '"a;b";"c', 'd"'], ",", ";"),
    ],
)
def test_the_separator_is_the_one_that_divides_the_header(lines: list[str], usual: str, found: str) -> None:
    assert delimiter_of([f"{line}\n" for line in lines], usual) == found


def test_the_line_that_tells_excel_the_separator_is_no_header() -> None:
    table = read_table(write("a.csv", "SEP=;\r\ntext, in words;label\none, two;1\n".encode("utf-8-sig")))
    assert (table.columns, rows(table), table.places) == (["text, in words", "label"], [("one, two", "1")], ["line 3"])
    with pytest.raises(AttendropError, match=r"a\.csv has no rows"):
        read_table(write("a.csv", "sep=;\n"))


def test_columns_of_the_same_name_are_numbered_and_lines_of_separators_count() -> None:
    write("a.csv", "text,note,note,,,note.2\none,1,2,3,4,5\n,,,,,\n\ntwo,1,2,3,4,5\n")
    with (
        pytest.warns(UserWarning, match=r"more than one column 'note': column 3 is read as 'note\.2'"),
        pytest.warns(UserWarning, match=r"more than one column 'note\.2': column 6 is read as 'note\.2\.2'"),
    ):
        table = read_table("a.csv", bad := BadRows())
    assert table.columns == ["text", "note", "note.2", "", ".2", "note.2.2"]
    assert (table.places, table.frame.index.tolist()) == (["line 2", "line 5"], [0, 2])  # as pandas numbers them
    assert list(bad.left_out) == [1] and not bad.skipped


SWALLOWED = {
    # Row n is in line n + 2; a quote begins the text of the first row, and ends that of the last.
    "rows": ('"so, row 5"', [(3, 8), (20, 21), (40, 55)], "lines 5-10, 22-23, 42-57"),
    "spaces": ('"so"', [(3, 4)], "lines 5-6"),
}


@pytest.mark.parametrize(("quoted", "pairs", "places"), SWALLOWED.values(), ids=SWALLOWED)
@pytest.mark.parametrize("label_first", [False, True])
def test_rows_between_stray_quotes_are_warned_of(
    quoted: str, pairs: list[tuple[int, int]], places: str, label_first: bool
) -> None:
    """Such a file is legal CSV, with a field that has line breaks, but the rows are gone."""
    texts = [f"row {n}" for n in range(80)] + [quoted]
    for first, last in pairs:
        texts[first], texts[last] = f'"well,{texts[first]}' if first == last else f'"{texts[first]}', f'{texts[last]}"'
    cells = [("text", "label"), *((text, "no" if n % 2 else "yes") for n, text in enumerate(texts))]
    lines = [",".join(reversed(row) if label_first else row) for row in cells]
    with pytest.warns(UserWarning) as caught:
        table = read_table(write("a.csv", "\r\n".join(lines)))
    assert len(table) == 81 - sum(last - first for first, last in pairs)
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith(f"a.csv: quotes join what look like separate rows ({places}): ")


@pytest.mark.parametrize(
    "text",
    [
        *("Well, fine.\nNo comma", "a\n\nb, c, d", "It was fine, good\nNo", "milk,eggs\nand bread"),
        *("Dear team,\nit is late again.\nBest wishes,\nAnna", "see (a,b)\nor c", "it costs 3,50\nor so"),
    ],
)
@pytest.mark.parametrize("labels", [("good", "bad"), ("good", "")])
def test_line_breaks_in_texts_are_not_warned_of(text: str, labels: tuple[str, str]) -> None:
    """A comma at the end of a line, or without a space after it, was taken for the end of a row."""
    before = [f"row {n},{labels[n % 2]}\n" for n in range(9)]
    name = write("a.csv", "".join(["text,label\n", *before, f'"{text}",{labels[0]}\n']))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(name).column("text")[-1] == text


# Workbooks ------------------------------------------------------------------------------------------------------------


def workbook(name: str, *rows: list[object]) -> str:
    book = pytest.importorskip("openpyxl").Workbook()
    sheet = book.create_sheet("tickets")
    for row in rows:
        sheet.append(row)
    book.save(name)
    return name


def rewrite(name: str, old: str, new: str) -> str:
    """Replace a pattern in the XML of a workbook."""
    with ZipFile(name) as book:
        parts = {part: book.read(part).decode() for part in book.namelist()}
    with ZipFile(name, "w") as book:
        for part, content in parts.items():
            book.writestr(part, re.sub(old, new, content))
    return name


def test_a_workbook_is_read_as_its_csv_would_be() -> None:
    day = datetime(2024, 5, 31)
    header: list[object] = ["text", "label", "date", "score", None]
    name = workbook("a.xlsx", [], header, ["one_x000D_\ntwo", 1, day, 0.5], [], ["_x005F_x000D_", 2.0, None, 3])
    with pytest.warns(UserWarning, match=r"Sheet, tickets, 'tickets' is read; to read another, move it to the"):
        table = read_table(name)
    assert table.columns == ["text", "label", "date", "score"]
    assert rows(table) == [("one\r\ntwo", "1", "2024-05-31", "0.5"), ("_x000D_", "2", "", "3")]
    assert table.places == ["line 3", "line 5"]


@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_what_is_no_table_in_a_workbook_is_refused() -> None:
    with pytest.raises(AttendropError, match=r"a\.xlsx is not a readable Excel workbook"):
        read_table(rewrite(workbook("a.xlsx", ["text", "label"], ["one", 1]), "<v>1</v>", "<v>1.2.3</v>"))
    with pytest.raises(AttendropError, match=r"line 2: 3 fields where the header has 2; the first row with"):
        read_table(workbook("b.xlsx", ["text", "label"], ["one", "yes", "more"]))
    book = pytest.importorskip("openpyxl").load_workbook(workbook("c.xlsx", ["text"], ["one"]))
    hidden = book.create_sheet("lists", 0)  # as spreadsheets keep the choices of a cell
    hidden.append(["x"])
    hidden.sheet_state = "hidden"
    book.save("c.xlsx")
    assert rows(read_table("c.xlsx")) == [("one",)]


# Typed values ---------------------------------------------------------------------------------------------------------


def test_values_of_json_and_parquet_keep_their_types_but_for_dates() -> None:
    table = read_table(write("a.jsonl", '{"text": "a"}\n\n{"text": "b", "note": [1]}'))
    assert (table.columns, rows(table)) == (["text", "note"], [("a", None), ("b", [1])])
    assert (table.places, table.frame.index.tolist()) == (["line 1", "line 3"], [0, 1])
    columns = {"n": [1, None], "x": [Decimal("1.5"), None], "day": [date(2024, 5, 31), None], "words": [["a"], ["b"]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "a.parquet")
    table = read_table("a.parquet")
    assert rows(table) == [(1, 1.5, "2024-05-31", ["a"]), (None, None, None, ["b"])]
    assert table.places == ["row 1", "row 2"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_chunks_of_a_file_are_the_file(suffix: str) -> None:
    texts = [f"text {n}" for n in range(25)]
    lines = {"csv": ["text", *texts], "jsonl": [json.dumps({"text": text}) for text in texts]}
    name = f"a.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), name)
    else:
        write(name, "\n".join(lines[suffix]))
    chunks, whole = list(read_chunks(name, 10)), read_table(name)
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert [row for chunk in chunks for row in rows(chunk)] == rows(whole) == [(text,) for text in texts]
    assert [place for chunk in chunks for place in chunk.places] == whole.places
    assert [number for chunk in chunks for number in chunk.frame.index] == list(range(25))


# Column files and parallel files --------------------------------------------------------------------------------------


def test_column_files_have_a_sentence_in_each_row() -> None:
    text = "-DOCSTART- -X- O\n\n# file = one\nEU NNP B-ORG\nrejects VBZ O\n\n\n\n#\t#\tO\n#1\tCD\tO\n"
    table = read_table(write("a.conll", text))
    assert table.columns == ["tokens", "column_2", "tags"] and table.places == ["line 4", "line 9"]
    assert rows(table) == [(["EU", "rejects"], ["NNP", "VBZ"], ["B-ORG", "O"]), (["#", "#1"], ["#", "CD"], ["O", "O"])]
    table = read_table(write("a.conllu", CONLLU))
    assert table.column("tokens") == [["I", "do", "n't", "."], ["# 1"]] and table.places == ["line 3", "line 10"]
    assert table.column("upos") == [["PRON", "AUX", "PART", "PUNCT"], ["X"]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a X\nb\n", "a.conll, line 2: 1 column where the first line of the file has 2"),
        ("a.conllu", "1\ta\n", "word 1 has 2 columns instead of 10, separated by tabs"),
        ("a.conllu", CONLLU.replace("4\t.\t.", "5\t.\t."), "word 4 has the number 5"),
    ],
)
def test_a_broken_sentence_is_refused_or_left_out(name: str, text: str, message: str) -> None:
    write(name, text + ("\na X\n" if name == "a.conll" else "\n1\ta\t_\tX\t_\t_\t0\t_\t_\t_\n"))
    with pytest.raises(AttendropError, match=message):
        read_table(name)
    table = read_table(name, bad := BadRows(skip=True))
    assert table.column("tokens")[-1] == ["a"] and len(bad.skipped) == 1


def test_parallel_files_are_one_table() -> None:
    files = ",".join([write("a.tr", "bir, iki\nüç\r\ndört\n"), write("a.en", "x\n y\nz\n")])
    assert (default_columns(files), default_label_type(files)) == ((("source",), "target"), "text")
    chunks = list(read_chunks(files, 2))
    assert [row for chunk in chunks for row in rows(chunk)] == [("bir, iki", "x"), ("üç", " y"), ("dört", "z")]
    assert chunks[1].places == ["line 3"] and chunks[1].frame.index.tolist() == [2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("one\ntwo\n", r"a\.en ends before line 3, and the other file goes on"),
        ("one\ntwo\nthree\nfour\n", r"a\.tr ends before line 4"),
        ("one\n  \nthree\n", r"line 2, column 'target': the text is empty"),
        (None, r"there is no file a\.en"),
    ],
)
def test_lines_without_a_partner(lines: str | None, message: str) -> None:
    write("a.tr", "bir\niki\nüç\n")
    if lines is not None:
        write("a.en", lines)
    with pytest.raises(AttendropError, match=message):
        load_files(train_file="a.tr,a.en", text_columns=["source"], label_column="target", label_type="text")


BAD_FILES = [
    ("a.csv", "\n \n", "a.csv is empty."),
    ("a.csv", "text,label\n", "a.csv has no rows."),
    ("a.csv", "text,label\na,yes\nb,no,no\n", "a.csv, line 3: 3 fields where the header has 2; a field that contains"),
    ("a.csv", 'text,label\n"a\nb",yes\nc\n', "a.csv, line 4: 1 field where the header has 2"),
    ("a.csv", 'text,label\na,yes\n"b,no\nc,no\n', "a.csv, line 3: broken quoting (unexpected end of data)"),
    ("a.tsv", 'text\tlabel\n"I know,\tno\nit is fine."\tno\n', "a.tsv, line 2: a field begins with a quote"),
    ("a.csv", b"text,label\n\xc3\xa4\xc3\xb6,yes\ncaf\xe9,no\n", "a.csv, line 3: byte 0xe9 is not UTF-8"),
    ("a.csv", gzip.compress(b"text,label\n" * 99, mtime=0)[:-9], "a.csv is not a readable gzip file"),
    ("a.csv", "text,label\na,b".encode("utf-16")[:-1], "a.csv is broken UTF-16"),
    ("a.csv", b"PK\x03\x04\x14\0", "a.csv is a ZIP archive, such as an Excel workbook, not text; unpack it"),
    ("a.csv", "text,label\nok,yes\nnu\0ll,no\n", "a.csv, line 3: a NUL character"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', "a.jsonl, line 2: not valid JSON"),
    ("a.jsonl", "[" * 99_999, "a.jsonl, line 1: not valid JSON"),
    ("a.jsonl", '["a", 1]\n', "a.jsonl, line 1: every line must be an object"),
    ("a.jsonl", '{"text": "\\ud800"}\n', "a.jsonl, line 1: '\\ud800' is half of a surrogate pair"),
    ("a.jsonl", '[\n {"text": "a"}\n]\n', "line 1: not valid JSON (Expecting value: line 2 column 1 (char 2)); name"),
    ("a.parquet", "text,label\na,b\n", "a.parquet is not a readable Parquet file"),
    ("a.xml", "text", "unknown extension '.xml'; save it as one of .csv, .tsv, .xlsx, .jsonl, .json, .parquet"),
    ("a.csv", "text,label\nx,y\ncall me\rback,a\n", "a.csv, line 3: a carriage return without a line feed; write a"),
    ("a.csv", "text,label\na,b\n".encode("utf-16-le"), "a.csv, line 1: a NUL character, which no text has; delete it"),
    ("a.xlsx.gz", "text", "A .xlsx file is neither read from standard input nor packed; give the name of one"),
    ("a.json", "[]", "a.json has no rows."),
    ("a.json", '[{"text": "a"}', "a.json is not a valid JSON array (Expecting"),
    ("a.json", '[{"text": "a", "label": "x"}, 3]', "a.json, row 2: every row must be an object such as"),
    ("a.json", '{"text": "a"\n', "a.json, line 1: not valid JSON"),
    *(
        (name, f"{line}\n__label__b no\n", f"{name} is a fastText file, with labels such as '__label__a' in its texts")
        for name, line in (("a.txt", "__label__a the cat"), ("a.csv", "\nthe cat, it __label__a"))
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_bad_file_is_refused_in_a_sentence(name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(AttendropError) as caught:
        read_table(write(name, content))
    assert message in str(caught.value) and "\n" not in str(caught.value)
