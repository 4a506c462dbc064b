"""Models of other tasks on HANS and PAWS-X, and groups of rows."""

from __future__ import annotations

import numpy as np
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.heads.registry import get_head
from attendrop.tasks.metrics import group_scores, read_as, reading_of
from attendrop.tasks.registry import get_task


@pytest.mark.parametrize(
    ("task", "trained_on", "reading"),
    [
        ("hans", "mnli", [0, 1, 1]),
        ("hans", "rte", [0, 1]),
        ("hans", "hans", None),
        ("pawsx", "mrpc", [0, 1]),
        ("wnli", "rte", [1, 0]),  # the same names in another order
        ("rte", "mrpc", None),  # a task without readings leaves the decision to the user, with a warning
    ],
)
def test_classes_of_a_model_are_read_by_their_names(task: str, trained_on: str, reading: list[int] | None) -> None:
    assert reading_of(get_task(task), get_task(trained_on).head) == reading


def test_names_count_whatever_their_order() -> None:
    head = get_head("classification", ("contradiction", "entailment", "neutral"))
    assert reading_of(get_task("hans"), head) == [1, 0, 1]
    assert reading_of(get_task("mnli"), head) == [2, 0, 1]


@pytest.mark.parametrize(("task", "trained_on"), [("pawsx", "mnli"), ("hans", "stsb")])
def test_models_with_other_classes_are_refused(task: str, trained_on: str) -> None:
    with pytest.raises(AttendropError, match=f"{task} scores models with the classes .* This model's are: "):
        reading_of(get_task(task), get_task(trained_on).head)


def test_the_prediction_of_a_model_is_what_is_read() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 3))
    read = read_as(logits, [0, 1, 1], 2)
    assert read.argmax(1).tolist() == [[0, 1, 1][best] for best in logits.argmax(1)]
    assert read_as(logits, None, 2) is logits


def test_groups_are_scored_for_themselves() -> None:
    outputs, labels = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]]), np.array([0, 1, 1, 1])
    found = group_scores(get_task("hans"), outputs, labels, {"heuristic": ["a", "a", "b", "a"]})
    assert found == {
        "heuristic": {"a": {"rows": 3, "accuracy": pytest.approx(2 / 3)}, "b": {"rows": 1, "accuracy": 1.0}}
    }
