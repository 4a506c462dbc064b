"""Files as tables, and what a run reads of them: encodings, formats, labels, and the message for each mistake."""

import gzip
import io
import json
import warnings
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.table import (
    ENCODINGS,
    BadRows,
    Table,
    default_columns,
    delimiter_of,
    encoding_of,
    read_chunks,
    read_table,
    write_skipped,
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


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_are_found_and_a_guess_is_told(encoding: str) -> None:
    content, packed = TEXT.encode(encoding), encoding.startswith("utf-16")
    name = write("a.CSV.gz" if packed else "a.csv", gzip.compress(content) if packed else content)
    assert encoding_of(Path(name)) == encoding
    warned = r"a\.csv is not UTF-8: it is read as Windows-1252, which is a guess"
    with pytest.warns(UserWarning, match=warned) if encoding == "cp1252" else nullcontext():
        table = read_table(name)
    assert (table.columns, rows(table), table.delimiter) == (["text", "label"], ROWS, ";")


def test_a_line_beyond_all_memory_is_refused_when_it_is_met() -> None:
    for name, before in (("a.csv.gz", b""), ("a.jsonl.gz", b'{"text": "label"}\n')):
        write(name, gzip.compress(before + b"a" * 2**23))
        with pytest.raises(
            AttendropError, match=f"line {1 + bool(before)}: the line has more than 4,194,304 characters"
        ):
            read_table(name)


def test_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(gzip.compress(TEXT.encode("utf-16"))))
    monkeypatch.setattr("sys.stdin", stdin)
    given: dict[str, Any] = {"text_columns": ["text"], "task_type": Classification(("ja",)), "format": "csv"}
    found = stream_file("-", size=9, bad=BadRows(), **given)
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
        ("a.conll", "# newdoc\na\tO\ncat\tB\n\n# newpar id = 1\nthe\tO\n"),
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


@pytest.mark.parametrize(
    ("lines", "usual", "found"),
    [
        (["text;label", "a;b"], ",", ";"),
        (["text, note|label|id", "x, y|z|w"], "\t", "|"),  # into the most columns
        (["text,label", "a;b;c,d"], ",", ","),  # the header decides
        (["a;b;c,d", "a,b", "c,d"], ",", ","),  # and most rows agree
        (["id;Why, how, and what?;label", "1;so it is;x", "2;no;y"], ",", ";"),  # although commas make more columns
        (["Is it, in short, good?", "a", "b"], "\t", "\t"),
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


@pytest.mark.parametrize("label_first", [False, True])
def test_rows_between_stray_quotes_are_warned_of(label_first: bool) -> None:
    """Such a file is legal CSV, with a field that has line breaks, but the rows are gone."""
    # Row n is in line n + 2; a quote begins the text of the first row, and ends that of the last.
    pairs, places = [(3, 8), (20, 21), (40, 55)], "lines 5-10, 22-23, 42-57"
    texts = [f"row {n}" for n in range(80)] + ['"so, row 5"']
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
        *("a\n\nb, c, d", "It was fine, good\nNo", "milk,eggs\nand bread", "see (a,b)\nor c"),
        "Dear team,\nit is late again.\nBest wishes,\nAnna",
    ],
)
def test_line_breaks_in_texts_are_not_warned_of(text: str) -> None:
    """A comma at the end of a line, or without a space after it, was taken for the end of a row."""
    before = [f"row {n},{('good', '')[n % 2]}\n" for n in range(9)]
    name = write("a.csv", "".join(["text,label\n", *before, f'"{text}",good\n']))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(name).column("text")[-1] == text


def workbook(name: str, *rows: list[object]) -> str:
    book = pytest.importorskip("openpyxl").Workbook()
    sheet = book.create_sheet("tickets")
    for row in rows:
        sheet.append(row)
    book.save(name)
    return name


def test_a_workbook_is_read_as_its_csv_would_be() -> None:
    day = datetime(2024, 5, 31)
    header: list[object] = ["text", "label", "date", "score", None]
    name = workbook("a.xlsx", [], header, ["one_x000D_\ntwo", 1, day, 0.5], [], ["_x005F_x000D_", 2.0, None, 3])
    with pytest.warns(
        UserWarning, match=r"Sheet, tickets, 'tickets' is read; to read another, name it, as in 'a.xlsx:Sheet'"
    ):
        table = read_table(name)
    assert table.columns == ["text", "label", "date", "score"]
    assert rows(table) == [("one\r\ntwo", "1", "2024-05-31", "0.5"), ("_x000D_", "2", "", "3")]
    assert table.places == ["line 3", "line 5"]
    assert list(table.frame.index) == [0, 2]  # the answer to the blank row is empty, as with a row of separators


