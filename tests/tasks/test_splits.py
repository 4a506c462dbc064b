"""Samples and held-out splits, also of rows unlike the others; rows that belong together; how long inputs may be."""

import random
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from datasets import Dataset
from helpers import tiny
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.runs.data import resolve_run
from attendrop.tasks.base import OTHERS, Task, encode
from attendrop.tasks.class_names import same_text, telling_names
from attendrop.tasks.custom_files import files_task, load_files
from attendrop.tasks.inspection import inspect_files
from attendrop.tasks.metrics import row_scores
from attendrop.tasks.splits import (
    GROUP,
    class_likeness,
    few_shot,
    groups_of,
    hold_out,
    hold_out_like,
    hold_out_values,
    merged,
    near_duplicates,
    subset,
    text_vectorizer,
)
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, fit_tokenizer
from attendrop.tasks.types.classification import Classification, Regression

SIZES = {"vocab_size": 99, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
REGRESSION = Task("files", Regression(), ("text",), "pearson", "numbers")


def classes(count: int) -> Task:
    return Task("files", Classification(tuple(f"class {i}" for i in range(count))), ("text",), "accuracy", "classes")


def rows(labels: list[int] | list[float], texts: list[int] | None = None) -> Dataset:
    indices = list(range(len(labels)))
    return Dataset.from_dict({"text": [f"row {i}" for i in texts or indices], "label": labels, "index": indices})


def test_few_shots_are_k_of_every_class_in_order() -> None:
    data = rows([0, 1, 2] * 20)
    sample = few_shot(data, classes(3), 5, seed=0)
    assert Counter(sample["label"]) == {0: 5, 1: 5, 2: 5}
    assert sample["index"] == sorted(sample["index"])
    assert sample["index"] == few_shot(data, classes(3), 5, seed=0)["index"]
    assert sample["index"] != few_shot(data, classes(3), 5, seed=1)["index"]
    assert set(sample["index"]) < set(few_shot(data, classes(3), 9, seed=0)["index"])


@pytest.mark.parametrize(
    ("labels", "fraction", "held"),
    [
        ([0] * 80 + [1] * 20, 0.1, {0: 8, 1: 2}),
        ([0, 1] * 5, 0.1, {0: 1, 1: 1}),  # as many rows as classes
        ([0, 1] * 50 + [2], 0.1, {0: 5, 1: 5}),  # a class of one row stays
        ([0, 1] * 50, 0.29, {0: 15, 1: 14}),  # 29 rows, though 100 * 0.29 is 28.999999999999996
    ],
)
def test_held_out_rows_are_stratified(labels: list[int], fraction: float, held: dict[int, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept, out = hold_out(rows(labels), classes(3), fraction, seed=0)
    assert sorted(Counter(out["label"]).values()) == sorted(held.values())
    assert set(out["label"]) == set(held) and len(kept) + len(out) == len(labels)


def test_the_same_rows_are_held_out_in_every_version() -> None:
    """As long as no text repeats: published scores are of these rows."""
    of_classes = hold_out(rows([0, 1, 1, 2] * 8), classes(3), 0.25, 0)[1]
    assert of_classes["index"][:] == [3, 5, 7, 9, 10, 14, 16, 20]
    assert hold_out(rows([0.5] * 20), REGRESSION, 0.25, 0)[1]["index"][:] == [0, 10, 14, 16, 18]


@pytest.mark.parametrize(
    ("texts", "count", "fraction", "held"),
    [
        ([*range(60)] * 4, 10, 0.25, [4, 4, 4, 4, 4, 8, 8, 8, 8, 8]),
        ([*range(140), *[140] * 100], 2, 0.25, [17, 43]),  # no text of a hundred rows for sixty
        ([*range(4)] * 5, 2, 0.1, [5, 5]),  # at least one text of each class
        ([*range(12)] * 5, 1, 0.1, [10]),  # five of the six wanted rows are not enough
    ],
)
def test_repeated_texts_do_not_add_rows(texts: list[int], count: int, fraction: float, held: list[int]) -> None:
    kept, out = hold_out(rows([text % count for text in texts], texts), classes(count), fraction, seed=0)
    assert sorted(Counter(out["label"]).values()) == held
    assert not set(kept["text"]) & set(out["text"]) and len(kept) + len(out) == len(texts)


def test_a_text_of_each_class_stays_in_training() -> None:
    texts = [0, 1, 2, 3, 4] * 2 + [5, 6] * 5  # of the second class, 0.7 of the rows would be both texts
    kept, out = hold_out(rows([0] * 10 + [1] * 10, texts), classes(2), 0.7, seed=0)
    assert {*kept["label"][:]} == {*out["label"][:]} == {0, 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=2), st.floats(0.01, 0.99))
def test_a_text_is_in_one_part(data: list[tuple[int, int]], fraction: float) -> None:
    """Also if its rows have several classes."""
    texts, labels = map(list, zip(*data, strict=True))
    assume(len(set(texts)) > 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept, out = hold_out(rows(labels, texts), classes(3), fraction, seed=0)
    assert not set(kept["text"][:]) & set(out["text"][:])
    of_kept, of_held = kept["index"][:], out["index"][:]
    assert of_kept and of_held and sorted(of_kept + of_held) == list(range(len(labels)))
    assert of_kept == sorted(of_kept) and of_held == sorted(of_held)


TASK = files_task(("text",), Classification(("card", "loan")))
# Of each class, three ways to say it in the same words, and one in others.
PHRASES = {
    "card": ("my card was lost at {}", "lost my card at {}", "the card was lost at {}", "someone took plastic near {}"),
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
    unlike = {"someone took plastic near", "what does credit cost in"}
    assert {text.rpartition(" ")[0] for text in held["text"]} == unlike
    assert held["label"][:].count(0) == held["label"][:].count(1) == 8


def test_classes_of_too_few_texts_are_kept_and_refused_where_they_are_most() -> None:
    few = rows_of({"card": PHRASES["card"][:1], "loan": PHRASES["loan"]})
    few = few.filter(lambda row: row["label"] == 1 or row["text"].endswith(("home", "work", "sea")))
    kept, held = hold_out_like(few, TASK, 0.25, seed=0)
    assert set(held["label"]) == {1} and kept["label"][:].count(0) == 3
    with pytest.raises(AttendropError, match="only 0 of 2 classes have so many"):
        hold_out_like(few.select(range(4)), TASK, 0.25, seed=0)
    signs = Dataset.from_dict({"text": ["?" * (1 + n) for n in range(10)], "label": [0, 1] * 5})
    with pytest.raises(AttendropError, match="texts that have words"):
        hold_out_like(signs, TASK, 0.25, seed=0)
    alike = [f"{words}{sign}" for words in ("hello world", "bye now") for sign in ("", "!", ".", "?")]
    with pytest.raises(AttendropError, match="the texts of a class are all alike"):
        hold_out_like(Dataset.from_dict({"text": alike, "label": [0] * 4 + [1] * 4}), TASK, 0.25, seed=0)


@pytest.mark.parametrize(
    ("values", "fraction", "held"),
    [
        (["2026-01"] * 4 + ["2026-03"] * 2 + ["2026-02"] * 4, 0.6, [4, 5, 6, 7, 8, 9]),
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
        (["Q1 2024", "Q4 2023"], r"such as 'Q1 2024', whose order is not clear"),
        (["01.2024", "12.2023"], r"such as '01.2024', whose order is not clear"),
        (["1", "2", "soon"], "numbers such as '1', and 'soon', so that their order is not clear"),
        (["x"], "single value, 'x'"),
    ],
)
def test_values_whose_order_is_not_clear_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        hold_out_values(rows_of().select(range(10)), "day", (values * 10)[:10], 0.25)


def test_likeness_within_classes_and_between() -> None:
    alike = class_likeness(rows_of({name: of_class[:1] for name, of_class in PHRASES.items()}), TASK)
    varied = class_likeness(rows_of(), TASK)
    assert alike["within"] > varied["within"] > varied["between"]
    assert 1 > varied["nearest"] > varied["within"] and alike["nearest"] >= alike["within"]
    assert class_likeness(rows_of().select([0, 4]), TASK) is None


def test_more_than_the_tokenizer_allows_is_lowered(tokenizer: PreTrainedTokenizerBase) -> None:
    data = Dataset.from_dict({"text": ["a " * 40], "label": [0]})
    with pytest.warns(UserWarning, match="the maximum length 99 was lowered to the model's 32 tokens"):
        assert encode(data, classes(2), tokenizer, 99)["length"][:] == [32]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classes(2).type.length_limit(tokenizer, DEFAULT_MAX_LENGTH, ["text"]) == 32  # which nobody asked for
    with pytest.raises(AttendropError, match=r"a maximum length of 2 leaves no room .* adds 2 special tokens"):
        encode(data, classes(2), tokenizer, 2)


def test_a_model_has_so_many_positions(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    for config, positions in (
        (hf.RobertaConfig(**SIZES, max_position_embeddings=22), 20),
        (hf.LlamaConfig(**SIZES, max_position_embeddings=20), 1000),
    ):
        model = hf.AutoModel.from_config(config)
        monkeypatch.setattr(tokenizer, "model_max_length", 1000)
        fit_tokenizer("a model", model, tokenizer)
        assert tokenizer.model_max_length == positions
        with pytest.raises((IndexError, RuntimeError)) if positions == 20 else nullcontext():
            model(input_ids=torch.full((1, 21), 5))


YES_NO = Task("files", Classification(("no", "yes")), ("text",), "accuracy", "")
WORDS = [f"{first}{second}" for first in "bcdfghkl" for second in ("abo", "emi", "iru", "osa", "uti", "ane", "elo")]


def texts(count: int, words: int = 12, key: int = 0) -> list[str]:
    """Write texts that have nothing but single words in common."""
    draw = random.Random(key)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def rows_with(texts: Sequence[str], groups: Sequence[str] | None = None, classes: int = 2) -> Dataset:
    count = len(texts)
    columns = {"text": list(texts), "label": [row % classes for row in range(count)], "index": list(range(count))}
    return Dataset.from_dict(columns | ({} if groups is None else {GROUP: list(groups)}))


def customers(rows: int, largest: int, key: int = 0) -> list[str]:
    """Divide rows among customers of 1 to ``largest`` rows."""
    draw, found = random.Random(key), []
    while len(found) < rows:
        found += [f"customer {len(found)}"] * draw.randint(1, largest)
    return found[:rows]


LONG = "the parcel with my order from last week has not arrived at the address that I gave you on the phone"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (LONG.upper().replace(" ", "\n ") + "…", True),
        (LONG.replace("phone", "telephone"), True),
        (LONG.replace("parcel", "letter").replace("week", "month").replace("phone", "form"), False),
    ],
)
def test_texts_that_are_nearly_the_same_belong_together(other: str, same: bool) -> None:
    numbers = near_duplicates([LONG, *texts(40), other])
    assert (numbers[0] == numbers[-1]) is same
    assert len(set(numbers)) == 42 - same


def test_signs_and_scripts_without_words_are_not_all_the_same() -> None:
    assert near_duplicates([":-)", ":-(", "", "東京は大きい", "東京は大きい。", "大阪は古い"]) == [0, 1, 2, 3, 3, 4]
    # Signs of vowels are no punctuation: these differ in nothing else.
    some = ["दिन में पानी", "दान में पीना", "दिन में पानी।", "ปีนี้", "ปูนา", "كَتَبَ", "كُتُب"]
    assert near_duplicates(some) == [0, 1, 0, 2, 3, 4, 5]
    assert len(set(map(same_text, ["I like C++", "I like C#", "i like c", "ok 👍", "ok 👎", "OK!"]))) == 6
    assert same_text("दिन") != same_text("दान") and telling_names(["दिन", "दान"]) == ["दिन", "दान"]


def test_pairs_are_those_of_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in parts of a few rows, and where a term is in most texts."""
    draw, some = random.Random(1), texts(60, words=8)
    some += [" ".join(["bane", *draw.sample(text.split(), 8)]) for text in some]
    some += [f"{text} {draw.choice(WORDS)}" for text in some]
    vectors = text_vectorizer().fit_transform(some)
    alike = (vectors @ vectors.T).toarray() >= 0.9
    expected = np.linalg.matrix_power(alike.astype(float) + np.eye(len(some)), 40) > 0
    for at_a_time in (4_000_000, 500):
        monkeypatch.setattr("attendrop.tasks.splits._AT_A_TIME", at_a_time)
        found = np.array(near_duplicates(some))
        assert (np.equal.outer(found, found) == expected).all()
    assert 1 < len(set(found.tolist())) < len(some) - 10


def test_groups_join_by_way_of_a_third_row() -> None:
    assert merged("aabc", "xyyz") == [0, 0, 0, 1]
    some = texts(9)
    found = groups_of(rows_with([*some, f"{some[3]}!"], ["a", "b", "", "", "c", "d", "e", "f", "a", "b"]), YES_NO)
    assert found == [0, 1, 2, 1, 3, 4, 5, 6, 0, 1]  # an empty value is no group


def parts_of(rows: Dataset, *parts: Dataset) -> list[set[int]]:
    numbers = groups_of(rows, YES_NO)
    return [{numbers[index] for index in part["index"]} for part in parts]


@pytest.mark.parametrize(("kind", "largest", "classes"), [("given", 2, 1), ("nearly the same", 2, 2), ("both", 20, 2)])
def test_every_split_keeps_groups_whole(kind: str, largest: int, classes: int) -> None:
    groups = customers(200, largest) if kind != "nearly the same" else None
    nearly = [f"{'oh ' * (n % 4)}{text}" for n, text in enumerate(sorted(texts(50) * 4))]
    rows = rows_with(texts(200) if kind == "given" else nearly, groups, classes)
    most = max(Counter(groups_of(rows, YES_NO)).values())
    kept, held = hold_out(rows, YES_NO, 0.25, 0)
    again, selection = hold_out(kept, YES_NO, 0.2, 0)  # a split of a split
    for one, other in (parts_of(rows, kept, held), parts_of(rows, again, selection)):
        assert not one & other
    assert 45 <= len(held) <= 50 + most and len(kept) + len(held) == 200 and len(selection) > 20
    assert classes == 1 or abs(np.mean(held["label"][:]) - 0.5) < 0.2
    kept, held = hold_out_like(rows, YES_NO, 0.25, 0)
    one, other = parts_of(rows, kept, held)
    assert not one & other and 10 <= len(held) <= 125
    if groups is not None:
        months = [str(number // 50) for number in range(200)]
        kept, held = hold_out_values(rows, "month", months, 0.25)
        assert held["index"][:] == list(range(150, 200))
        assert not set(kept[GROUP]) & set(held[GROUP]) and len(kept) > 120


@pytest.mark.parametrize("column", [GROUP, "text"])
def test_large_groups_are_held_out_as_often_as_small_ones(column: str) -> None:
    """In the order of random rows, they would be the first to be held out."""
    groups = [f"large {row // 10}" for row in range(100)] + [f"small {row // 2}" for row in range(100)]
    data = rows_with(texts(200, words=3), groups) if column == GROUP else rows([0, 1] * 100, groups)
    held = Counter("large" in name for seed in range(20) for name in hold_out(data, YES_NO, 0.25, seed)[1][column])
    assert 0.6 < held[True] / held[False] < 1.5  # 1.9 in the order of random rows


FEW, ONE_GROUP = rows([0, 1]), rows_with(texts(40), ["a"] * 40)


@pytest.mark.parametrize(
    ("split", "arguments", "message"),
    [
        (few_shot, (FEW, classes(2), 0, 0), "the number of shots must be at least 1, not 0"),
        (subset, (FEW, 0, 0), "the number of rows must be at least 1, not 0"),
        (hold_out, (FEW, classes(2), 1, 0), "at least 0 and below 1, not 1"),
        (hold_out, (rows([0, 1], [5, 5]), classes(2), 0.1, 0), "2 rows of the same text cannot be split"),
        (hold_out, (ONE_GROUP, YES_NO, 0.25, 0), "40 rows of the same group cannot be split"),
        (hold_out_like, (ONE_GROUP, YES_NO, 0.25, 0), "all rows belong to one"),
        (hold_out_values, (ONE_GROUP, "month", ["1", "2"] * 20, 0.25), "every group of group-column has rows among"),
    ],
)
def test_what_cannot_be_split(split: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        split(*arguments)


def test_groups_are_the_units_of_row_scores() -> None:
    groups = customers(150, 9)
    generator = np.random.default_rng(0)
    labels, answers = (generator.random((2, 150)) < 0.4).astype(int)
    task = Task("files", Classification(("no", "yes")), ("text",), "matthews_correlation", "")
    score = task.type.metrics["matthews_correlation"].score
    found = row_scores(task, np.eye(2)[answers], labels, rows_with(texts(150), groups))
    names = dict.fromkeys(groups)
    without = [score(labels[keep], np.eye(2)[answers][keep]) for name in names for keep in [np.array(groups) != name]]
    expected = len(names) * score(labels, np.eye(2)[answers]) - (len(names) - 1) * np.array(without)
    assert found.groups == len(names) < 100 and found.as_dict()["groups"] == len(names)
    assert found.by_unit == pytest.approx(expected)
    some = texts(100)  # near duplicates are one unit
    alike = row_scores(
        YES_NO, np.eye(2)[labels[:100]], labels[:100], rows_with([*some[:98], f"{some[0]}!", f"{some[0]} ?"])
    )
    assert (alike.groups, alike.as_dict()["together"]) == (98, [[0, 98, 99]])


def write(path: Path, groups: Sequence[str], column: str = "customer", key: int = 0) -> str:
    lines = [
        f"a cat {text},{'yes' if row % 2 else 'no'},{group}"
        for row, (text, group) in enumerate(zip(texts(len(groups), key=key), groups, strict=True))
    ]
    path.write_text("\n".join([f"text,label,{column}", *lines]))
    return str(path)


def test_the_column_of_groups_is_read_from_all_files(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", ["x", "x", ""] * 9)
    dev = write(tmp_path / "b.csv", ["z", " z"] * 9, key=1)
    options: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "eval_file": dev}
    assert GROUP not in load_files(train_file=train, **options).splits["dev"].column_names
    (tmp_path / "c.csv").write_text((tmp_path / "b.csv").read_text().replace("customer", "client"))
    for file, says in ((dev, "has a single value, 'z'"), (str(tmp_path / "c.csv"), "customer")):
        with pytest.raises(AttendropError, match=says):
            load_files(train_file=train, **(options | {"eval_file": file}), group_column="customer")
    found = load_files(train_file=train, **(options | {"eval_file": None}), group_column="customer")
    assert found.splits["train"][GROUP][:] == ["x", "x", ""] * 9
    seen = write(tmp_path / "e.csv", ["x", "new", "", "new"], key=1)
    with pytest.warns(UserWarning, match="1 of 4 rows of .*e.csv are of a group that training rows are of"):
        load_files(train_file=train, **(options | {"eval_file": seen}), group_column="customer")
    single = write(tmp_path / "d.csv", [str(n) for n in range(9)])
    with pytest.warns(UserWarning, match="has no value twice: no rows are grouped"):
        load_files(train_file=single, **(options | {"eval_file": None}), group_column="customer")


def test_values_of_other_columns_are_the_same_with_and_without_gaps(tmp_path: Path) -> None:
    """7.0 was another customer than 7, and all rows of "nan" or "n/a" were one customer's."""
    train = write(tmp_path / "a.csv", ["7.0", "nan", "n/a", "nan", "8", "8.0"])
    dev = write(tmp_path / "b.csv", ["7", "nan"], key=1)
    options: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "eval_file": dev}
    with pytest.warns(UserWarning, match="1 of 2 rows of .*b.csv are of a group that training rows are of"):
        found = load_files(train_file=train, **options, group_column="customer")
    assert found.splits["train"][GROUP][:] == ["7", "", "", "", "8", "8"]
    found = load_files(train_file=train, **options, with_columns=["customer"])
    assert {found.splits[name][OTHERS][0] for name in ("train", "dev")} == {"customer: 7 | "}


def test_test_selection_and_reward_rows_are_of_other_groups(tmp_path: Path) -> None:
    file, _ = write(tmp_path / "train.csv", customers(300, 20)), tiny.save_tiny_bert(tmp_path / "model")
    with pytest.raises(AttendropError, match="group-column 'label' is the label column"):
        tiny.config(tmp_path, train_file=file, group_column="label")
    own = {"eval_file": None, "train_file": file, "text_columns": ("text",), "group_column": "customer"}
    rewards = {"method": "attendout", "options": {"reward_data": "split"}}
    held = {"test_fraction": 0.25, "selection_fraction": 0.2}
    for shift in ({}, {"ood": True}):
        found = tiny.config(tmp_path, **own, **held, **rewards, **shift)
        parts = resolve_run(found).parts
        named = [parts.train, parts.selection, parts.reward, *parts.report.values()]
        assert len(named) == 4 + bool(shift)
        sets = [set(part[GROUP]) for part in named]
        assert sum(map(len, sets)) == len(set().union(*sets)) and min(map(len, named)) > 10


@pytest.mark.parametrize(
    ("column", "groups", "proposed"),
    [
        ("Kunde", customers(200, 9), True),
        ("id", [str(n) for n in range(200)], False),
        ("customer", ["unknown"] * 150 + [str(n // 2) for n in range(50)], False),
        ("remark", customers(200, 9), False),
    ],
)
def test_inspect_proposes_and_compare_names_a_column_of_groups(
    tmp_path: Path, column: str, groups: list[str], proposed: bool
) -> None:
    file = write(tmp_path / "train.csv", groups, column)
    found = inspect_files(file, label_column="label").group_columns
    assert [each.name for each in found] == [column] * proposed
    options: dict[str, Any] = {"train_file": file, "text_columns": ["text"], "label_column": "label"}
    says = load_files(**options).looks_grouped
    assert says.startswith(f"Column {column!r} has {len(set(groups))} values in 200 rows") is proposed
    assert load_files(**options, group_column=column).looks_grouped == "" if proposed else says == ""
