"""Question answering: windows of long texts, and one answer from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import tiny, zoo
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments, default_data_collator

from attendrop import ADDrop, AttendropError, Compose, RDrop, RegularizedTrainer, regularize
from attendrop.attribution import predictions, targets
from attendrop.attribution.predictions import answer_tokens, best_spans
from attendrop.model_support.batches import ANSWER_MASK
from attendrop.tasks.base import Task
from attendrop.tasks.heads.question_answering import ALWAYS, SOMETIMES, QuestionAnswering, answer_scores
from attendrop.tasks.long_texts import texts_of
from attendrop.tasks.tokenization import encode
from attendrop.tasks.values import read_answers
from attendrop.training.labelled_data import ColumnCollator

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


def encoded(tokenizer: PreTrainedTokenizerBase) -> Dataset:
    task = Task("files", "question-answering", ("question", "context"), SOMETIMES, "f1", "a test")
    return encode(Dataset.from_dict(ROWS), task, tokenizer, LENGTH)


def text_of(window: dict[str, Any], span: list[int]) -> str:
    first, last = (window["offsets"][token] for token in span)
    return str(ROWS["context"][window["document"]][first[0] : last[1]])


def test_every_word_of_a_long_text_is_in_a_window_and_answers_keep_their_place(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    windows = encoded(tokenizer).to_list()
    numbers = [window["document"] for window in windows]
    assert numbers[0] == 0 and numbers[-1] == 2 and numbers.count(1) > 3
    assert all(window["length"] <= LENGTH for window in windows)
    covered = {tuple(span) for window in windows if window["document"] == 1 for span in window["offsets"]}
    assert len(covered - {(-1, -1)}) == len(WORDS)
    assert text_of(windows[0], windows[0]["labels"]) == "dog"
    found = [text_of(window, window["labels"]) for window in windows[1:-1] if window["labels"] != [0, 0]]
    assert found and set(found) == {" ".join(WORDS[14:16])}
    assert windows[-1]["labels"] == [0, 0]
    # A long text in all of its windows would take the square of its length.
    assert [window["context"] for window in windows if window["context"]] == ROWS["context"]


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


@pytest.mark.parametrize("length", range(1, 14))
def test_any_length_is_refused_or_leaves_room_for_the_text(tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    head, columns = QuestionAnswering(ALWAYS), {"question": [LONG], "context": [LONG]}
    try:
        limit = head.length_limit(tokenizer, length, columns)
    except AttendropError:
        assert length < 7
    else:
        assert set(map(len, head.tokenize(columns, tokenizer, limit)["input_ids"][:-1])) == {length}


def test_a_tokenizer_that_cuts_at_the_beginning_cuts_questions_at_the_end(tmp_path: Path) -> None:
    folder = tiny.save_tiny_bert(tmp_path)
    AutoTokenizer.from_pretrained(folder, truncation_side="left").save_pretrained(folder)
    windows = encoded(QuestionAnswering(ALWAYS).load_preprocessor(str(folder)))
    assert max(windows["length"]) <= LENGTH and len(set(windows["document"])) == 3


@pytest.mark.parametrize("names", [ALWAYS, SOMETIMES])
def test_what_is_attributed_is_the_answer_that_is_predicted(
    names: tuple[str, str], tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = Dataset.from_dict({"question": ["the cat", "not"], "context": ["a dog sees", "a bird"], "index": [0, 1]})
    task = Task("files", "question-answering", ("question", "context"), names, "f1", "a test")
    windows = encode(rows, task, tokenizer, LENGTH)
    columns = {name: windows[name][:] for name in windows.column_names}
    collate = ColumnCollator(task.head.collator(tokenizer), [ANSWER_MASK])
    batch = collate([{name: windows[row][name] for name in ("input_ids", ANSWER_MASK)} for row in range(2)])
    seen = set()
    for seed in range(12):
        start, end = torch.randn(2, *batch["input_ids"].shape, generator=torch.Generator().manual_seed(seed)).double()
        _, first, last = best_spans(start, end, answer_tokens(batch, start))
        raw = torch.stack([start, end], -1).numpy()
        answers = task.head.decode(task.head.row_outputs(raw, columns, tokenizer))
        spans = zip(columns["context"], columns["offsets"], first.tolist(), last.tolist(), strict=True)
        found = [[context[of[one][0] : of[other][1]]] if one else [] for context, of, one, other in spans]
        assert found == [answer["text"] for answer in answers]
        seen |= {bool(text) for text in found}
    assert seen == ({True} if names == ALWAYS else {True, False})


def test_methods_and_not_models_are_told_where_answers_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a trainer, and in a loop of one's own; of a model without types of tokens."""
    method = Compose(ADDrop(), RDrop())
    options = {**zoo.ZOO["distilbert"].options, "num_labels": 2, "dropout": 0.1}
    row: dict[str, Any] = {"input_ids": [5, 6, 7, 8, 9], "attention_mask": [1] * 5, ANSWER_MASK: [0, 0, 1, 1, 0]}
    rows = [row | {"start_positions": 2, "end_positions": 3}] * 3
    told: list[bool] = []

    def watched(batch: Any, logits: torch.Tensor) -> torch.Tensor:
        told.append(ANSWER_MASK in batch)
        return answer_tokens(batch, logits)

    monkeypatch.setattr(targets, "answer_tokens", watched)
    monkeypatch.setattr(predictions, "answer_tokens", watched)
    model = zoo.from_class("DistilBertForQuestionAnswering", options).train()
    model.register_forward_pre_hook(_refuse_mask, with_kwargs=True)
    data = Dataset.from_list(rows)
    arguments = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True, save_strategy="no")
    trainer = RegularizedTrainer(model, arguments, train_dataset=data, eval_dataset=data, regularizer=method)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    batch = ColumnCollator(default_data_collator, [ANSWER_MASK])(rows)
    with regularize(model.train(), method) as reg:
        reg.loss(batch).backward()
        model.eval()
        with torch.no_grad():
            reg.loss(batch)
    assert told and all(told)


