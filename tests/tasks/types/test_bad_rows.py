"""Rows of files that a kind of task cannot read: named with their line, or skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.custom_files import load_files

Record = dict[str, Any]
LABELS = ("label_type labels; text_columns x", [{"x": "a", "label": ["art"]}, {"x": "a", "label": ["music"]}])
TAGS = ("label_type tags; text_columns x", [{"x": ["a", "cat"], "label": ["O", "B-X"]}])
CHOICES = ("label_type choice; text_columns q,a,b,c", [{"q": "how?", "a": "x", "b": "y", "c": "z", "label": "A"}])
TRANSLATIONS = ("label_type text; text_columns x", [{"x": "a", "label": "b"}])


def question(a: Any, b: Any, c: Any, label: Any, q: Any = "why?") -> Record:
    return {"q": q, "a": a, "b": b, "c": c, "label": label}


BAD: list[tuple[tuple[str, list[Record]], Record, str]] = [
    (LABELS, {"x": "a", "label": None}, "column 'label': the labels are missing; write an empty list"),
    (LABELS, {"x": "a", "label": "nan"}, "column 'label': the labels are missing; write an empty list"),
    (LABELS, {"x": "a", "label": 0.5}, "0.5 is not a list of labels"),
    (LABELS, {"x": "a", "label": ["art", ""]}, "label 2 of \"['art', '']\" is empty"),
    (TAGS, {"x": ["a"], "label": ["O", "O"]}, ": 1 words, but 2 tags; give one for each word"),
    (TAGS, {"x": [], "label": []}, ", column 'x': there is no word; give a list of words"),
    (TAGS, {"x": ["a", " "], "label": ["O", "O"]}, ", column 'x': word 2 of 2 is empty"),
    (CHOICES, question("x", "", "", "A"), ": only one choice; give 2 to 26, in a column each, or as a list."),
    (CHOICES, question("x", "", "z", "A"), ": choice 2 of 3 is empty."),
    (CHOICES, question("x", "y", "", "C"), ": the label 'C' is none of the 2 choices, from A to B."),
    (CHOICES, question("x", "y", "z", -1), "the label '-1' is neither the letter of a choice nor its number, from 0."),
    (CHOICES, question("x", "y", "z", 1), "the label '1' is not written as those of training, with letters."),
    (TRANSLATIONS, {"x": "a", "label": " "}, "column 'label': the text is empty"),
    (TRANSLATIONS, {"x": 3, "label": "b"}, "3 is not text"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "record", "message"), BAD)
def test_a_bad_row_is_named_or_skipped(
    kind: tuple[str, list[Record]], record: Record, message: str, tmp_path: Path
) -> None:
    options, good = kind
    given: dict[str, Any] = {"label_column": "label"}
    for name, _, value in (option.strip().partition(" ") for option in options.split(";")):
        given[name] = value.split(",") if name == "text_columns" else value or None
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*good, record)))
    with pytest.raises(AttendropError) as refused:
        load_files(train_file=file, **given)
    assert f"own.jsonl, line {len(good) + 1}" in str(refused.value) and message in str(refused.value)
    data = load_files(train_file=file, **given, skip_bad_rows=True)
    assert len(data.splits["train"]) == len(good) and len(data.skipped) == 1
