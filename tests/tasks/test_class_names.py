"""Names of classes in words, when they are training rows by themselves, and which labels are classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.class_names import MOST_ROWS_PER_CLASS, in_words, telling_names, why_no_rows
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.inspection import inspect_files

IN_WORDS = {
    "card_arrival": "card arrival",
    "lost-or/stolen:card": "lost or stolen card",
    "lostCard": "lost card",
    "GetHTTPStatus": "Get HTTP status",
    "eBay": "eBay",
    "возвратДенег": "возврат денег",
    "退款_申请": "退款 申请",
    "कार्ड_खोया": "कार्ड खोया",
}


@pytest.mark.parametrize(("name", "words"), IN_WORDS.items())
def test_a_name_in_words(name: str, words: str) -> None:
    assert in_words(name) == words


WORDS = [
    ["card_arrival", "lost_card"],
    ["कार्ड", "धन"],
    ["退款", "好"],
]
NOT_WORDS = [
    ["0", "1"],
    ["a", "b"],
    ["C17", "C18"],
    ["label_3", "label_4"],
    ["class A", "class B"],
    ["ann@example.org", "bob@example.org"],
    ["a name of more words than ten is rather a text", "another text that is as long as this one is here"],
]


@pytest.mark.parametrize("names", WORDS, ids=str)
def test_names_that_are_words_are_rows_where_rows_are_few(names: list[str]) -> None:
    few = MOST_ROWS_PER_CLASS * len(names)
    assert why_no_rows(names, few) == ""
    assert why_no_rows(names, few + 1) == f"there are more than {MOST_ROWS_PER_CLASS} rows a class"


@pytest.mark.parametrize("names", NOT_WORDS, ids=str)
def test_numbers_ids_letters_and_codes_are_never_rows(names: list[str]) -> None:
    assert (
        telling_names(names) == []
        and why_no_rows(names) == f"{names[0]!r} does not tell its class from the others in words"
    )


def test_a_code_among_many_words_is_no_row_itself() -> None:
    names = [f"{word} card" for word in ("lost", "stolen", "new", "old", "blue", "broken", "lent", "late", "red")]
    assert why_no_rows([*names, "w2"]) == "" and telling_names([*names, "w2"]) == names
    assert why_no_rows([*names, "w2", "x4"]) == "'w2' does not tell its class from the others in words"


WORD = ("red", "blue", "near", "far", "cold", "warm", "high")
UNIQUE = {
    "words": ([f"{a}_{b}" for a in WORD for b in WORD], True),
    "ids": ([f"id-{number}" for number in range(49)], False),
    "codes": ([f"C{number}" for number in range(49)], False),
    "numbers": ([str(number) for number in range(49)], False),
}


@pytest.mark.parametrize(("labels", "are_classes"), UNIQUE.values(), ids=UNIQUE)
def test_labels_of_one_row_each_are_classes_if_they_are_words(
    labels: list[str], are_classes: bool, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"some text {place},{name}\n" for place, name in enumerate(labels)))
    if are_classes:
        data = load_files(train_file=file, text_columns=["text"], label_column="label")
        assert data.task.label_names == tuple(sorted(labels))
    else:
        with pytest.raises(AttendropError, match="ids"):
            load_files(train_file=file, text_columns=["text"], label_column="label")
    assert bool(inspect_files(file).unclear) is not are_classes
