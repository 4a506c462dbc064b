"""Custom files: what is read from them, and the message for each mistake in them."""

import gzip
import json
import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.table import BadRows, write_skipped
from attendrop.tasks.table_files import read_chunks, read_table

GOOD = "text,label\ngood,yes\nbad,no\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the test, so that messages name files without a path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    Path(name).write_bytes(data)
    return name


def write_parquet(name: str, **columns: list[object]) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), name)
    return name


def load_train(name: str, **options: object) -> TaskData:
    return load_files(train_file=name, **({"text_columns": ["text"], "label_column": "label"} | options))


def read_for(classes: tuple[str, ...], name: str, **options: Any) -> dict[str, list[Any]]:
    """The columns of a file for a model with these classes."""
    head = Classification(classes)
    (chunk,) = stream_file(name, text_columns=["text"], head=head, size=9, bad=BadRows(), **options)
    return chunk.columns


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label\none,0\ntwo,1\n"),
        ("crlf.csv", "text,label\r\none,0\r\ntwo,1\r\n"),
        ("blank-lines.csv", "\ntext,label\none,0\n\ntwo,1\n\n\n"),
        ("spaces.csv", "label,text\n 0,one\n1 ,two\n"),
        ("a.tsv", "text\tlabel\none\t0\ntwo\t1\n"),
        ("a.jsonl", '{"text": "one", "label": 0}\n\n{"label": 1, "text": "two"}\n'),
        ("a.json", '\n[\n {"text": "one", "label": 0},\n {"label": 1, "text": "two"}]'),
        ("lines.json", '{"text": "one", "label": 0}\n{"label": 1, "text": "two"}\n'),
        ("mixed-types.jsonl", '{"text": "one", "label": "0"}\r\n{"label": 1, "text": "two"}\r\n'),
    ],
)
def test_formats_agree(folder: Path, name: str, content: str | bytes) -> None:
    data = load_train(write(name, content))
    assert data.task.label_names == ("0", "1") and data.task.kind == "classification" and data.source == name
    assert data.splits["train"].to_dict() == {"text": ["one", "two"], "index": [0, 1], "label": [0, 1]}


def test_texts_are_kept_to_the_letter(folder: Path) -> None:
    texts = ['say "hi", he said', "two\nlines", "NA", "Nan", "null", "12", "  spaces ", "\u2028 and \x85", "None"]
    quoted = "".join('"{}",{}\n'.format(text.replace('"', '""'), i) for i, text in enumerate(texts))
    assert load_train(write("a.csv", "text,label\n" + quoted)).splits["train"]["text"] == texts
    lines = "".join(json.dumps({"text": text, "label": i}, ensure_ascii=False) + "\n" for i, text in enumerate(texts))
    assert load_train(write("a.jsonl", lines)).splits["train"]["text"] == texts


def test_two_text_columns_and_all_splits(folder: Path) -> None:
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
        (["b", "B", "a"], "auto", ("B", "a", "b"), [2, 0, 1]),
        (["1", "2.0", "3"], "auto", ("1", "2", "3"), [0, 1, 2]),
        (["0.0", "1.0", "0."], "auto", ("0", "1"), [0, 1, 0]),  # as pandas writes integers with gaps
        (["1", "2.5", "3.0"], "auto", (), [1.0, 2.5, 3.0]),
        (["1e-3", "-.5", "+2."], "auto", (), [0.001, -0.5, 2.0]),
        (["1.5", "2.0", "1.5"], "class", ("2", "1.5"), [1, 0, 1]),
        (["3", "1_0", "inf"], "class", ("3", "1_0", "inf"), [0, 1, 2]),  # Python would take two more for numbers
    ],
)
def test_labels(folder: Path, labels: list[str], label_type: str, names: tuple[str, ...], ids: list[float]) -> None:
    rows = "".join(f'text,"{label}"\n' for label in labels)
    data = load_train(write("a.csv", "text,label\n" + rows), label_type=label_type)
    assert data.task.label_names == names and data.splits["train"]["label"] == ids
    assert (data.task.kind, data.task.metric) == (
        ("classification", "accuracy") if names else ("regression", "pearson")
    )


