"""Rows that belong together: found, kept whole by every split, and one unit each of what is said of new rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.resolved_run import resolve_run
from attendrop.studies.answer import answer
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.inspection import inspect_files
from attendrop.tasks.metrics import row_scores
from attendrop.tasks.splits import GROUP, groups_of, hold_out, hold_out_like, hold_out_values, merged, near_duplicates

TASK = Task("files", "classification", ("text",), ("no", "yes"), "accuracy", "")
WORDS = [f"{first}{second}" for first in "bcdfghkl" for second in ("abo", "emi", "iru", "osa", "uti", "ane", "elo")]


def texts(count: int, words: int = 12, key: int = 0) -> list[str]:
    """Write texts that have nothing but single words in common."""
    draw = random.Random(key)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def rows_of(texts: Sequence[str], groups: Sequence[str] | None = None, classes: int = 2) -> Dataset:
    count = len(texts)
    columns = {"text": list(texts), "label": [row % classes for row in range(count)], "index": list(range(count))}
    return Dataset.from_dict(columns | ({} if groups is None else {GROUP: list(groups)}))


def customers(rows: int, largest: int, key: int = 0) -> list[str]:
    """Divide rows among customers of 1 to ``largest`` rows."""
    draw, found = random.Random(key), []
    while len(found) < rows:
        found += [f"customer {len(found)}"] * draw.randint(1, largest)
    return found[:rows]


# What belongs together -----------------------------------------------------------------------------------------------

LONG = "the parcel with my order from last week has not arrived at the address that I gave you on the phone"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (LONG.upper() + " !!", True),
        (LONG.replace(" ", "\n ") + "…", True),
        (LONG.replace("phone", "telephone"), True),
        (LONG.replace("parcel", "letter").replace("week", "month").replace("phone", "form"), False),
        ("when do you open", False),
    ],
)
def test_texts_that_are_nearly_the_same_belong_together(other: str, same: bool) -> None:
    numbers = near_duplicates([LONG, *texts(40), other])
    assert (numbers[0] == numbers[-1]) is same
    assert len(set(numbers)) == 42 - same


def test_signs_and_scripts_without_words_are_not_all_the_same() -> None:
    assert near_duplicates([":-)", ":-(", "", "😀", "😡"]) == [0, 1, 2, 3, 4]
    assert near_duplicates(["東京は大きい", "東京は大きい。", "大阪は古い"]) == [0, 0, 1]


def test_pairs_are_those_of_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in parts of a few rows, and where a term is in most texts."""
    from attendrop.tasks.splits import text_vectorizer

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
    assert merged("abcabc") == [0, 1, 2, 0, 1, 2] and merged([]) == merged([], []) == []
    some = texts(9)
    found = groups_of(rows_of([*some, f"{some[3]}!"], ["a", "b", "", "", "c", "d", "e", "f", "a", "b"]), TASK)
    assert found == [0, 1, 2, 1, 3, 4, 5, 6, 0, 1]  # an empty value is no group


# Splits --------------------------------------------------------------------------------------------------------------


def parts_of(rows: Dataset, *parts: Dataset) -> list[set[int]]:
    numbers = groups_of(rows, TASK)
    return [{numbers[index] for index in part["index"]} for part in parts]


