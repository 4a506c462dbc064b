"""Tags of entities, and their scores."""

from __future__ import annotations

import random

import pytest
from seqeval.metrics import f1_score, precision_score, recall_score

from attendrop.tasks.heads.token_classification import entity_scores, to_iob2


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-A", "B-A B-A I-A"),
        ("I-A I-B", "B-A B-B"),
        ("B-A E-A S-B O", "B-A E-A S-B O"),
    ],
)
def test_iob1_becomes_iob2_which_stays(iob1: str, iob2: str) -> None:
    assert to_iob2(iob1.split()) == iob2.split()
    assert to_iob2(iob2.split()) == iob2.split()


def test_entity_scores_are_those_of_seqeval() -> None:
    draw = random.Random(0)
    tags = ["O", "O", "B-A", "I-A", "B-B", "I-B", "E-A", "S-B"]
    gold, predicted = ([[draw.choice(tags) for _ in range(1 + row % 7)] for row in range(200)] for _ in range(2))
    expected = [score(gold, predicted) for score in (precision_score, recall_score, f1_score)]
    assert entity_scores(gold, predicted) == pytest.approx(expected)
    assert entity_scores([["O"]], [["B-A"]]) == (0.0, 0.0, 0.0)