def _refuse_mask(model: Any, args: Any, inputs: dict[str, Any]) -> None:
    assert ANSWER_MASK not in inputs


def test_a_text_without_a_token_has_an_empty_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    task = Task("files", "question-answering", ("question", "context"), ALWAYS, "f1", "a test")
    rows = Dataset.from_dict({"question": ["the good"], "context": ["\u200b"], "index": [0]})
    windows = encode(rows, task, tokenizer, LENGTH)
    head = QuestionAnswering(ALWAYS)
    raw = np.ones((1, windows["length"][0], 2))
    outputs = head.checked(head.row_outputs(raw, {name: windows[name] for name in windows.column_names}, tokenizer))
    assert [row["answer"] for row in head.prediction_rows(outputs, probabilities=False)] == [""]


@pytest.mark.parametrize(
    "context", ["a (cat) sees", 'a "cat" sees', "a red-cat sees", "a dog.cat", "(cat", "a cat, sees"]
)
def test_an_answer_is_learnt_without_punctuation_around_it(tokenizer: PreTrainedTokenizerBase, context: str) -> None:
    head = QuestionAnswering(ALWAYS)
    label = {"text": ["cat"], "answer_start": [context.index("cat")]}
    windows = head.tokenize({"question": ["the"], "context": [context], "label": [label]}, tokenizer, LENGTH)
    ((first, last),) = head.targets([label], windows, tokenizer)
    offsets = windows["offsets"][0]
    assert context[offsets[first][0] : offsets[last][1]] == "cat"


def test_an_answer_begins_with_its_first_letter(tmp_path: Path) -> None:
    """Tokens of byte-level vocabularies begin with the space before a word."""
    head = QuestionAnswering(ALWAYS)
    tokenizer = head.load_preprocessor(str(tiny.save_tiny_gpt2(tmp_path)))
    windows = head.tokenize({"question": ["the"], "context": ["a cat sees"]}, tokenizer, LENGTH)
    raw = np.zeros((1, len(windows["input_ids"][0]), 2))
    raw[0, windows["offsets"][0].index([1, 5])] = 9
    assert head.prediction_rows(head.row_outputs(raw, windows, tokenizer), probabilities=False)[0] == {
        "answer": "cat", "start": 2, "score": 18.0,
    }  # fmt: skip


# Answers in files, and their scores -----------------------------------------------------------------------------------


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
        ("[1]", (["[1]"], [])),
        (" dog ", (["dog"], [])),
        ({"text": ["  dog "], "answer_start": [3]}, (["dog"], [5])),
        (["cat", "dog"], (["cat", "dog"], [])),
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


def test_the_fit_is_measured_on_whole_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    """A window without the answer of its text says nothing."""
    rows = encoded(tokenizer)
    windows = [row for text in texts_of(rows)[::2] for row in text]
    assert len(texts_of(rows)) == 3 and set(rows.select(windows)["document"]) == {0, 2}
    assert texts_of(rows.remove_columns("document")) == [range(row, row + 1) for row in range(len(rows))]
