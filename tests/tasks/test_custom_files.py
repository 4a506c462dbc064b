"""Custom files: what is read from them, and the message for each mistake in them."""

import json
import warnings
from pathlib import Path

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.table import write_skipped

GOOD = "text,label\ngood,yes\nbad,no\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder of the test the current one, so that messages name files without a path."""
    monkeypatch.chdir(tmp_path)


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def labelled(*labels: str) -> str:
    return write("a.csv", "text,label\n" + "".join(f'text,"{label}"\n' for label in labels))


def load_train(name: str, **options: object) -> TaskData:
    return load_files(train_file=name, **({"text_columns": ["text"], "label_column": "label"} | options))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("crlf.csv", "text,label\r\none,0\r\ntwo,1\r\n"),
        ("blank-lines.csv", "\ntext,label\none,0\n\ntwo,1\n\n\n"),
        ("spaces.csv", "label,text\n 0,one\n1 ,two\n"),
        ("a.tsv", "text\tlabel\none\t0\ntwo\t1\n"),
        ("a.jsonl", '{"text": "one", "label": 0}\n\n{"label": 1, "text": "two"}\n'),
        ("a.json", '\n[\n {"text": "one", "label": 0},\n {"label": 1, "text": "two"}]'),
        ("lines.json", '{"text": "one", "label": 0}\n{"label": "1", "text": "two"}\r\n'),
    ],
)
def test_formats_agree(name: str, content: str | bytes) -> None:
    data = load_train(write(name, content))
    assert data.task.label_names == ("0", "1") and data.task.kind == "classification" and data.source == name
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
        (["b", "B", "a"], "auto", ("B", "a", "b"), [2, 0, 1]),
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
    assert (data.task.kind, data.task.metric) == (
        ("classification", "accuracy") if names else ("regression", "pearson")
    )


@pytest.mark.parametrize("labels", [["10%", "25 %"], ["1,000", "2,500.5", "7"], ["0,5", "1,5", "n/a"]])
def test_numbers_in_other_notations_are_asked_about(labels: list[str]) -> None:
    """Classes of such names were trained without a word."""
    name = labelled(*labels)
    with pytest.raises(AttendropError, match=f"column 'label': the labels '{labels[0]}' .*look like numbers") as caught:
        load_train(name)
    assert "write numbers with a decimal point" in str(caught.value) and "--label-type class" in str(caught.value)
    with pytest.raises(AttendropError, match=f"'{labels[0]}' is not a finite number; write numbers with a decimal"):
        load_train(name, label_type="number")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["10%", "much"], r"the labels '10%' \(a.csv, line 2\) are read as classes; if they stand for"),
        (["yes", "None", r"\N"], r"the labels 'None' \(a.csv, line 3\), '\\\\N' \(a.csv, line 4\) are read as classes"),
    ],
)
def test_labels_that_may_be_none_are_warned_of(labels: list[str], message: str) -> None:
    name = labelled(*labels)
    with pytest.warns(UserWarning, match=message):
        assert load_train(name).task.num_labels == len(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_train(name, label_type="class")


def test_one_decimal_point_in_any_file_means_numbers() -> None:
    train, dev = write("train.csv", "text,label\na,1\nb,2\n"), write("dev.csv", "text,label\na,1.5\n")
    data = load_files(train_file=train, eval_file=dev, text_columns=["text"], label_column="label")
    assert data.splits["train"]["label"] == [1.0, 2.0] and data.splits["dev"]["label"] == [1.5]


def test_labels_that_training_lacks_can_be_kept() -> None:
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


def test_an_empty_label_beside_joined_ones_is_no_mistake_of_the_row() -> None:
    name = write("a.csv", "text,label\na,urgent\nb,vip\nc,urgent|vip\nd,\n")
    with pytest.raises(AttendropError, match=r"line 5, column 'label': the label is empty; .* set --label-type labels"):
        load_train(name)
    assert load_train(name, label_type="labels").task.label_names == ("urgent", "vip")


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.csv", b"text,label\ngood,yes\n,no\nb,\nc,no,more\nfine,no\n", ["line 3", "line 4", "line 5"]),
        ("a.csv", b"text,label\ngood,0.5\nb,much\nc,nan\nfine,1\n", ["line 3", "line 4"]),
        (
            "a.jsonl",
            b'{"text": "good", "label": 1}\n{"text": 5, "label": 1}\n{"text"\n[]\n{"text": "fine", "label": 0}\n',
            ["line 2", "line 3", "line 4"],
        ),
    ],
    ids=["classes", "numbers", "json"],
)
def test_bad_rows_are_left_out_and_listed_when_asked(name: str, content: bytes, places: list[str]) -> None:
    label_type = "number" if b"0.5" in content else "auto"
    with pytest.raises(AttendropError, match="or add --skip-bad-rows"):
        load_train(write(name, content), label_type=label_type)
    data = load_train(name, label_type=label_type, skip_bad_rows=True)
    train = data.splits["train"]
    assert train["text"] == ["good", "fine"] and train["index"] == [0, len(places) + 1]
    write_skipped("skipped.jsonl", data.skipped)
    listed = [json.loads(line) for line in Path("skipped.jsonl").read_text().splitlines()]
    assert [row["place"] for row in listed] == places and all(row["file"] == name for row in listed)


