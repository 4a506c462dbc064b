"""Question answering: windows of long texts, and one answer from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from helpers import tiny
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.heads.question_answering import ALWAYS, SOMETIMES, QuestionAnswering
from attendrop.tasks.token_columns import TokenColumn
from attendrop.tasks.tokenization import encode

WORDS = [tiny.WORDS[n * 5 % len(tiny.WORDS)] for n in range(40)]
LONG = " ".join(WORDS)
ROWS: dict[str, list[Any]] = {
    "question": ["the cat", "the " * 40, "not"],
    "context": ["a dog sees", LONG, "a bird"],
    "label": [
        {"text": ["dog"], "answer_start": [2]},
        {"text": [" ".join(WORDS[14:16])], "answer_start": []},
        {"text": [], "answer_start": []},
    ],
    "index": [5, 7, 8],
}
LENGTH = 24


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tiny.save_tiny_bert(tmp_path_factory.mktemp("answers") / "model")
    )
    return found


def encoded(tokenizer: PreTrainedTokenizerBase) -> Dataset:
    task = Task("files", "question-answering", ("question", "context"), SOMETIMES, "f1", "a test")
    return encode(Dataset.from_dict(ROWS), task, tokenizer, LENGTH)


def text_of(window: dict[str, Any], span: list[int]) -> str:
    first, last = (window["offsets"][token] for token in span)
    return str(window["context"][first[0] : last[1]])


def test_every_word_of_a_long_text_is_in_a_window_and_answers_keep_their_place(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    windows = encoded(tokenizer).to_list()
    numbers = [window["question_number"] for window in windows]
    assert numbers[0] == 5 and numbers[-1] == 8 and numbers.count(7) > 3
    assert all(window["length"] <= LENGTH for window in windows)
    covered = {tuple(span) for window in windows if window["question_number"] == 7 for span in window["offsets"]}
    assert len(covered - {(-1, -1)}) == len(WORDS)
    assert text_of(windows[0], windows[0]["labels"]) == "dog"
    found = [text_of(window, window["labels"]) for window in windows[1:-1] if window["labels"] != [0, 0]]
    assert found and set(found) == {" ".join(WORDS[14:16])}
    assert windows[-1]["labels"] == [0, 0]


def test_the_best_of_all_windows_is_the_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    windows = encoded(tokenizer)
    longest = max(windows["length"])
    raw = np.random.default_rng(0).normal(size=(len(windows), longest, 2)) - 5
    for number, window in enumerate(windows.to_list()):
        raw[number, *window["labels"][0:1], 0] = raw[number, *window["labels"][1:2], 1] = 9
        raw[number, 0] = 1 if window["labels"] != [0, 0] else 20  # most windows of a long text do not have its answer
        raw[number, window["length"] :] = 99  # padding
    columns = {name: windows[name] for name in windows.column_names}
    for names, expected in ((SOMETIMES, (1.0, ["dog", " ".join(WORDS[14:16]), ""])), (ALWAYS, (2 / 3, None))):
        head = QuestionAnswering(names)
        outputs = head.checked(head.row_outputs(raw, columns, tokenizer))
        assert len(outputs) == 3
        assert head.metrics["exact_match"].score(head.references(columns), outputs) == pytest.approx(expected[0])
        rows = head.prediction_rows(outputs, probabilities=False)
        if expected[1] is not None:
            assert [row["answer"] for row in rows] == expected[1] and rows[2]["start"] is None
        assert rows[0]["start"] == 2 and [row["score"] for row in rows[:2]] == [16, 16]


def test_a_text_without_a_token_has_an_empty_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    task = Task("files", "question-answering", ("question", "context"), ALWAYS, "f1", "a test")
    rows = Dataset.from_dict({"question": ["the good"], "context": ["\u200b"], "index": [0]})
    windows = encode(rows, task, tokenizer, LENGTH)
    head = QuestionAnswering(ALWAYS)
    raw = np.ones((1, windows["length"][0], 2))
    outputs = head.checked(head.row_outputs(raw, {name: windows[name] for name in windows.column_names}, tokenizer))
    assert [row["answer"] for row in head.prediction_rows(outputs, probabilities=False)] == [""]


def test_outputs_that_are_not_finite_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    windows = encoded(tokenizer)
    head = QuestionAnswering(ALWAYS)
    raw = np.full((len(windows), max(windows["length"]), 2), np.nan)
    columns = {name: windows[name] for name in windows.column_names}
    with pytest.raises(AttendropError, match="NaN or infinite for 3 of 3 rows"):
        head.checked(head.row_outputs(raw, columns, tokenizer))


def test_columns_of_tokens_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    task = Task("files", "question-answering", ("question", "context"), ALWAYS, "f1", "a test")
    rows = Dataset.from_dict(ROWS | {"heads": [[0]] * 3, "place": ["line 1"] * 3})
    with pytest.raises(AttendropError, match="'heads' has entries for the tokens of a whole text"):
        encode(rows, task, tokenizer, LENGTH, [TokenColumn("heads")])
