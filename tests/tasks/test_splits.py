"""Few-shot samples, subsets and held-out splits; how long inputs may be."""

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers as hf
from datasets import Dataset
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.tasks.base import Task
from attendrop.tasks.splits import few_shot, hold_out, subset
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, encode, fit_tokenizer

SIZES = {"vocab_size": 99, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
REGRESSION = Task("files", "regression", ("text",), (), "pearson", "numbers")


def classes(count: int) -> Task:
    return Task("files", "classification", ("text",), tuple(f"class {i}" for i in range(count)), "accuracy", "classes")


def rows(labels: list[int] | list[float], texts: list[int] | None = None) -> Dataset:
    indices = list(range(len(labels)))
    return Dataset.from_dict({"text": [f"row {i}" for i in texts or indices], "label": labels, "index": indices})


class TestFewShot:
    def test_k_of_every_class_in_order(self) -> None:
        data = rows([0, 1, 2] * 20)
        sample = few_shot(data, classes(3), 5, seed=0)
        assert Counter(sample["label"]) == {0: 5, 1: 5, 2: 5}
        assert sample["index"] == sorted(sample["index"])
        assert sample["index"] == few_shot(data, classes(3), 5, seed=0)["index"]
        assert sample["index"] != few_shot(data, classes(3), 5, seed=1)["index"]
        assert set(sample["index"]) < set(few_shot(data, classes(3), 9, seed=0)["index"])

    def test_a_small_class_gives_all_it_has(self) -> None:
        with pytest.warns(UserWarning, match="class 'class 1' has only 2 of the 3 requested rows"):
            sample = few_shot(rows([0, 0, 0, 0, 1, 1]), classes(2), 3, seed=0)
        assert Counter(sample["label"]) == {0: 3, 1: 2}

    def test_many_small_classes_are_not_all_named(self) -> None:
        with pytest.warns(UserWarning) as told:
            few_shot(rows(list(range(100))), classes(100), 2, seed=0)
        assert len(told) == 6
        assert str(told[-1].message) == "100 classes have fewer than the 2 requested rows: all were taken."

    def test_regression_takes_k_in_all(self) -> None:
        assert len(few_shot(rows([0.5] * 30), REGRESSION, 7, seed=0)) == 7


def test_subset() -> None:
    data = rows([0, 1] * 20)
    sample = subset(data, 10, seed=0)["index"]
    assert len(sample) == 10 and sample == sorted(sample) == subset(data, 10, seed=0)["index"]
    assert set(sample) < set(subset(data, 11, seed=0)["index"]) and sample != subset(data, 10, seed=1)["index"]
    assert subset(data, 41, seed=0)["index"] == data["index"]


class TestHoldOut:
    @pytest.mark.parametrize(
        ("labels", "fraction", "held"),
        [
            ([0] * 80 + [1] * 20, 0.1, {0: 8, 1: 2}),
            ([0, 1] * 5, 0.1, {0: 1, 1: 1}),  # as many rows as classes
            ([0, 1] * 50 + [2], 0.1, {0: 5, 1: 5}),  # a class of one row stays
            ([0, 1] * 50, 0.29, {0: 15, 1: 14}),  # 29 rows, though 100 * 0.29 is 28.999999999999996
        ],
    )
    def test_stratified(self, labels: list[int], fraction: float, held: dict[int, int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kept, out = hold_out(rows(labels), classes(3), fraction, seed=0)
        assert out is not None and sorted(Counter(out["label"]).values()) == sorted(held.values())
        assert set(out["label"]) == set(held) and len(kept) + len(out) == len(labels)

    @pytest.mark.parametrize(
        ("task", "labels", "fraction", "seed", "held"),
        [
            (classes(3), [0, 1, 1, 2] * 8, 0.25, 0, [3, 5, 7, 9, 10, 14, 16, 20]),
            (REGRESSION, [0.5] * 20, 0.25, 0, [0, 10, 14, 16, 18]),
        ],
    )
    def test_the_same_rows_in_every_version(
        self, task: Task, labels: list[int], fraction: float, seed: int, held: list[int]
    ) -> None:
        """As long as no text repeats: published scores are of these rows."""
        out = hold_out(rows(labels), task, fraction, seed)[1]
        assert out is not None and out["index"][:] == held

    @pytest.mark.parametrize(
        ("texts", "count", "fraction", "held"),
        [
            ([*range(60)] * 4, 10, 0.25, [4, 4, 4, 4, 4, 8, 8, 8, 8, 8]),
            ([*range(140), *[140] * 100], 2, 0.25, [17, 43]),  # no text of a hundred rows for sixty
            ([*range(4)] * 5, 2, 0.1, [5, 5]),  # at least one text of each class
            ([*range(12)] * 5, 1, 0.1, [10]),  # five of the six wanted rows are not enough
        ],
    )
    def test_repeated_texts_do_not_add_rows(
        self, texts: list[int], count: int, fraction: float, held: list[int]
    ) -> None:
        kept, out = hold_out(rows([text % count for text in texts], texts), classes(count), fraction, seed=0)
        assert out is not None and sorted(Counter(out["label"]).values()) == held
        assert not set(kept["text"]) & set(out["text"]) and len(kept) + len(out) == len(texts)

    def test_a_text_of_each_class_stays_in_training(self) -> None:
        texts = [0, 1, 2, 3, 4] * 2 + [5, 6] * 5  # of the second class, 0.7 of the rows would be both texts
        kept, out = hold_out(rows([0] * 10 + [1] * 10, texts), classes(2), 0.7, seed=0)
        assert out is not None and {*kept["label"][:]} == {*out["label"][:]} == {0, 1}

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=2), st.floats(0.01, 0.99))
    def test_a_text_is_in_one_part(self, data: list[tuple[int, int]], fraction: float) -> None:
        """Also if its rows have several classes."""
        texts, labels = map(list, zip(*data, strict=True))
        assume(len(set(texts)) > 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept, out = hold_out(rows(labels, texts), classes(3), fraction, seed=0)
        assert out is not None and not set(kept["text"][:]) & set(out["text"][:])
        of_kept, of_held = kept["index"][:], out["index"][:]
        assert of_kept and of_held and sorted(of_kept + of_held) == list(range(len(labels)))
        assert of_kept == sorted(of_kept) and of_held == sorted(of_held)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda: few_shot(rows([0, 1]), classes(2), 0, seed=0), "the number of shots must be at least 1, not 0"),
        (lambda: subset(rows([0, 1]), 0, seed=0), "the number of rows must be at least 1, not 0"),
        (lambda: hold_out(rows([0, 1]), classes(2), 1, seed=0), "at least 0 and below 1, not 1"),
        (lambda: hold_out(rows([0]), classes(2), 0.1, seed=0), "1 row cannot be split"),
        (lambda: hold_out(rows([0, 1], [5, 5]), classes(2), 0.1, seed=0), "2 rows of the same text cannot be split"),
    ],
)
def test_what_cannot_be_sampled(sample: Callable[[], Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        sample()


# The length of inputs ------------------------------------------------------------------------------------------------


def test_more_than_the_tokenizer_allows_is_lowered(tokenizer: PreTrainedTokenizerBase) -> None:
    data = Dataset.from_dict({"text": ["a " * 40], "label": [0]})
    with pytest.warns(UserWarning, match="the maximum length 99 was lowered to the model's 32 tokens"):
        assert encode(data, classes(2), tokenizer, 99)["length"][:] == [32]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classes(2).head.length_limit(tokenizer, DEFAULT_MAX_LENGTH, ["text"]) == 32  # which nobody asked for
    assert RunConfig.max_length == DEFAULT_MAX_LENGTH
    with pytest.raises(AttendropError, match=r"a maximum length of 2 leaves no room .* adds 2 special tokens"):
        encode(data, classes(2), tokenizer, 2)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (hf.RobertaConfig(**SIZES, max_position_embeddings=22), 20),
        (hf.LlamaConfig(**SIZES, max_position_embeddings=20), None),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_model_has_so_many_positions(
    tokenizer: PreTrainedTokenizerBase,
    config: hf.PreTrainedConfig,
    positions: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = hf.AutoModel.from_config(config)
    monkeypatch.setattr(tokenizer, "model_max_length", 1000)
    fit_tokenizer("a model", model, tokenizer)
    assert tokenizer.model_max_length == (positions or 1000)
    for length in (20, 21):
        beyond = positions is not None and length > positions
        with pytest.raises((IndexError, RuntimeError)) if beyond else nullcontext():
            model(input_ids=torch.full((1, length), 5))