@pytest.mark.parametrize(
    ("kind", "largest", "classes"), [("given", 20, 2), ("given", 2, 1), ("nearly the same", 2, 2), ("both", 20, 2)]
)
def test_every_split_keeps_groups_whole(kind: str, largest: int, classes: int) -> None:
    groups = customers(200, largest) if kind != "nearly the same" else None
    nearly = [f"{'oh ' * (n % 4)}{text}" for n, text in enumerate(sorted(texts(50) * 4))]
    rows = rows_of(texts(200) if kind == "given" else nearly, groups, classes)
    most = max(Counter(groups_of(rows, TASK)).values())
    kept, held = hold_out(rows, TASK, 0.25, 0)
    again, selection = hold_out(kept, TASK, 0.2, 0)  # a split of a split
    for one, other in (parts_of(rows, kept, held), parts_of(rows, again, selection)):
        assert not one & other
    assert 45 <= len(held) <= 50 + most and len(kept) + len(held) == 200 and len(selection) > 20
    assert classes == 1 or abs(np.mean(held["label"][:]) - 0.5) < 0.2
    kept, held = hold_out_like(rows, TASK, 0.25, 0)
    one, other = parts_of(rows, kept, held)
    assert not one & other and 10 <= len(held) <= 125
    if groups is not None:
        months = [str(number // 50) for number in range(200)]
        kept, held = hold_out_values(rows, "month", months, 0.25)
        assert held["index"][:] == list(range(150, 200))
        assert not set(kept[GROUP]) & set(held[GROUP]) and len(kept) > 120


def test_large_groups_are_held_out_as_often_as_small_ones() -> None:
    """In the order of random rows, they would be the first to be held out."""
    groups = [f"large {row // 10}" for row in range(100)] + [f"small {row // 2}" for row in range(100)]
    rows = rows_of(texts(200, words=3), groups)
    held = Counter(name.split()[0] for seed in range(20) for name in hold_out(rows, TASK, 0.25, seed)[1][GROUP])
    assert 0.6 < held["large"] / held["small"] < 1.5  # 1.9 in the order of random rows


def test_where_no_group_is_left_to_train_on_a_split_is_refused() -> None:
    rows = rows_of(texts(40), ["a"] * 40)
    for split, says in (
        (lambda: hold_out(rows, TASK, 0.25, 0), "40 rows of the same group cannot be split"),
        (lambda: hold_out_like(rows, TASK, 0.25, 0), "all rows belong to one"),
        (lambda: hold_out_values(rows, "month", ["1", "2"] * 20, 0.25), "every group of group-column has rows among"),
    ):
        with pytest.raises(AttendropError, match=says):
            split()


# Scores by row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["accuracy", "matthews_correlation"])
def test_groups_are_the_units_of_row_scores(metric: str) -> None:
    groups = customers(300, 9)
    generator = np.random.default_rng(0)
    labels, answers = (generator.random((2, 300)) < 0.4).astype(int)
    task = Task("files", "classification", ("text",), ("no", "yes"), metric, "")
    score = task.type.metrics[metric].score
    found = row_scores(task, np.eye(2)[answers], labels, rows_of(texts(300), groups))
    names = dict.fromkeys(groups)
    without = [score(labels[keep], np.eye(2)[answers][keep]) for name in names for keep in [np.array(groups) != name]]
    expected = len(names) * score(labels, np.eye(2)[answers]) - (len(names) - 1) * np.array(without)
    assert found.groups == len(names) < 100 and found.as_dict()["groups"] == len(names)
    assert found.by_unit == pytest.approx(expected)


def test_near_duplicates_are_one_unit_and_other_rows_are_units_as_before() -> None:
    outputs, labels = np.eye(2)[[0, 1] * 50], np.array([0, 1] * 50)
    some = texts(100)
    assert row_scores(TASK, outputs, labels, rows_of(some)).as_dict().keys() == {"rows", "data", "right"}
    found = row_scores(TASK, outputs, labels, rows_of([*some[:98], f"{some[0]}!", f"{some[0]} ?"])).as_dict()
    assert (found["groups"], found["together"]) == (98, [[0, 98, 99]])


# From the file to the answer -----------------------------------------------------------------------------------------


def write(path: Path, groups: Sequence[str], column: str = "customer", key: int = 0) -> str:
    lines = [
        f"a cat {text},{'yes' if row % 2 else 'no'},{group}"
        for row, (text, group) in enumerate(zip(texts(len(groups), key=key), groups, strict=True))
    ]
    path.write_text("\n".join([f"text,label,{column}", *lines]))
    return str(path)


def test_the_column_of_groups_is_read_from_all_files(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "a.csv", ["x", "x", ""] * 9), write(tmp_path / "b.csv", ["z", " z"] * 9, key=1)
    options: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "eval_file": dev}
    assert GROUP not in load_files(train_file=train, **options).splits["dev"].column_names
    (tmp_path / "c.csv").write_text((tmp_path / "b.csv").read_text().replace("customer", "client"))
    for file, says in ((dev, "has a single value, 'z'"), (str(tmp_path / "c.csv"), "customer")):
        with pytest.raises(AttendropError, match=says):
            load_files(train_file=train, **(options | {"eval_file": file}), group_column="customer")
    found = load_files(train_file=train, **(options | {"eval_file": None}), group_column="customer")
    assert found.splits["train"][GROUP][:] == ["x", "x", ""] * 9
    with pytest.warns(UserWarning, match="has no value twice: no rows are grouped"):
        load_files(train_file=write(tmp_path / "d.csv", [str(n) for n in range(9)]), **(options | {"eval_file": None}),
                   group_column="customer")  # fmt: skip


def test_test_selection_and_reward_rows_are_of_other_groups(tmp_path: Path) -> None:
    file, _ = write(tmp_path / "train.csv", customers(300, 20)), tiny.save_tiny_bert(tmp_path / "model")
    own = {"eval_file": None, "train_file": file, "text_columns": ("text",), "group_column": "customer"}
    rewards = {"method": "attendout", "options": {"reward_data": "split"}}
    held = {"test_fraction": 0.25, "selection_fraction": 0.2}
    for shift in ({}, {"ood": True}):
        found = tiny.config(tmp_path, **own, **held, **rewards, **shift)
        parts = resolve_run(found).parts
        named = [
            parts.train,
            parts.selection,
            *parts.report.values(),
            *([] if parts.reward is None else [parts.reward]),
        ]
        assert len(named) == 4 + bool(shift)
        sets = [set(part[GROUP]) for part in named]
        assert sum(map(len, sets)) == len(set().union(*sets)) and min(map(len, named)) > 10


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group_column": "label"}, "group-column 'label' is the label column"),
        ({"task": "cola", "train_file": None, "group_column": "x"}, "group-column is for custom files"),
    ],
)
def test_a_column_that_cannot_group_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    tiny.write_data(tmp_path)
    with pytest.raises(AttendropError, match=says):
        none = dict.fromkeys(("eval_file", "label_column"), None) | {"text_columns": ()} if "task" in change else {}
        tiny.config(tmp_path, **(none | change))


