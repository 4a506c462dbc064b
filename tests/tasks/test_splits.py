"""Few-shot samples, subsets and held-out splits, also of rows unlike the others; how long inputs may be."""

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
from attendrop.tasks.base import Task, encode
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.splits import (
    class_likeness,
    few_shot,
    hold_out,
    hold_out_like,
    hold_out_values,
    subset,
)
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, fit_tokenizer
from attendrop.tasks.types.classification import Classification, Regression

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


# Shift ----------------------------------------------------------------------------------------------------------------

TASK = files_task(("text",), Classification(("card", "loan")))
# Of each class, three ways to say it in the same words, and one in others.
PHRASES = {
    "card": (
        "my card was lost at {}",
        "lost my card at {}",
        "the card was lost at {}",
        "someone stole plastic near {}",
    ),
    "loan": ("can i borrow money for {}", "borrow money for {}", "i borrow for {}", "what does credit cost in {}"),
}
PLACES = ("home", "work", "sea", "school", "church", "rome", "oslo", "paris")


def rows_of(phrases: dict[str, tuple[str, ...]] = PHRASES) -> Dataset:
    found = [
        {"text": phrase.format(place), "label": label, "index": 0}
        for place in PLACES
        for label, of_class in enumerate(phrases.values())
        for phrase in of_class
    ]
    return Dataset.from_list([row | {"index": number} for number, row in enumerate(found)])


def test_the_group_that_is_unlike_the_others_is_held_out_of_each_class() -> None:
    kept, held = hold_out_like(rows_of(), TASK, 0.25, seed=0)
    assert sorted(kept["index"][:] + held["index"][:]) == list(range(64))
    assert {text.rpartition(" ")[0] for text in held["text"]} == {
        "someone stole plastic near",
        "what does credit cost in",
    }
    assert held["label"][:].count(0) == held["label"][:].count(1) == 8


def test_rows_of_the_same_text_are_on_one_side_and_numbers_are_one_class() -> None:
    rows = rows_of()
    doubled = Dataset.from_dict({name: rows[name][:] * 2 for name in rows.column_names})
    numbers = doubled.remove_columns("label").add_column("label", [0.5] * len(doubled))
    for data, task in ((doubled, TASK), (numbers, files_task(("text",), Regression()))):
        kept, held = hold_out_like(data, task, 0.25, seed=0)
        assert 0 < len(held) <= len(data) / 2 and not set(kept["text"]) & set(held["text"])


def test_classes_of_too_few_texts_are_kept_and_refused_where_they_are_most() -> None:
    few = rows_of({"card": PHRASES["card"][:1], "loan": PHRASES["loan"]})
    few = few.filter(lambda row: row["label"] == 1 or row["text"].endswith(("home", "work", "sea")))
    kept, held = hold_out_like(few, TASK, 0.25, seed=0)
    assert set(held["label"]) == {1} and kept["label"][:].count(0) == 3
    with pytest.raises(AttendropError, match="only 0 of 2 classes have so many"):
        hold_out_like(few.select(range(4)), TASK, 0.25, seed=0)
    with pytest.raises(AttendropError, match="texts that have words"):
        hold_out_like(
            Dataset.from_dict({"text": ["?" * (1 + n) for n in range(10)], "label": [0, 1] * 5}), TASK, 0.25, seed=0
        )


@pytest.mark.parametrize(
    ("values", "fraction", "held"),
    [
        (["2026-01"] * 4 + ["2026-03"] * 2 + ["2026-02"] * 4, 0.25, [4, 5]),
        (["2026-01"] * 4 + ["2026-03"] * 2 + ["2026-02"] * 4, 0.6, [4, 5, 6, 7, 8, 9]),
        (["9"] * 8 + ["10"] * 2, 0.25, [8, 9]),
        (["2024-9-30"] * 4 + ["2024-10-02"] * 2 + [""] * 4, 0.25, [4, 5]),  # neither as text nor is a blank one last
        (["week 9"] * 4 + ["week 11"] * 2 + ["N/A"] * 2 + ["nan"] * 2, 0.25, [4, 5]),  # words for nothing are none
    ],
)
def test_the_last_values_of_a_column_are_held_out(values: list[str], fraction: float, held: list[int]) -> None:
    kept, out = hold_out_values(rows_of().select(range(10)), "month", values, fraction)
    assert out["index"][:] == held and len(kept) == 10 - len(held)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["28/09/2024", "30/11/2023", ""], r"such as '28/09/2024', whose order is not clear; write them as"),
        (["May", "June"], "such as 'May', whose order is not clear"),
        (["1", "2", "soon"], "numbers such as '1', and 'soon', so that their order is not clear"),
        (["2024-01-02", "2024-01-03", "Monday"], "dates such as '2024-01-02', and 'Monday', so that their order"),
        (["x"], "single value, 'x'"),
    ],
)
def test_values_whose_order_is_not_clear_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        hold_out_values(rows_of().select(range(10)), "day", (values * 10)[:10], 0.25)


def test_likeness_within_classes_and_between() -> None:
    alike = class_likeness(rows_of({name: of_class[:1] for name, of_class in PHRASES.items()}), TASK)
    varied = class_likeness(rows_of(), TASK)
    assert alike.within > varied.within > varied.between
    assert 1 > varied.nearest > varied.within and alike.nearest >= alike.within
    assert class_likeness(rows_of().select([0, 4]), TASK) is None


# The length of inputs ------------------------------------------------------------------------------------------------


def test_more_than_the_tokenizer_allows_is_lowered(tokenizer: PreTrainedTokenizerBase) -> None:
    data = Dataset.from_dict({"text": ["a " * 40], "label": [0]})
    with pytest.warns(UserWarning, match="the maximum length 99 was lowered to the model's 32 tokens"):
        assert encode(data, classes(2), tokenizer, 99)["length"][:] == [32]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classes(2).type.length_limit(tokenizer, DEFAULT_MAX_LENGTH, ["text"]) == 32  # which nobody asked for
    assert RunConfig.max_length == DEFAULT_MAX_LENGTH
    with pytest.raises(AttendropError, match=r"a maximum length of 2 leaves no room .* adds 2 special tokens"):
        encode(data, classes(2), tokenizer, 2)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (hf.RobertaConfig(**SIZES, max_position_embeddings=22), 20),
        (hf.LlamaConfig(**SIZES, max_position_embeddings=20), 1000),
    ],
    ids=["roberta", "llama"],
)
def test_a_model_has_so_many_positions(
    tokenizer: PreTrainedTokenizerBase, config: hf.PreTrainedConfig, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hf.AutoModel.from_config(config)
    monkeypatch.setattr(tokenizer, "model_max_length", 1000)
    fit_tokenizer("a model", model, tokenizer)
    assert tokenizer.model_max_length == positions
    for length in (20, 21):
        with pytest.raises((IndexError, RuntimeError)) if length > positions else nullcontext():
            model(input_ids=torch.full((1, length), 5))
