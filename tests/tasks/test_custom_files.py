"""Custom files: what is read from them, and the message for each mistake in them."""

import json
import warnings
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.table import BadRows, write_skipped
from attendrop.tasks.types.classification import Classification, Regression

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
    task_type = Classification(classes)
    (chunk,) = stream_file(name, text_columns=["text"], task_type=task_type, size=9, bad=BadRows(), **options)
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
        (["10%", "much"], r"the labels '10%' \(a.csv, line 2\) are read as classes; if they stand for"),
        (["yes", "None", "-"], r"the labels 'None' \(a.csv, line 3\), '-' \(a.csv, line 4\) are read as classes"),
        (["yes", r"\N", "(NULL)"], r"the labels '\\\\N' \(a.csv, line 3\), '\(NULL\)' \(a.csv, line 4\) are read as"),
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
    with pytest.raises(AttendropError, match=r"a\.parquet, row 2, column 'label': the label is empty\."):
        load_train(write_parquet("a.parquet", text=["a", "b"], label=[1, None]))
    assert load_train(write_parquet("f.parquet", text=["a", "b"], label=[1.0, 2.5])).task.kind == "regression"
    days = write_parquet("d.parquet", text=["a", "b"], label=[date(2024, 5, 31), date(2024, 6, 1)])
    assert load_train(days).task.label_names == ("2024-05-31", "2024-06-01")
    names = load_train(write("b.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}')).task.label_names
    assert names == ("False", "True")


def scores(separator: str, *labels: str) -> str:
    return write("a.csv", "".join(f'text{separator}"{label}"\n' for label in ("label", *labels)))


def test_decimal_commas_are_read_where_semicolons_separate_columns(folder: Path) -> None:
    data = load_train(name := scores(";", "0,5", "-1,25", "3"))
    assert data.task.kind == "regression" and data.splits["train"]["label"] == [0.5, -1.25, 3.0]
    assert load_train(name, label_type="class").task.label_names == ("3", "-1,25", "0,5")
    columns = {"text_columns": ["text"], "label_column": "label"}
    (chunk,) = stream_file(name, **columns, task_type=Regression(), size=9, bad=BadRows())
    assert chunk.columns["label"] == [0.5, -1.25, 3.0]
    with pytest.raises(AttendropError, match="look like numbers, but are not read as such"):
        load_train(scores(",", "0,5", "1,5"))
    with pytest.raises(AttendropError, match=r"mix numbers, such as '0.5' .* text, such as '-' .*--skip-bad-rows"):
        load_train(scores(";", "0,5", "-", "1,5"))


BAD_FILES = [
    ("a.csv", "txt,label\na,b\n", "a.csv has no column 'text'; did you mean 'txt'?"),
    ("a.csv", "x,y\na,b\n", "a.csv has no column 'text'; its columns are 'x', 'y'."),
    ("a.csv", "text,label\na,yes\n ,no\n", "a.csv, line 3, column 'text': the text is empty."),
    ("a.csv", "text,label\na,yes\nb,\n", "a.csv, line 3, column 'label': the label is empty."),
    ("a.csv", "text,label\na,1.0\nb,NaN\n", "a.csv, line 3, column 'label': the label is NaN."),
    ("a.csv", "text,label\na,1.5\nb,1e999\n", "line 3, column 'label': the label '1e999' is not a finite number."),
    ("a.csv", f"text,label\na,2\nb,{'1' * 5000}.0\n", "1111.0' is not a finite number."),
    ("a.csv", "text,label\na,1.5\nb,-1e308\n", "line 3, column 'label': the label '-1e308' is too large to train on"),
    ("a.csv", "text,label\na,yes\nb,yes\n", "a.csv has only one class, 'yes'; training needs at least two."),
    ("a.csv", "text,label\na,1.5\nb,1.5\n", "a.csv has only one number, '1.5'; training needs at least two."),
    ("a.jsonl", '{"text": "a", "label": {"b": 1}}\n', "column 'label': the labels are objects"),
    ("a.jsonl", '{"text": ["a", "\\u0000"], "label": ["X", "O"]}\n', "column 'text': it has a NUL character"),
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
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_values(folder: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(AttendropError) as caught:
        load_train(write(name, content))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_suggestion_ends_with_a_question_mark_alone(folder: Path) -> None:
    write("dev.csv", "text,label\na,yess\n")
    with pytest.raises(AttendropError, match=r"did you mean 'yes'\? Correct it, or add"):
        load_train(write("a.csv", GOOD), eval_file="dev.csv")


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
    assert data.splits["dev"]["label"] == [1, 2, 0, 3, 2] and data.task.type.num_classes == 2
    assert [row.place for row in data.skipped] == ["line 7"]
    assert data.task.type.unknown_counts([1, 2, 0, 3, 2]) == {"maybe": 2, "never": 1}
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
