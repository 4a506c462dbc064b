"""Groups of like rows that are held out as a whole, and how alike rows are."""

from __future__ import annotations

import pytest
from datasets import Dataset
from sklearn.neighbors import NearestNeighbors

from attendrop import AttendropError
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.heads.classification import Classification, Regression
from attendrop.tasks.likeness import class_likeness, hold_out_like, hold_out_values, likeness, nearest_texts

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


def test_of_large_groups_a_sample_is_compared_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    search = NearestNeighbors.kneighbors
    monkeypatch.setattr(
        NearestNeighbors, "kneighbors", lambda own, rows: compared.append(len(rows)) or search(own, rows)
    )
    monkeypatch.setattr("attendrop.tasks.likeness._SAMPLE", 5)
    _, held = hold_out_like(rows_of(), TASK, 0.25, seed=0)
    assert set(compared) == {5}
    assert {text.rpartition(" ")[0] for text in held["text"]} == {
        "someone stole plastic near",
        "what does credit cost in",
    }


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
    with pytest.raises(AttendropError, match="no words"):
        hold_out_like(
            Dataset.from_dict({"text": ["?" * (1 + n) for n in range(10)], "label": [0, 1] * 5}), TASK, 0.25, seed=0
        )


def test_the_last_values_of_a_column_are_held_out() -> None:
    rows = rows_of().select(range(10))
    months = ["2026-01"] * 4 + ["2026-03"] * 2 + ["2026-02"] * 4
    kept, held = hold_out_values(rows, "month", months, 0.25)
    assert held["index"][:] == [4, 5] and len(kept) == 8
    assert hold_out_values(rows, "month", months, 0.6)[1]["index"][:] == [4, 5, 6, 7, 8, 9]
    assert hold_out_values(rows, "month", ["b"] * 9 + ["a"], 0.1)[0]["index"][:] == [9]
    assert hold_out_values(rows, "month", ["9"] * 8 + ["10"] * 2, 0.25)[1]["index"][:] == [8, 9]
    days = ["2024-9-30"] * 4 + ["2024-10-02"] * 2 + [""] * 4  # neither as text nor is a blank one the last
    assert hold_out_values(rows, "day", days, 0.25)[1]["index"][:] == [4, 5]
    with pytest.raises(AttendropError, match=r"such as '28/09/2024', whose order is not clear"):
        hold_out_values(rows, "day", ["28/09/2024", "30/11/2023", ""] * 3 + [""], 0.25)
    weeks = ["week 9"] * 4 + ["week 11"] * 2 + ["N/A"] * 2 + ["nan"] * 2  # by number, and words for nothing are none
    assert hold_out_values(rows, "week", weeks, 0.25)[1]["index"][:] == [4, 5]
    for unclear in (["1/2024", "12/2023"], ["Dec 2023", "Apr 2024"], ["May", "June"]):
        with pytest.raises(AttendropError, match=f"such as '{unclear[0]}', whose order is not clear; write them as"):
            hold_out_values(rows, "month", unclear * 5, 0.25)
    for mixed, other in ((["1", "2", "soon"], "soon"), (["2024-01-02", "2024-01-03", "Monday"], "Monday")):
        with pytest.raises(AttendropError, match=f"and '{other}', so that their order is not clear"):
            hold_out_values(rows, "day", [*mixed * 3, "1" if other == "soon" else mixed[0]], 0.25)
    with pytest.raises(AttendropError, match="single value, 'x'"):
        hold_out_values(rows, "month", ["x"] * 10, 0.25)
    with pytest.raises(AttendropError, match=r"such as '01\.02\.2026', whose order is not clear"):
        hold_out_values(rows, "day", ["01.02.2026", "3.1.2026 10:00"] * 5, 0.25)


def test_held_out_values_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        hold_out_values(rows_of().select(range(10)), "month", ["1"] * 8 + ["2"] * 2, 0.25)
        hold_out_values(rows_of().select(range(10)), "month", ["1"] * 2 + ["2"] * 8, 0.25)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", "Held out by column month: '2' (2) of 10 rows."),
        ("WARNING", "Held out by column month: '2' (8) of 10 rows; less than half are left to train on."),
    ]


def test_likeness_within_classes_and_between() -> None:
    alike = class_likeness(rows_of({name: of_class[:1] for name, of_class in PHRASES.items()}), TASK)
    varied = class_likeness(rows_of(), TASK)
    assert alike.within > varied.within > varied.between
    assert 1 > varied.nearest > varied.within and alike.nearest >= alike.within
    assert class_likeness(rows_of().select([0, 4]), TASK) is None


def test_likeness_of_many_rows_is_that_of_all_classes_also_where_they_are_sorted() -> None:
    found = likeness(["my card"] * 2100 + ["a loan"] * 400, ["card"] * 2100 + ["loan"] * 400)
    assert found is not None and (found.within, found.between) == (pytest.approx(1.0), 0.0)


def test_texts_without_spaces_are_compared_by_their_letters() -> None:
    """A clause is no word: texts of Chinese and Japanese would have nothing in common but whole clauses."""
    texts = ["我想取消我的订单", "请帮我取消订单谢谢", "怎么查看我的账户余额", "查看账户余额的方法"]
    found = likeness(texts, [0, 0, 1, 1])
    assert found is not None and found.within > 0.2 > found.between
    assert [row for row, _ in nearest_texts(["取消这个订单", "账户余额在哪里"], texts)] in (
        [0, 2],
        [0, 3],
        [1, 2],
        [1, 3],
    )
