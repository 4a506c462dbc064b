"""Label maps: their drafts, and what labels mean with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.inspection import check_files, inspect_files
from attendrop.tasks.label_map import label_variants, read_label_map, write_label_map
from attendrop.tasks.table import BadRows


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ({"Refund": 9, "refund": 3, "re-fund": 1, "billing": 5}, [["Refund", "refund", "re-fund"]]),
        ({"delivery": 40, "delivry": 1, "deliverly": 2, "damage": 9}, [["delivery", "deliverly", "delivry"]]),
        ({"hotel": 30, "motel": 28}, []),  # as frequent: another word
        ({"entailment": 90, "not_entailment": 9, "positive": 90, "negative": 9}, []),
        ({"C": 9, "C++": 8, "C#": 7, "A+": 5, "A-": 5, "A": 4, "-1": 9, "1": 8, "1.1": 3, "11": 2}, []),
        ({"<=50K": 9, ">50K": 3, "a.k.a.": 4, "aka": 2}, [["a.k.a.", "aka"]]),
        ({"caf\u00e9": 9, "cafe\u0301": 3, "bar": 2}, [["caf\u00e9", "cafe\u0301"]]),
        ({"refund": 9, "refund\u200b": 8, "re\u00adfund": 7}, [["refund", "refund\u200b", "re\u00adfund"]]),
        ({"step 1": 90, "step 2": 2, "1": 50, "2": 1, "yes": 90, "yet": 1}, []),
    ],
)
def test_variants_of_labels_are_found(counts: dict[str, int], groups: list[list[str]]) -> None:
    assert label_variants(counts) == groups


def test_a_draft_merges_the_likely_variants(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    write_label_map(path, {"Refund": 9, "refund": 3, "Billing, other": 2})
    assert (
        path.read_text()
        == 'label,meaning,rows\nRefund,Refund,9\nrefund,Refund,3\n"Billing, other","Billing, other",2\n'
    )
    assert read_label_map(path) == {"Refund": "Refund", "refund": "Refund", "Billing, other": "Billing, other"}
    with pytest.raises(AttendropError, match=r"map\.csv"):
        write_label_map(path, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label,meaning\na,b\nc,b\na,c\n", "map.csv, line 4: 'a' means 'b' and 'c'; delete one of them"),
        ("label\na\n", "has one column; give it two, label and meaning"),
    ],
)
def test_a_map_that_says_no_one_thing_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "map.csv").write_text(content)
    with pytest.raises(AttendropError, match=message):
        read_label_map(tmp_path / "map.csv")


@pytest.mark.parametrize(
    ("label_type", "labels"),
    [("auto", ["Refund", "Billing"]), ("number", ["1", "2"]), ("labels", ["Refund|Billing", '"[""Billing""]"'])],
)
def test_a_map_that_matches_no_label_is_refused(tmp_path: Path, label_type: str, labels: list[str]) -> None:
    """A map of other data, or of labels spelt otherwise, changed nothing, without a word."""
    file, path = tmp_path / "a.csv", tmp_path / "map.csv"
    file.write_text("text,label\n" + "".join(f"the cat sees,{label}\n" for label in labels * 2))
    given: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "label_type": label_type}
    path.write_text("label,meaning\nrefund,money\nother,rest\n")
    message = r"map\.csv has none of the labels of .*a\.csv, column 'label', such as .*; correct its column 'label'"
    for read in (inspect_files, lambda file, **options: load_files(train_file=file, **options)):
        with pytest.raises(AttendropError, match=message):
            read(file, **given, label_map=path)
    path.write_text("label,meaning\nBilling,money\n2,3\n")
    load_files(train_file=file, **given, label_map=path)


def load(folder: Path, labels: list[str], **options: Any) -> Any:
    (folder / "map.csv").write_text("from;to\nrefnd;refund\nBilling;billing\n?;\n")
    (folder / "a.csv").write_text("text,label\n" + "".join(f"text,{label}\n" for label in labels))
    given = {"text_columns": ["text"], "label_column": "label", "label_map": folder / "map.csv"}
    return load_files(train_file=folder / "a.csv", **given, **options)


def test_labels_are_merged_at_reading(tmp_path: Path) -> None:
    data = load(tmp_path, ["refund", " refnd", "billing", "Billing"])
    assert data.task.label_names == ("billing", "refund") and data.splits["train"]["label"] == [1, 1, 0, 0]
    options = {"text_columns": ["text"], "label_column": "label", "label_map": tmp_path / "map.csv"}
    (chunk,) = stream_file(tmp_path / "a.csv", **options, head=data.task.head, size=9, bad=BadRows())
    assert chunk.columns["label"] == [1, 1, 0, 0]


def test_a_draft_is_for_whole_numbers_as_pandas_writes_them_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,1.0\ntwo,2.0\n")
    write_label_map(tmp_path / "map.csv", inspect_files(tmp_path / "a.csv").labels)
    draft = (tmp_path / "map.csv").read_text()
    (tmp_path / "map.csv").write_text(draft.replace("1,1,", "1,bad,").replace("2,2,", "2,good,"))
    options = {"text_columns": ["text"], "label_column": "label", "label_map": tmp_path / "map.csv"}
    assert load_files(train_file=tmp_path / "a.csv", **options).task.label_names == ("bad", "good")


def test_a_label_without_a_meaning_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match="line 4, column 'label': the label is empty"):
        load(tmp_path, ["refund", "billing", "?"])
    data = load(tmp_path, ["refund", "billing", "?"], skip_bad_rows=True)
    assert len(data.splits["train"]) == 2 and [row.place for row in data.skipped] == ["line 4"]


def test_several_labels_of_a_row_are_merged_each(tmp_path: Path) -> None:
    data = load(tmp_path, ["refnd|Billing", "billing", '"[""refnd""]"'], label_type="labels")
    assert data.task.label_names == ("billing", "refund")
    assert data.splits["train"]["label"] == [[1, 1], [1, 0], [0, 1]]


def test_a_label_without_a_meaning_is_doubtful_and_refused_also_among_others(tmp_path: Path) -> None:
    labels = ["refund|?", "billing", '"[""refund"", ""?""]"']
    with pytest.raises(AttendropError, match=r"line 2, column 'label': label 2 of .* is empty"):
        load(tmp_path, labels, label_type="labels")
    found = inspect_files(tmp_path / "a.csv", label_type="labels", label_map=tmp_path / "map.csv")
    assert found.doubts()["empty_label"] == "2 rows with an empty label among others."


@pytest.mark.parametrize(
    ("labels", "names", "counts"),
    [
        (["1,0", "2,0"], ("1", "2"), {"1": 2, "2": 2}),
        (["1,0", "2"], ("1", "2"), {"1": 2, "2": 2}),
        (["1,000", "2,000"], ("1", "2"), {"1": 2, "2": 2}),
        (["0,5", "1,0"], (), {}),
        (["0,5", "1,5"], ("high", "low"), {"low": 2, "high": 2}),  # with a map
    ],
)
def test_decimal_commas_are_read_alike_by_inspection_a_run_and_its_evaluation(
    tmp_path: Path, labels: list[str], names: tuple[str, ...], counts: dict[str, int]
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text;label\n" + "".join(f"the cat sees;{label}\n" for label in labels * 2))
    (tmp_path / "map.csv").write_text('label,meaning\n"0,5",low\n"1,5",high\n')
    options = {"text_columns": ["text"], "label_column": "label"}
    options |= {"label_map": tmp_path / "map.csv"} if "low" in counts else {}
    data = load_files(train_file=file, **options)
    found = check_files(str(file), None, **options)
    assert found is not None and (found.labels, found.label_type) == (counts, "class" if names else "number")
    assert data.task.label_names == names
    (chunk,) = stream_file(file, **options, head=data.task.head, size=9, bad=BadRows())
    assert chunk.columns["label"] == data.splits["train"]["label"][:]


def test_a_thousand_is_not_the_class_1_with_a_decimal_comma() -> None:
    head = Classification(("1", "2"))
    assert head.read_labels(["1,0", "2,00", "2"]) == [0, 1, 1]
    assert head.unknown_labels("1,000") == ["1,000"]