@pytest.mark.parametrize(
    ("column", "groups", "proposed"),
    [
        ("customer", customers(200, 9), True),
        ("Kunde", customers(200, 9), True),
        ("id", [str(n) for n in range(200)], False),
        ("language", ["en", "de"] * 100, False),
        ("customer", ["unknown"] * 150 + [str(n // 2) for n in range(50)], False),
        ("remark", customers(200, 9), False),
    ],
)
def test_inspect_proposes_and_compare_names_a_column_of_groups(
    tmp_path: Path, capsys: Captured, column: str, groups: list[str], proposed: bool
) -> None:
    file = write(tmp_path / "train.csv", groups, column)
    assert inspect_files(file, label_column="label").group_columns == [column] * proposed
    assert cli.main(["inspect", file, "--label-column", "label"]) == 0
    shown = capsys.readouterr().out
    assert (f"With --group-column {column}, rows with the same" in shown) is proposed
    assert (f"--label-column label --group-column {column}" in shown) is proposed
    options: dict[str, Any] = {"train_file": file, "text_columns": ["text"], "label_column": "label"}
    says = load_files(**options).looks_grouped
    assert says.startswith(f"Column {column!r} has {len(set(groups))} values in 200 rows") is proposed
    assert load_files(**options, group_column=column).looks_grouped == "" if proposed else says == ""


def run(method: str, seed: int, right: np.ndarray, **more: Any) -> dict[str, Any]:
    return {
        "task": "files", "model": "m", "metric": "accuracy", "method": method, "seed": seed, "options": {},
        "score": float(right.mean()), "train_seconds": 1.0, "data": {"rows": {"dev": len(right)}}, **more,
    }  # fmt: skip


def test_one_customer_who_differs_is_no_evidence_of_others() -> None:
    """A method that is right on all 20 rows of two of 40 customers more than plain fine-tuning, with all seeds."""
    names = [f"customer {row // 20}" for row in range(800)]
    plain = np.random.default_rng(0).random(800) < 0.7
    better = plain | (np.arange(800) < 40)

    def found(rows: Dataset) -> Any:
        every = []
        for seed in range(5):
            for method, right in (("finetune", plain), ("ad-drop", better)):
                scores = row_scores(TASK, np.eye(2)[right.astype(int)], np.ones(800, dtype=int), rows)
                kept = json.loads(json.dumps(scores.as_dict()))  # as it is kept in the run's folder
                config = {"config": {"group_column": "customer"}} if GROUP in rows.column_names else {}
                every.append(run(method, seed, right, row_scores=kept, **config))
        return answer(every)

    grouped, single = found(rows_of(texts(800), names)), found(rows_of(texts(800)))
    assert single.use == "ad-drop" and grouped.verdict.why == "undecided"
    assert (
        "(800 rows of 40 groups)" in grouped.scored_on
        and "groups of evaluation rows, by 'customer'," in grouped.holds_for
    )
    assert "groups" not in " ".join(single.lines())
