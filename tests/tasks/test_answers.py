"""Answers in texts: what files may hold, spans of tokens, and the scores of SQuAD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from attendrop import AttendropError
from attendrop.tasks.answers import answer_scores, read_answers
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.heads.question_answering import SOMETIMES
from attendrop.tasks.registry import load_task

SQUAD = {
    "data": [
        {
            "title": "Cats",
            "paragraphs": [
                {
                    "context": "The cat sat on the mat.",
                    "qas": [
                        {"id": "1", "question": "Who sat?", "answers": [{"text": "The cat", "answer_start": 0}]},
                        {"id": "2", "question": "Who ran?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ]
}


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


# Tasks and files ------------------------------------------------------------------------------------------------------


def test_squad_comes_from_official_files(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    for name in ("train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"):
        (tmp_path / "squad" / f"{name}.json").write_text(json.dumps(SQUAD))
    data = load_task("squad_v2", data_dir=tmp_path)
    assert data.splits["dev"][0] == {
        "question": "Who sat?",
        "context": "The cat sat on the mat.",
        "label": {"text": ["The cat"], "answer_start": [0]},
        "index": 0,
    }
    assert data.splits["train"]["label"][1]["text"] == []
    dev = tmp_path / "squad" / "dev-v1.1.json"
    dev.write_text(json.dumps(SQUAD).replace('"answer_start": 0', '"answer_start": 2'))
    off_by_two = load_task("squad", data_dir=tmp_path, splits=("dev",)).splits["dev"]
    assert off_by_two["label"][0] == {"text": ["The cat"], "answer_start": [0]}
    dev.write_text('{"data": [{}]}')
    with pytest.raises(AttendropError, match="is not a file of SQuAD"):
        load_task("squad", data_dir=tmp_path, splits=("dev",))


def test_squad_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)
    row = {"question": ["Who?"], "context": ["A cat."], "answers": [{"text": ["cat"], "answer_start": [2]}]}
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: Dataset.from_dict(row))
    assert load_task("squad", splits=("dev",)).splits["dev"]["label"][:] == [{"text": ["cat"], "answer_start": [2]}]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("dog", "own.csv, line 3: the answer 'dog' is not in the context."),
        ('"{""text"": [""cat""], ""answer_start"": [1]}"', "the answer 'cat' is not in the context at character 1."),
        ('"[""cat"", """"]"', "is neither an answer, a list of answers, nor an object with 'text' and 'answer_start'."),
    ],
)
def test_bad_answers_are_named(cell: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(f"q,text,answer\nwho?,the cat,\nwho?,the cat,{cell}\n")
    options: dict[str, Any] = {"text_columns": ["q", "text"], "label_column": "answer", "label_type": "answer"}
    with pytest.raises(AttendropError) as refused:
        load_files(train_file="own.csv", **options)
    assert message in str(refused.value)
    assert load_files(train_file="own.csv", **options, skip_bad_rows=True).task.label_names == SOMETIMES


def test_answers_of_squad_in_json_lines_are_recognized(tmp_path: Path) -> None:
    row = {"q": "who?", "text": "the cat", "answers": {"text": ["cat"], "answer_start": [4]}}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    found = load_files(train_file=tmp_path / "own.jsonl", text_columns=["q", "text"], label_column="answers")
    assert found.task.kind == "question-answering" and found.splits["train"]["label"][0]["answer_start"] == [4]