def test_skipped_rows_are_listed_in_the_order_of_the_file_with_why_and_what() -> None:
    name = write("a.csv", "text,label\ngood,yes\nbad,\n" + "fine,no\n" * 6 + " ,no\n")
    write_skipped("skipped.jsonl", load_train(name, skip_bad_rows=True).skipped)
    first, second = (json.loads(line) for line in Path("skipped.jsonl").read_text().splitlines())
    assert (first["place"], first["reason"]) == ("line 3", "column 'label': the label is empty")
    assert (second["place"], second["row"]) == ("line 10", {"text": " ", "label": "no"})


SCORES, IDS = ("text,label\n" + "".join(f"text {n},{of}{n}\n" for n in range(60)) for of in ("", "id-"))
# The file, further options, and what the message says.
REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("txt,label\na,b\n", {}, "a.csv has no column 'text'; did you mean 'txt'?"),
    ("x,y\na,b\n", {}, "a.csv has no column 'text'; its columns are 'x', 'y'."),
    ("text,label\na,yes\n ,no\n", {}, "a.csv, line 3, column 'text': the text is empty."),
    ("text,label\na,1.0\nb,NaN\n", {}, "a.csv, line 3, column 'label': the label is NaN."),
    ("text,label\na,1.5\nb,1e999\n", {}, "line 3, column 'label': the label '1e999' is not a finite number."),
    (f"text,label\na,2\nb,{'1' * 5000}.0\n", {}, "1111.0' is not a finite number."),
    ("text,label\na,1.5\nb,-1e308\n", {}, "line 3, column 'label': the label '-1e308' is too large to train on"),
    ("text,label\na,yes\nb,yes\n", {}, "a.csv has only one class, 'yes'; training needs at least two."),
    ("text,label\na,1.5\nb,1.5\n", {}, "a.csv has only one number, '1.5'; training needs at least two."),
    (SCORES, {}, "column 'label': 60 different whole numbers may be classes, numbers to predict or ids; set"),
    (IDS, {}, "60 different labels in 60 rows look like ids; give another label column"),
    (GOOD, {"text_columns": []}, "0 text columns are given; give 1 or 2."),
    (GOOD, {"text_columns": ["text", "text"]}, "the column 'text' is given twice"),
    (GOOD, {"label_type": "numbr"}, "there is no label type 'numbr'; did you mean 'number'?"),
    (GOOD, {"label_column": None}, "no label column is given"),
    (GOOD, {"eval_file": "yess"}, "dev.csv, line 2, column 'label': the label 'yess' is not among those of training"),
    (GOOD, {"eval_file": "yess"}, "wrong counts it as wrong); did you mean 'yes'? Correct it, or add"),
    (GOOD, {"eval_file": "maybe"}, "counts it as wrong); the classes are 'no', 'yes'."),
    (GOOD, {"eval_file": "1"}, "mix numbers, such as '1' (dev.csv, line 2), with text, such as 'yes' (a.csv"),
    (GOOD, {"unknown_labels": "wrogn"}, "unknown_labels='wrogn' is not known. Did you mean 'wrong'?"),
]


@pytest.mark.parametrize(("content", "options", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(content: str, options: dict[str, object], message: str) -> None:
    if "eval_file" in options:  # a row of this label
        options = options | {"eval_file": write("dev.csv", f"text,label\na,{options['eval_file']}\n")}
    with pytest.raises(AttendropError) as caught:
        load_train(write("a.csv", content), **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_texts_of_json_without_meaning_are_refused() -> None:
    for content, message in (
        ('{"text": "a", "label": {"b": 1}}\n', "column 'label': the labels are objects"),
        ('{"text": ["a", "\\u0000"], "label": ["X", "O"]}\n', "column 'text': it has a NUL character"),
    ):
        with pytest.raises(AttendropError, match=message):
            load_train(write("a.jsonl", content))
