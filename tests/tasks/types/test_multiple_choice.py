"""Multiple choice: rows with different numbers of choices, whose padding changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from attendrop import ADDrop, AttendropError, regularize
from attendrop.tasks.base import Task, encode_columns
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.types.classification import MultipleChoice
from attendrop.tasks.types.model_classes import choice_class

HEAD = MultipleChoice(("A", "B", "C"))
TASK = Task("files", "multiple-choice", ("question", "choices"), HEAD.label_names, "accuracy", "a test")
QUESTIONS = ["the cat sees", "a dog hears the red bird", "the bird"]
CHOICES = [["a dog", "not a bird", "the"], ["cat", "the good red cat", "a", "near and far"], ["bad", "good"]]


@pytest.fixture
def model() -> Any:
    return zoo.from_class("BertForMultipleChoice", zoo.ZOO["bert"].options | {"vocab_size": 60}, "sdpa")


def hiding(model: Any) -> Any:
    model.__class__ = choice_class(type(model).__name__)
    return model.train()


def batches(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All rows as one batch, and each as a batch of its own, without padded choices."""
    columns = {"question": QUESTIONS, "choices": CHOICES, "label": [2, 1, 0]}
    encoded = encode_columns(columns, TASK, tokenizer, 32)
    rows = [{name: encoded[name][row] for name in (*tokenizer.model_input_names, "labels")} for row in range(3)]
    collate = HEAD.collator(tokenizer)
    return dict(collate(rows)), [dict(collate([row])) for row in rows]


# Padding --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_choices_never_win_and_do_not_enter_the_loss(
    attention: str, model: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    model.set_attn_implementation(attention)
    whole, single = batches(tokenizer)
    assert whole["input_ids"].shape[:2] == (3, 4)
    expected = [model(**row).logits[0] for row in single]  # of the class of transformers
    hiding(model)
    outputs = model(**whole)
    for logits, row in zip(outputs.logits, expected, strict=True):
        torch.testing.assert_close(logits[: len(row)], row)
        assert (logits.softmax(-1)[len(row) :] == 0).all()
    losses = [functional.cross_entropy(row, label) for row, label in zip(expected, whole["labels"], strict=True)]
    torch.testing.assert_close(outputs.loss, torch.stack(losses).mean())
    outputs.loss.backward()
    found = zoo.gradients(model)
    assert all(gradient.isfinite().all() for gradient in found.values())
    (sum(model(**row).loss for row in single) / 3).backward()
    zoo.assert_same(found, zoo.gradients(model), 1e-4)


def test_what_is_dropped_of_a_row_does_not_depend_on_the_choices_of_others(
    model: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A step over the rows one after the other equals one over all at once."""
    method = ADDrop(p=0.5, q=0.5, layers="all")
    hiding(model).double()
    whole, single = batches(tokenizer)
    found = []
    for micro_batches in ([whole], single):
        with regularize(model, method) as reg:
            reg.set_epoch(0)
            reg.accumulation_steps = len(micro_batches)
            for batch in micro_batches:
                (reg.loss(batch) / len(micro_batches)).backward()
        found.append(zoo.gradients(model))
    zoo.assert_same(*found, 1e-7)


# Encoding and outputs -------------------------------------------------------------------------------------------------


def test_outputs_have_the_choices_of_their_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    raw = HEAD.concatenate([np.array([[1.0, 2.0, 0.0]]), np.array([[0.0, 1.0, 2.0, 3.0], [3.0, 4.0, 9.0, 9.0]])])
    encoded = {"input_ids": [[[1]] * 3, [[1]] * 4, [[1]] * 2]}
    outputs = HEAD.checked(HEAD.row_outputs(raw, encoded, tokenizer))
    assert HEAD.decode(outputs) == [1, 3, 1]
    assert HEAD.metrics["accuracy"].score(np.array([1, 3, 0]), outputs) == pytest.approx(2 / 3)
    rows = HEAD.prediction_rows(outputs, probabilities=True)
    assert [row["label"] for row in rows] == ["B", "D", "B"]  # one more than training had
    assert rows[2]["probabilities"] == pytest.approx([0.268941, 0.731059]) and rows[2]["probability"] == 0.731059
    assert HEAD.decode(HEAD.row_outputs(raw, {"labels": [1, 3, 1]}, tokenizer))[:2] == [1, 3]


# Files ----------------------------------------------------------------------------------------------------------------

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def written(*rows: str, header: str = "q,a,b,c,label") -> Path:
        Path("own.csv").write_text("\n".join([header, *rows]) + "\n")
        return Path("own.csv")

    return written


def load(path: Path, columns: str = "q,a,b,c", **options: Any) -> Any:
    named = {"text_columns": columns.split(","), "label_column": "label", "label_type": "choice"}
    return load_files(train_file=path, **named, **options)


def test_choices_in_a_list_with_numbers_as_labels(write: Write) -> None:
    file = write('why?,"[""x"", 5, ""z""]",1.0', 'how?,"[""x"", ""y""]",0', header="q,all,label")
    data = load(file, "q,all")
    assert data.splits["train"]["choices"][:] == [["x", "5", "z"], ["x", "y"]]
    assert data.splits["train"]["label"][:] == [1, 0] and data.task.label_names == ("0", "1")
    records = [{"q": "why?", "all": ["x", "y"], "label": "B"}, {"q": "how?", "all": ["x", "y", "z"], "label": "A"}]
    Path("own.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert load(Path("own.jsonl"), "q,all").splits["train"]["label"][:] == [1, 0]


def test_numbers_that_seem_to_count_from_one_are_refused(write: Write) -> None:
    with pytest.raises(
        AttendropError, match="no label is 0, and choices count from 0; subtract 1 if yours count from 1"
    ):
        load(write("why?,x,y,z,1", "how?,x,y,z,2"))