@pytest.mark.parametrize("labels", [["10%", "25 %"], ["1,000", "2,500.5", "7"], ["0,5", "1,5", "n/a"]])
def test_numbers_in_other_notations_are_asked_about(folder: Path, labels: list[str]) -> None:
    """Classes of such names were trained without a word."""
    name = write("a.csv", "text,label\n" + "".join(f'text,"{label}"\n' for label in labels))
    with pytest.raises(AttendropError, match=f"column 'label': the labels '{labels[0]}' .*look like numbers") as caught:
        load_train(name)
    assert "write numbers with a decimal point" in str(caught.value) and "--label-type class" in str(caught.value)
    with pytest.raises(AttendropError, match=f"'{labels[0]}' is not a finite number; write numbers with a decimal"):
        load_train(name, label_type="number")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["10%", "much"], r"the labels '10%' \(a.csv, line 2\) look like numbers, but are read as classes"),
        (["yes", "None", "-"], r"the labels 'None' \(a.csv, line 3\), '-' \(a.csv, line 4\) are read as classes"),
        (["yes", r"\N", "(NULL)"], r"the labels '\\\\N' \(a.csv, line 3\), '\(NULL\)' \(a.csv, line 4\) are read as"),
        (
            ["yes", "label", "no"],
            r"the label 'label' \(a.csv, line 3\) is also the name of the column; if the file has no",
        ),
    ],
)
def test_labels_that_may_be_none_are_warned_of(folder: Path, labels: list[str], message: str) -> None:
    name = write("a.csv", "text,label\n" + "".join(f"text,{label}\n" for label in labels))
    with pytest.warns(UserWarning, match=message):
        assert load_train(name).task.num_labels == len(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_train(name, label_type="class")


def test_one_decimal_point_in_any_file_means_numbers(folder: Path) -> None:
    train, dev = write("train.csv", "text,label\na,1\nb,2\n"), write("dev.csv", "text,label\na,1.5\n")
    data = load_files(train_file=train, eval_file=dev, text_columns=["text"], label_column="label")
    assert data.splits["train"]["label"] == [1.0, 2.0] and data.splits["dev"]["label"] == [1.5]


def test_json_and_parquet_numbers_and_booleans(folder: Path) -> None:
    table = read_table(write("a.jsonl", '{"text": "a"}\n{"text": "b", "note": 1}'))
    assert (table.columns, table.rows) == (["text", "note"], [["a", None], ["b", 1]])
    with pytest.raises(AttendropError, match=r"a\.parquet, row 2, column 'label': the label is empty\."):
        load_train(write_parquet("a.parquet", text=["a", "b"], label=[1, None]))
    for numbers in ([1.0, 2.5], [Decimal("1.0"), Decimal("2.5")]):
        assert load_train(write_parquet("f.parquet", text=["a", "b"], label=numbers)).task.kind == "regression"
    days = write_parquet("d.parquet", text=["a", "b"], label=[date(2024, 5, 31), date(2024, 6, 1)])
    assert load_train(days).task.label_names == ("2024-05-31", "2024-06-01")
    names = load_train(write("b.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}')).task.label_names
    assert names == ("False", "True")


def test_classes_of_a_saved_run(folder: Path) -> None:
    name = write("a.csv", "text,label\na,yes\nb,yes\n")
    assert read_for(("yes", "maybe", "no"), name, label_column="label")["label"] == [0, 0]
    assert list(read_for(("yes", "no"), name)) == ["text", "index"]


BAD_FILES = [
    ("a.csv", "\n \n", "a.csv is empty."),
    ("a.csv", "text,label\n", "a.csv has no rows."),
    ("a.csv", "txt,label\na,b\n", "a.csv has no column 'text'; did you mean 'txt'?"),
    ("a.csv", "x,y\na,b\n", "a.csv has no column 'text'; its columns are 'x', 'y'."),
    ("a.csv", "text,label\na,yes\nb,no,no\n", "a.csv, line 3: 3 fields where the header has 2"),
    ("a.csv", 'text,label\n"a\nb",yes\nc\n', "a.csv, line 4: 1 field where the header has 2"),
    ("a.csv", 'text,label\na,yes\n"b,no\nc,no\n', "a.csv, line 3: broken quoting (unexpected end of data)"),
    ("a.tsv", 'text\tlabel\n"I know,\tno\nit is fine."\tno\n', "a.tsv, line 2: a field begins with a quote"),
    ("a.csv", b"text,label\n\xc3\xa4\xc3\xb6,yes\ncaf\xe9,no\n", "a.csv, line 3: byte 0xe9 is not UTF-8"),
    ("a.csv", gzip.compress(GOOD.encode() * 99, mtime=0)[:-9], "a.csv is not a readable gzip file"),
    ("a.csv", GOOD.encode("utf-16")[:-1], "a.csv is broken UTF-16"),
    ("a.csv", b"PK\x03\x04\x14\0", "a.csv is a ZIP archive, such as an Excel workbook, not text; unpack it"),
    ("a.csv", "text,label\nok,yes\nnu\0ll,no\n", "a.csv, line 3: a NUL character"),
    ("a.jsonl", '{"text": ["a", "\\u0000"], "label": ["X", "O"]}\n', "column 'text': it has a NUL character"),
    ("a.csv", "text,label\na,yes\n ,no\n", "a.csv, line 3, column 'text': the text is empty."),
    ("a.csv", "text,label\na,yes\nb,\n", "a.csv, line 3, column 'label': the label is empty."),
    ("a.csv", "text,label\na,1.0\nb,NaN\n", "a.csv, line 3, column 'label': the label is NaN."),
    ("a.csv", "text,label\na,1.5\nb,1e999\n", "line 3, column 'label': the label '1e999' is not a finite number."),
    ("a.csv", f"text,label\na,2\nb,{'1' * 5000}.0\n", "1111.0' is not a finite number."),
    ("a.csv", "text,label\na,1.5\nb,-1e308\n", "line 3, column 'label': the label '-1e308' is too large to train on"),
    ("a.csv", "text,label\na,yes\nb,yes\n", "a.csv has only one class, 'yes'; training needs at least two."),
    ("a.csv", "text,label\na,1.5\nb,1.5\n", "a.csv has only one number, '1.5'; training needs at least two."),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', "a.jsonl, line 2: not valid JSON"),
    ("a.jsonl", "[" * 99_999, "a.jsonl, line 1: not valid JSON"),
    ("a.jsonl", '["a", 1]\n', "a.jsonl, line 1: every line must be an object"),
    ("a.jsonl", '{"text": "a", "text": "b"}\n', "a.jsonl, line 1: not valid JSON (a key occurs twice)"),
    ("a.jsonl", '{"text": "a", "label": {"b": 1}}\n', "column 'label': {'b': 1} is neither a class nor a number."),
    (
        "scores.csv",
        "text,label\n" + "".join(f"text {n},{n}\n" for n in range(60)),
        "scores.csv, column 'label': 60 different whole numbers may be classes, numbers to predict or ids; set",
    ),
    (
        "ids.csv",
        "text,label\n" + "".join(f"text {n},id-{n}\n" for n in range(60)),
        "ids.csv, column 'label': 60 different labels in 60 rows look like ids; give another label column",
    ),
    ("a.parquet", "text,label\na,b\n", "a.parquet is not a readable Parquet file"),
    ("a.xml", "text", "unknown extension '.xml'; give a file with one of .csv, .tsv, .xlsx, .jsonl, .json, .parquet"),
    ("a.json", "[]", "a.json has no rows."),
    ("a.json", '[{"text": "a"}', "a.json is not a valid JSON array (Expecting"),
    ("a.json", '[{"text": "a", "text": "b"}]', "a.json is not a valid JSON array (a key occurs twice)."),
    ("a.json", '[{"text": "a", "label": "x"}, 3]', "a.json, row 2: every row must be an object such as"),
    ("a.json", '{"text": "a"\n', "a.json, line 1: not valid JSON"),
    (
        "a.jsonl",
        '[\n {"text": "a"}\n]\n',
        "a.jsonl, line 1: not valid JSON (Expecting value: line 2 column 1 (char 2)); name",
    ),
    *(
        (name, f"{line}\n__label__b no\n", f"{name} is a fastText file, with labels such as '__label__a' in its texts")
        for name in ("a.txt", "a.csv", "a.tsv")
        for line in ("__label__a the cat", "__label__a __label__b the cat", "\nthe cat, it __label__a")
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_file(folder: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(AttendropError) as caught:
        load_train(write(name, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_suggestion_ends_with_a_question_mark_alone(folder: Path) -> None:
    write("dev.csv", "text,label\na,yess\n")
    with pytest.raises(AttendropError, match=r"did you mean 'yes'\? Correct it, or add"):
        load_train(write("a.csv", GOOD), eval_file="dev.csv")


SWALLOWED = {
    # Row n is in line n + 2; a quote begins the text of the first row, and ends that of the last.
    "rows": ('"so, row 5"', [(3, 8), (20, 21), (40, 55)], "lines 5-10, 22-23, 42-57"),
    "spaces": ('"so"', [(3, 4)], "lines 5-6"),
}


@pytest.mark.parametrize(("quoted", "pairs", "places"), SWALLOWED.values(), ids=SWALLOWED)
@pytest.mark.parametrize("label_first", [False, True])
def test_rows_between_stray_quotes_are_warned_of(
    folder: Path, quoted: str, pairs: list[tuple[int, int]], places: str, label_first: bool
) -> None:
    """Such a file is legal CSV, with a field that has line breaks, but the rows are gone."""
    texts = [f"row {n}" for n in range(80)] + [quoted]
    for first, last in pairs:
        texts[first], texts[last] = f'"well,{texts[first]}' if first == last else f'"{texts[first]}', f'{texts[last]}"'
    cells = [("text", "label"), *((text, "no" if n % 2 else "yes") for n, text in enumerate(texts))]
    rows = [",".join(reversed(row) if label_first else row) for row in cells]
    with pytest.warns(UserWarning) as caught:
        data = load_train(write("a.csv", "\r\n".join(rows)))
    assert len(data.splits["train"]) == 81 - sum(last - first for first, last in pairs)
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith(f"a.csv: quotes join what look like separate rows ({places}): ")


@pytest.mark.parametrize(
    "text",
    [
        *("Well, fine.\nNo comma", "a\n\nb, c, d", "It was fine, good\nNo"),
        "Dear team,\nit is late again.\nBest wishes,\nAnna",
        "milk,eggs\nand bread",
        "see (a,b)\nor c",
        "it costs 3,50\nor so",
    ],
)
@pytest.mark.parametrize("labels", [("good", "bad"), ("good", ""), ("1", "0")])
def test_line_breaks_in_texts_are_not_warned_of(folder: Path, text: str, labels: tuple[str, str]) -> None:
    """A comma at the end of a line, or without a space after it, was taken for the end of a row."""
    rows = [f"row {n},{labels[n % 2]}\n" for n in range(9)]
    name = write("a.csv", "".join(["text,label\n", *rows, f'"{text}",{labels[0]}\n']))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(name).column("text")[-1] == text


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_carriage_return_alone_is_of_the_text_and_told(folder: Path, name: str) -> None:
    """It ended the row: its beginning was refused for a missing field, and its end was read as another row."""
    rows = ["text,label", "call me\rback,a", "the\rlast\rone,b", '"quoted\rtext",a', "fine,\rb"]
    if name == "a.tsv":
        rows = [row.replace(",", "\t") for row in rows]
    with pytest.warns(UserWarning, match=r"return without a line feed is read as part of a text \(3 lines: 2, 3, 5\)"):
        table = read_table(write(name, "\n".join(rows)))
    assert table.rows == [["call me\rback", "a"], ["the\rlast\rone", "b"], ["quoted\rtext", "a"], ["fine", "\rb"]]
    assert table.places == ["line 2", "line 3", "line 4", "line 5"]


@pytest.mark.filterwarnings("ignore:.*a carriage return without a line feed")
def test_carriage_returns_alone_end_rows_if_that_of_the_header_does(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_table(write("a.csv", "text,label\ra,x\rb,y\r")).rows == [["a", "x"], ["b", "y"]]
    with pytest.raises(
        AttendropError, match="3 fields where the header has 2; a carriage return without a line feed ends"
    ):
        read_table(write("b.csv", "text,label\na,x\rb,y\n"))


def test_whole_numbers_are_one_class_in_both_spellings(folder: Path) -> None:
    write("train.csv", "text,label\na,0.0\nb,1\n")
    write("dev.csv", "text,label\na,0\nb,1.0\n")
    data = load_files(train_file="train.csv", eval_file="dev.csv", text_columns=["text"], label_column="label")
    assert data.task.label_names == ("0", "1") and data.splits["dev"]["label"] == [0, 1]
    assert read_for(("0", "1"), "dev.csv", label_column="label")["label"] == [0, 1]


def test_labels_that_training_lacks_can_be_kept(folder: Path) -> None:
    """They have ids after those of the classes, each its own, so that metrics are those of the labels as written."""
    write("train.csv", GOOD)
    write("dev.csv", "text,label\na,yes\nb,maybe\nc,no\nd,never\ne,maybe\nf,\n")
    data = load_train("train.csv", eval_file="dev.csv", unknown_labels="wrong", skip_bad_rows=True)
    assert (data.task.label_names, data.task.unknown_names) == (("no", "yes"), ("maybe", "never"))
    assert data.splits["dev"]["label"] == [1, 2, 0, 3, 2] and data.task.head.num_classes == 2
    assert [row.place for row in data.skipped] == ["line 7"]
    assert data.task.head.unknown_counts([1, 2, 0, 3, 2]) == {"maybe": 2, "never": 1}
    with pytest.raises(AttendropError, match="unknown-labels 'wrong' is for classes and for tags of words"):
        load_train("train.csv", eval_file="dev.csv", label_type="labels", unknown_labels="wrong", skip_bad_rows=True)


TAGGED = "text,label\na,urgent\nb,vip\nc,urgent|vip\nd,\n"


def test_an_empty_label_beside_joined_ones_is_no_mistake_of_the_row(folder: Path) -> None:
    name = write("a.csv", TAGGED)
    with pytest.raises(AttendropError, match=r"line 5, column 'label': the label is empty; .* set --label-type labels"):
        load_train(name)
    assert load_train(name, label_type="labels").task.label_names == ("urgent", "vip")
    with pytest.raises(AttendropError, match=r"the label is empty\. Correct it"):
        load_train(name, label_type="class")


UGLY = [
    ("a.csv", b"text,label\ngood,yes\n,no\nb,\nc,no,more\nfine,no\n", ["line 3", "line 4", "line 5"]),
    ("a.csv", b"text,label\ngood,0.5\nb,much\nc,nan\nfine,1\n", ["line 3", "line 4"]),
    (
        "a.jsonl",
        b'{"text": "good", "label": 1}\n{"text": 5, "label": 1}\n{"text"\n[]\n{"text": "fine", "label": 0}\n',
        ["line 2", "line 3", "line 4"],
    ),
]


@pytest.mark.parametrize(("name", "content", "places"), UGLY, ids=["classes", "numbers", "json"])
def test_bad_rows_are_left_out_and_listed_when_asked(
    folder: Path, name: str, content: bytes, places: list[str]
) -> None:
    label_type = "number" if b"0.5" in content else "auto"
    with pytest.raises(AttendropError, match="or add --skip-bad-rows"):
        load_train(write(name, content), label_type=label_type)
    data = load_train(name, label_type=label_type, skip_bad_rows=True)
    train = data.splits["train"]
    assert train["text"] == ["good", "fine"] and train["index"] == [0, len(places) + 1]
    write_skipped("skipped.jsonl", data.skipped)
    listed = [json.loads(line) for line in Path("skipped.jsonl").read_text().splitlines()]
    assert [row["place"] for row in listed] == places and all(row["file"] == name for row in listed)


def test_skipped_rows_are_listed_in_the_order_of_the_file_with_why_and_what(folder: Path) -> None:
    name = write("a.csv", "text,label\ngood,yes\nbad,\n" + "fine,no\n" * 6 + " ,no\n")
    write_skipped("skipped.jsonl", load_train(name, skip_bad_rows=True).skipped)
    first, second = (json.loads(line) for line in Path("skipped.jsonl").read_text().splitlines())
    assert (first["place"], first["reason"]) == ("line 3", "column 'label': the label is empty")
    assert (second["place"], second["row"]) == ("line 10", {"text": " ", "label": "no"})
    rows = [{"text": "good", "label": "yes"}, {"text": "bad", "label": float("nan")}, {"text": "fine", "label": "no"}]
    name = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    write_skipped("skipped.jsonl", load_train(name, skip_bad_rows=True).skipped)
    assert json.loads(Path("skipped.jsonl").read_text())["row"] == {"text": "bad", "label": None}  # NaN is not JSON


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_chunks_of_a_file_are_the_file(folder: Path, suffix: str) -> None:
    texts = [f"text {n}" for n in range(25)]
    lines = {"csv": ["text", *texts], "jsonl": [json.dumps({"text": text}) for text in texts]}
    lines["json"] = [json.dumps([{"text": text} for text in texts], indent=1)]
    parquet = suffix == "parquet"
    name = write_parquet("a.parquet", text=texts) if parquet else write(f"a.{suffix}", "\n".join(lines[suffix]))
    chunks = list(read_chunks(name, 10))
    assert [len(chunk.rows) for chunk in chunks] == [10, 10, 5]
    whole = read_table(name)
    for field in ("rows", "places", "index"):
        assert [value for chunk in chunks for value in getattr(chunk, field)] == getattr(whole, field)


def test_missing_file_and_folder(folder: Path) -> None:
    with pytest.raises(AttendropError, match=r"there is no file none\.csv\."):
        load_train("none.csv")
    (folder / "folder.csv").mkdir()
    with pytest.raises(AttendropError, match=r"folder\.csv is not a file\."):
        load_train("folder.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_columns": []}, "0 text columns are given; give 1 or 2."),
        ({"text_columns": ["text", "text"]}, "the column 'text' is given twice"),
        ({"label_type": "numbr"}, "there is no label type 'numbr'; did you mean 'number'?"),
        ({"label_column": None}, "no label column is given"),
        (
            {"eval_file": "new.csv"},
            "new.csv, line 2, column 'label': the label 'yess' is not among those of training (--unknown-labels wrong",
        ),
        ({"eval_file": "far.csv"}, "counts it as wrong); the classes are 'no', 'yes'."),
        ({"unknown_labels": "wrogn"}, "unknown_labels='wrogn' is not known. Did you mean 'wrong'?"),
        ({"eval_file": "int.csv"}, "mix numbers, such as '1' (int.csv, line 2), with text, such as 'yes' (good.csv"),
    ],
)
def test_bad_request(folder: Path, options: dict[str, object], message: str) -> None:
    write("good.csv", GOOD)
    write("new.csv", "text,label\na,yess\n")
    write("far.csv", "text,label\na,maybe\n")
    write("int.csv", "text,label\na,1\n")
    with pytest.raises(AttendropError) as caught:
        load_files(**{"train_file": "good.csv", "text_columns": ["text"], "label_column": "label"} | options)
    assert message in str(caught.value)
