"""Answers in texts: what files may hold, spans of tokens, and the scores of SQuAD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attendrop.tasks.custom_files import load_files
from attendrop.tasks.heads.question_answering import SOMETIMES, answer_scores, read_answers


@pytest.mark.parametrize(
    ("answer", "accepted", "expected"),
    [
        ("the Cat!", ("a cat",), (1.0, 1.0)),
        ("cat on mat", ("the cat", "cat on a red mat"), (0.0, 6 / 7)),
        ("dog", ("cat",), (0.0, 0.0)),
        ("", (), (1.0, 1.0)),
        ("cat", (), (0.0, 0.0)),
        ("", ("cat",), (0.0, 0.0)),
        ("cat cat", ("cat",), (0.0, 2 / 3)),
    ],
)
def test_scores_are_those_of_squad(answer: str, accepted: tuple[str, ...], expected: tuple[float, float]) -> None:
    assert answer_scores(answer, accepted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cat", (["cat"], [])),
        ("[sic]", (["[sic]"], [])),
        (["cat", "dog"], (["cat", "dog"], [])),
        ('["cat"]', (["cat"], [])),
        ('{"text": ["cat"], "answer_start": [4]}', (["cat"], [4])),
        ({"text": [], "answer_start": []}, ([], [])),
        ("", ([], [])),
        (None, ([], [])),
    ],
)
def test_answers_are_read(value: Any, expected: tuple[list[str], list[int]]) -> None:
    assert read_answers(value) == dict(zip(("text", "answer_start"), expected, strict=True))


@pytest.mark.parametrize("value", [3, {"answer": "a"}, {"text": ["a", "b"], "answer_start": [1]}, [""], {"text": "a"}])
def test_other_values_are_no_answers(value: Any) -> None:
    assert read_answers(value) is None


# Files ----------------------------------------------------------------------------------------------------------------


def test_answers_of_squad_in_json_lines_are_recognized(tmp_path: Path) -> None:
    row = {"q": "who?", "text": "the cat", "answers": {"text": ["cat"], "answer_start": [4]}}
    none = row | {"answers": {"text": [], "answer_start": []}}
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (row, none)))
    found = load_files(train_file=tmp_path / "own.jsonl", text_columns=["q", "text"], label_column="answers")
    assert found.task.kind == "question-answering" and found.splits["train"]["label"][0]["answer_start"] == [4]
    assert found.task.label_names == SOMETIMES
