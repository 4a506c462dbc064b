"""Texts that are longer than a model reads."""

import itertools
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from helpers import tiny

from attendrop.errors import AttendropError
from attendrop.tasks.base import encode
from attendrop.tasks.registry import get_task
from attendrop.tasks.types.classification import Classification

TASK = get_task("sst2")
# Numbers of words of the texts; 8 are left of a maximum length of 10.
WORDS = [3, 8, 9, 20, 21]


def rows() -> Dataset:
    texts = [" ".join(tiny.WORDS[(place + number) % 16] for place in range(n)) for number, n in enumerate(WORDS)]
    return Dataset.from_dict({"text": texts, "label": [0, 1, 0, 1, 0]})


def whole_texts(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in rows()["text"]]


def test_head_and_tail_keep_a_quarter_of_the_length_from_the_beginning(tokenizer: Any) -> None:
    found = encode(rows(), TASK.with_long_texts("head+tail"), tokenizer, 10)
    expected = [ids if len(ids) <= 10 else ids[:3] + ids[-7:] for ids in whole_texts(tokenizer)]
    assert found["input_ids"][:] == expected
    assert found["length"][:] == [5, 10, 10, 10, 10]


def test_windows_cover_all_tokens_and_overlap_by_a_quarter_at_least(tokenizer: Any) -> None:
    found = encode(rows(), TASK.with_long_texts("windows"), tokenizer, 10)
    assert found["document"][:] == [0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    assert found["labels"][:] == [0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    for number, ids in enumerate(whole_texts(tokenizer)):
        windows = [found["input_ids"][place] for place, of in enumerate(found["document"]) if of == number]
        starts, first = [], 0
        for window in windows:
            assert (window[0], window[-1]) == (ids[0], ids[-1])
            body = window[1:-1]
            first = next(place for place in range(first, len(ids)) if ids[place : place + len(body)] == body)
            starts.append(first)
            first += 1
        assert starts[0] == 1
        assert starts[-1] + len(windows[-1]) - 2 == len(ids) - 1
        assert all(later - earlier <= 6 for earlier, later in itertools.pairwise(starts))


def test_windows_of_a_text_do_not_depend_on_the_rows_that_are_encoded_with_it(tokenizer: Any) -> None:
    task = TASK.with_long_texts("windows")
    many = Dataset.from_dict({name: rows()[name][:] * 201 for name in ("text", "label")})  # more than a batch of map
    found = encode(many, task, tokenizer, 10)
    assert found["document"][:] == sorted(found["document"][:])
    assert len(set(found["document"][:])) == len(many)
    assert found["input_ids"][-11:] == encode(rows(), task, tokenizer, 10)["input_ids"][:]


def test_a_text_in_windows_has_the_mean_of_their_outputs_and_one_reference() -> None:
    encoded = {"document": [4, 4, 7, 9, 9, 9], "labels": [1, 1, 0, 1, 1, 1]}
    raw = np.arange(12, dtype=np.float32).reshape(6, 2)
    means = np.array([raw[:2].mean(0), raw[2], raw[3:].mean(0)])
    task_type, tokenizer = Classification(("no", "yes")), None
    assert np.array_equal(task_type.row_outputs(raw, encoded, tokenizer), means)  # type: ignore[arg-type]
    assert task_type.references(encoded).tolist() == [1, 0, 1]
    assert np.array_equal(task_type.row_outputs(raw, {"labels": [0] * 6}, tokenizer), raw)  # type: ignore[arg-type]


def test_pairs_and_tags_are_refused() -> None:
    for name, message in (("rte", "is for single texts"), ("ptb-pos", "one prediction for each text")):
        assert get_task(name).with_long_texts("head") == get_task(name)
        with pytest.raises(AttendropError, match=message):
            get_task(name).with_long_texts("windows")