@pytest.mark.filterwarnings("ignore:.*of its sheets")
def test_what_is_no_table_in_a_workbook_is_refused() -> None:
    with pytest.raises(AttendropError, match=r"line 2: 3 fields where the header has 2"):
        read_table(workbook("b.xlsx", ["text", "label"], ["one", "yes", "more"]))
    book = pytest.importorskip("openpyxl").load_workbook(workbook("c.xlsx", ["text"], ["one"]))
    hidden = book.create_sheet("lists", 0)  # as spreadsheets keep the choices of a cell
    hidden.append(["x"])
    hidden.sheet_state = "hidden"
    book.create_sheet("about", 0).append(["made in May"])
    book.save("c.xlsx")
    assert rows(read_table("c.xlsx")) == [("one",)]


def test_values_of_json_and_parquet_keep_their_types_but_for_dates() -> None:
    table = read_table(write("a.jsonl", '{"text": "a"}\n\n{"text": "b", "note": [1]}'))
    assert (table.columns, rows(table)) == (["text", "note"], [("a", None), ("b", [1])])
    assert (table.places, table.frame.index.tolist()) == (["line 1", "line 3"], [0, 1])
    columns = {"n": [1, None], "x": [Decimal("1.5"), None], "day": [date(2024, 5, 31), None], "words": [["a"], ["b"]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "a.parquet")
    table = read_table("a.parquet")
    assert rows(table) == [(1, 1.5, "2024-05-31", ["a"]), (None, None, None, ["b"])]
    assert table.places == ["row 1", "row 2"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_chunks_of_a_file_are_the_file(name: str) -> None:
    texts = [f"text {n}" for n in range(25)]
    write("a.csv", "\n".join(["text", *texts]))
    write("a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), "a.parquet")
    chunks, whole = list(read_chunks(name, 10)), read_table(name)
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    assert [row for chunk in chunks for row in rows(chunk)] == rows(whole) == [(text,) for text in texts]
    assert [place for chunk in chunks for place in chunk.places] == whole.places
    assert [number for chunk in chunks for number in chunk.frame.index] == list(range(25))


def test_column_files_have_a_sentence_in_each_row() -> None:
    text = "-DOCSTART- -X- O\n\n# file = one\n# 12\n# id 3b\nEU NNP B-ORG\nrejects VBZ O\n\n\n\n#\t#\tO\n#1\tCD\tO\n"
    table = read_table(write("a.conll", text))
    assert table.columns == ["tokens", "column_2", "tags"] and table.places == ["line 6", "line 11"]
    assert rows(table) == [(["EU", "rejects"], ["NNP", "VBZ"], ["B-ORG", "O"]), (["#", "#1"], ["#", "CD"], ["O", "O"])]
    table = read_table(write("a.conllu", CONLLU))
    assert table.column("tokens") == [["I", "do", "n't", "."], ["# 1"]] and table.places == ["line 3", "line 10"]
    assert table.column("upos") == [["PRON", "AUX", "PART", "PUNCT"], ["X"]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a X\nb\n", "a.conll, line 2: 1 column where there should be 2"),
        ("a.conllu", "1\ta\n", "line 1: 2 columns where there should be 10"),
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
    assert default_columns(files) == (("source",), "target", "text")
    chunks = list(read_chunks(files, 2))
    assert [row for chunk in chunks for row in rows(chunk)] == [("bir, iki", "x"), ("üç", " y"), ("dört", "z")]
    assert chunks[1].places == ["line 3"] and chunks[1].frame.index.tolist() == [2]


def test_lines_without_a_partner() -> None:
    for lines, message in (
        ("one\ntwo\n", r"a\.en ends before line 3, and the other file goes on"),
        ("one\ntwo\nthree\nfour\n", r"a\.tr ends before line 4"),
        ("one\n  \nthree\n", r"line 2, column 'target': the text is empty"),
    ):
        files = ",".join([write("a.tr", "bir\niki\nüç\n"), write("a.en", lines)])
        with pytest.raises(AttendropError, match=message):
            load_files(train_file=files, text_columns=["source"], label_column="target", label_type="text")


BAD_FILES = [
    ("a.csv", "text,label\na,yes\nb,no,no\n", "a.csv, line 3: 3 fields where the header has 2; a field that contains"),
    ("a.csv", 'text,label\n"a\nb",yes\nc\n', "a.csv, line 4: 1 field where the header has 2"),
    ("a.csv", 'text,label\na,yes\n"b,no\nc,no\n', "a.csv, line 3: broken quoting (unexpected end of data)"),
    ("a.tsv", 'text\tlabel\n"I know,\tno\nit is fine."\tno\n', "a.tsv, line 2: a field begins with a quote"),
    ("a.csv", b"text,label\n\xc3\xa4\xc3\xb6,yes\ncaf\xe9,no\n", "a.csv, line 3: byte 0xe9 is not UTF-8"),
    ("a.csv", gzip.compress(b"text,label\n" * 99, mtime=0)[:-9], "a.csv is not a readable gzip file"),
    ("a.csv", b"PK\x03\x04\x14\0", "a.csv is no text, but an archive, an Excel workbook or a Parquet file"),
    ("a.csv", "text,label\nok,yes\nnu\0ll,no\n", "a.csv, line 3: a NUL character"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', "a.jsonl, line 2: not valid JSON"),
    ("a.jsonl", '["a", 1]\n', "a.jsonl, line 1: every line must be an object"),
    ("a.parquet", "text,label\na,b\n", "a.parquet is not a readable Parquet file"),
    ("a.xml", "text", "unknown extension '.xml'; save it as one of .csv, .tsv, .xlsx, .jsonl, .json, .parquet"),
    ("a.csv", "text,label\nx,y\ncall me\rback,a\n", "a.csv, line 3: a carriage return without a line feed; write a"),
    ("a.csv", "text,label\na,b\n".encode("utf-16-le"), "a.csv, line 1: a NUL character, which no text has; delete it"),
    ("a.json", '[{"text": "a"}', "a.json is not a valid JSON array (Expecting"),
    ("a.json", '[{"text": "a", "label": "x"}, 3]', "a.json, row 2: every row must be an object such as"),
    (
        "a.json",
        '{"version": 1,\n "intents": {"a": ["b"]}}',
        "a.json is one object, with 'version', 'intents'; save the list",
    ),
    ("a.conll", "O\ta\nB-THING\tfilm\n", "a.conll has the tags before the words; write each word first, and its tag"),
    ("a.csv", "\nthe cat, __label__a\n__label__b no\n", "a.csv is a fastText file, with labels such as '__label__a'"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_bad_file_is_refused_in_a_sentence(name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(AttendropError) as caught:
        read_table(write(name, content))
    assert message in str(caught.value) and "\n" not in str(caught.value)


GOOD = "text,label\ngood,yes\nbad,no\n"


def labelled(*labels: str) -> str:
    return write("a.csv", "text,label\n" + "".join(f'text,"{label}"\n' for label in labels))


def load_train(name: str, **options: object) -> TaskData:
    return load_files(train_file=name, **({"text_columns": ["text"], "label_column": "label"} | options))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank-lines.csv", "\ntext,label\none,0\n\ntwo,1\n\n\n"),
        ("spaces.csv", "label,text\n 0,one\n1 ,two\n"),
        ("a.jsonl", '{"text": "one", "label": 0}\n\n{"label": 1, "text": "two"}\n'),
        ("a.json", '\n[\n {"text": "one", "label": 0},\n {"label": 1, "text": "two"}]'),
        ("lines.json", '{"text": "one", "label": 0}\n{"label": "1", "text": "two"}\r\n'),
    ],
)
def test_formats_agree(name: str, content: str) -> None:
    data = load_train(write(name, content))
    assert data.task.label_names == ("0", "1") and data.task.type.kind == "classification" and data.source == name
    assert data.splits["train"].to_dict() == {"text": ["one", "two"], "index": [0, 1], "label": [0, 1]}


def test_texts_are_kept_to_the_letter() -> None:
    texts = ['say "hi", he said', "two\nlines", "NA", "Nan", "null", "12", "  spaces ", "\u2028 and \x85", "None"]
    quoted = "".join('"{}",{}\n'.format(text.replace('"', '""'), i) for i, text in enumerate(texts))
    assert load_train(write("a.csv", "text,label\n" + quoted)).splits["train"]["text"] == texts
    lines = "".join(json.dumps({"text": text, "label": i}, ensure_ascii=False) + "\n" for i, text in enumerate(texts))
    assert load_train(write("a.jsonl", lines)).splits["train"]["text"] == texts


def test_two_text_columns_and_all_splits() -> None:
    train = write("train.tsv", "q\ta\tlabel\nx\ty\tno\nx\tz\tyes\n")
    dev = write("dev.csv", "a,q,label\nanswer,question,no\nother,question,yes\n")
    data = load_files(train_file=train, eval_file=dev, text_columns=("q", "a"), label_column="label")
    assert list(data.splits) == ["train", "dev"] and data.task.text_columns == ("q", "a")
    assert data.splits["dev"][0] == {"text": "question", "text_pair": "answer", "index": 0, "label": 0}
    assert data.splits["dev"]["label"] == [0, 1] and data.task.label_names == ("no", "yes")


@pytest.mark.parametrize(
    ("labels", "label_type", "names", "ids"),
    [
        (["10", "9", "-1"], "auto", ("-1", "9", "10"), [2, 1, 0]),  # integers by value, not by spelling
        (["0.0", "1.0", "0."], "auto", ("0", "1"), [0, 1, 0]),  # as pandas writes integers with gaps
        (["1", "2.5", "3.0"], "auto", (), [1.0, 2.5, 3.0]),
        (["1e-3", "-.5", "+2."], "auto", (), [0.001, -0.5, 2.0]),
        (["1.5", "2.0", "1.5"], "class", ("2", "1.5"), [1, 0, 1]),
        (["3", "1_0", "inf"], "class", ("3", "1_0", "inf"), [0, 1, 2]),  # Python would take two more for numbers
    ],
)
def test_labels(labels: list[str], label_type: str, names: tuple[str, ...], ids: list[float]) -> None:
    data = load_train(labelled(*labels), label_type=label_type)
    assert data.task.label_names == names and data.splits["train"]["label"] == ids
    assert data.task.type.kind == ("classification" if names else "regression")


@pytest.mark.parametrize("labels", [["10%", "25 %"], ["1,000", "2,500.5", "7"], ["0,5", "1,5", "n/a"]])
def test_numbers_in_other_notations_are_asked_about(labels: list[str]) -> None:
    """Classes of such names were trained without a word."""
    name = labelled(*labels)
    with pytest.raises(AttendropError, match=f"column 'label': the labels '{labels[0]}' .*look like numbers") as caught:
        load_train(name)
    assert "write numbers with a decimal point" in str(caught.value) and "--label-type class" in str(caught.value)
    with pytest.raises(AttendropError, match=f"'{labels[0]}' is not a finite number; write numbers with a decimal"):
        load_train(name, label_type="number")


def test_labels_that_may_be_none_are_warned_of() -> None:
    name = labelled("yes", "None", r"\N")
    with pytest.warns(UserWarning, match=r"the labels 'None' \(a.csv, line 3\), '\\\\N' \(a.csv, line 4\) are read as"):
        assert load_train(name).task.label_names == ("None", r"\N", "yes")


def test_one_decimal_point_in_any_file_means_numbers() -> None:
    train, dev = write("train.csv", "text,label\na,1\nb,2\n"), write("dev.csv", "text,label\na,1.5\n")
    data = load_files(train_file=train, eval_file=dev, text_columns=["text"], label_column="label")
    assert data.splits["train"]["label"] == [1.0, 2.0] and data.splits["dev"]["label"] == [1.5]


def test_labels_that_training_lacks_can_be_kept() -> None:
    """They have ids after those of the classes, each its own, so that metrics are those of the labels as written."""
    write("train.csv", GOOD)
    write("dev.csv", "text,label\na,yes\nb,maybe\nc,no\nd,never\ne,maybe\nf,\n")
    data = load_train("train.csv", eval_file="dev.csv", unknown_labels="wrong", skip_bad_rows=True)
    assert (data.task.label_names, data.task.type.unknown_names) == (("no", "yes"), ("maybe", "never"))
    assert data.splits["dev"]["label"] == [1, 2, 0, 3, 2] and data.task.type.num_classes == 2
    assert [row.place for row in data.skipped] == ["line 7"]
    assert data.task.type.unknown_counts([1, 2, 0, 3, 2]) == {"maybe": 2, "never": 1}
    with pytest.raises(AttendropError, match="unknown-labels 'wrong' is for classes and for tags of words"):
        load_train("train.csv", eval_file="dev.csv", label_type="labels", unknown_labels="wrong", skip_bad_rows=True)


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.csv", "text,label\ngood,yes\n,no\nb,\nc,no,more\nfine,no\n", ["line 3", "line 4", "line 5"]),
        ("a.csv", "text,label\ngood,0.5\nb,much\nc,nan\nfine,1\n", ["line 3", "line 4"]),
        ("a.jsonl", '{"text": "good", "label": 1}\n[]\n{"text": "fine", "label": 0}', ["line 2"]),
    ],
    ids=["classes", "numbers", "json"],
)
def test_bad_rows_are_left_out_and_listed_when_asked(name: str, content: str, places: list[str]) -> None:
    label_type = "number" if "0.5" in content else "auto"
    with pytest.raises(AttendropError, match="or add --skip-bad-rows"):
        load_train(write(name, content), label_type=label_type)
    data = load_train(name, label_type=label_type, skip_bad_rows=True)
    train = data.splits["train"]
    assert train["text"] == ["good", "fine"] and train["index"] == [0, len(places) + 1]
    assert sorted(row.place for row in data.skipped) == places


def test_skipped_rows_are_listed_in_the_order_of_the_file_with_why_and_what() -> None:
    name = write("a.csv", "text,label\ngood,yes\nbad,\n" + "fine,no\n" * 6 + " ,no\n")
    write_skipped("skipped.jsonl", load_train(name, skip_bad_rows=True).skipped)
    first, second = (json.loads(line) for line in Path("skipped.jsonl").read_text().splitlines())
    assert (first["place"], first["reason"]) == ("line 3", "column 'label': the label is empty")
    assert (second["place"], second["row"], second["file"]) == ("line 10", {"text": " ", "label": "no"}, name)


SCORES, IDS = ("text,label\n" + "".join(f"text {n},{of}{n}\n" for n in range(60)) for of in ("", "id-"))
# The file, further options, and what the message says.
REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("txt,label\na,b\n", {}, "a.csv has no column 'text'; did you mean 'txt'?"),
    ("text,label\na,yes\n ,no\n", {}, "a.csv, line 3, column 'text': the text is empty."),
    ("text,label\na,1.0\nb,NaN\n", {}, "a.csv, line 3, column 'label': the label is NaN."),
    ("text,label\na,1.5\nb,1e999\n", {}, "line 3, column 'label': the label '1e999' is not a finite number."),
    ("text,label\na,1.5\nb,-1e308\n", {}, "line 3, column 'label': the label '-1e308' is too large to train on"),
    ("text,label\na,yes\nb,yes\n", {}, "a.csv has only one class, 'yes'; training needs at least two."),
    (SCORES, {}, "column 'label': 60 different whole numbers may be classes, numbers to predict or ids; set"),
    (IDS, {}, "60 different labels in 60 rows look like ids; give another label column"),
    (GOOD, {"text_columns": ["text", "text"]}, "the column 'text' is given twice"),
    (GOOD, {"eval_file": "yess"}, "dev.csv, line 2, column 'label': the label 'yess' is not among those of training"),
    (GOOD, {"eval_file": "maybe"}, "counts it as wrong); the classes are 'no', 'yes'."),
    (GOOD, {"eval_file": "1"}, "mix numbers, such as '1' (dev.csv, line 2), with text, such as 'yes' (a.csv"),
]


@pytest.mark.parametrize(("content", "options", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(content: str, options: dict[str, object], message: str) -> None:
    if "eval_file" in options:  # a row of this label
        options = options | {"eval_file": write("dev.csv", f"text,label\na,{options['eval_file']}\n")}
    with pytest.raises(AttendropError) as caught:
        load_train(write("a.csv", content), **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
