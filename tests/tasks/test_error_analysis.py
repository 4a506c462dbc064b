"""What a model gets wrong: against scikit-learn, and on small cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import precision_recall_fscore_support

from attendrop.tasks.custom_files import files_task
from attendrop.tasks.error_analysis import best_temperature, calibration, error_analysis, remarks
from attendrop.tasks.types.classification import Classification, MultiLabel, Regression

NAMES = ("no", "perhaps", "yes")
TASK = files_task(["text"], Classification(NAMES))
generator = np.random.default_rng(0)
LOGITS = generator.normal(size=(200, 3)) * 3
LABELS = generator.integers(0, 3, 200)
ROWS = Dataset.from_dict(
    {"text": [f"row {number}" for number in range(200)], "label": LABELS.tolist(), "index": range(200)}
)


def test_classes_are_scored_as_by_scikit_learn() -> None:
    found = error_analysis(TASK, LOGITS, LABELS, ROWS)
    expected = np.array(precision_recall_fscore_support(LABELS, LOGITS.argmax(1)))
    names = ("precision", "recall", "f1", "rows")
    np.testing.assert_allclose([[row[name] for row in found["classes"]] for name in names], expected)
    assert [row["predicted"] for row in found["classes"]] == np.bincount(LOGITS.argmax(1)).tolist()
    assert sum(pair["rows"] for pair in found["confusions"]) == (LOGITS.argmax(1) != LABELS).sum()
    unknown = error_analysis(replace(TASK, unknown_names=("other",)), LOGITS, np.full(200, 3), ROWS)
    assert {pair["class"] for pair in unknown["confusions"]} == {"other"}


def test_errors_begin_with_the_surest_and_have_their_nearest_training_row() -> None:
    rows = Dataset.from_dict(
        {"text": ["the cat sleeps", "a dog barks", "Where  is it"], "label": [0, 0, 2], "index": [0, 2, 5]}
    )
    train = Dataset.from_dict({"text": ["dogs bark", "where is it", "a cat sleeps"], "label": [0, 1, 1]})
    logits, labels = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0], [0.0, 5.0, 0.0]]), np.array([0, 0, 2])
    found = error_analysis(TASK, logits, labels, rows, train)
    assert [(error["row"], error["class"], error["predicted"]) for error in found["errors"]] == [
        (5, "yes", "perhaps"),  # as counted in the file, of which some rows were skipped
        (0, "no", "perhaps"),
    ]
    assert found["errors"][0]["probability"] == pytest.approx(softmax(logits[2])[1])
    assert [error["nearest"]["text"] for error in found["errors"]] == ["where is it", "a cat sleeps"]
    assert found["errors"][0]["nearest"]["likeness"] == pytest.approx(1.0)
    # The same text with another label: one of the two is wrong; also if a row before it agrees.
    doubtful = "The text of 1 error is that of a training row with another label"
    assert remarks(found)[-1].startswith(doubtful)
    train = Dataset.from_dict({"text": ["where is it", "Where is it"], "label": [2, 1]})
    assert remarks(error_analysis(TASK, logits, labels, rows, train))[-1].startswith(doubtful)
    many = error_analysis(TASK, np.tile(logits[2], (21, 1)), np.full(21, 2), rows.select([2] * 21), train)
    assert "The text of 20 errors of the 20 most confident ones is that of" in remarks(many)[-1]


def test_the_calibration_error_is_the_distance_of_probability_and_accuracy() -> None:
    logits = np.log(np.array([[0.75, 0.25]] * 4 + [[0.95, 0.05]] * 2))
    found = calibration(logits, np.array([0, 0, 1, 1, 0, 0]))
    bins = [(part["rows"], round(part["probability"], 6), part["accuracy"]) for part in found["bins"]]
    assert bins == [(4, 0.75, 0.5), (2, 0.95, 1.0)]
    assert found["error"] == pytest.approx((4 * 0.25 + 2 * 0.05) / 6)


def test_the_temperature_of_overconfident_logits_is_found() -> None:
    logits = generator.normal(size=(20_000, 4)) * 2
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)  # drawn from the softmax
    assert best_temperature(logits * 3.0, labels) == pytest.approx(3.0, rel=0.05)
    logits, labels = np.array([[1.0, -1.0], [-1.0, 1.0]] * 9), np.array([0, 1] * 9)
    # Of 18 rows, all right, the probability is 19 / 20: a few do not make a model sure.
    assert softmax(logits / best_temperature(logits, labels), axis=1).max(axis=1) == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize(
    ("rows", "right", "temperature", "told"),
    [
        (1, 1, 1.0, ["Of 1 prediction with a probability above 0.9, 1 is right."]),
        (99, 0, 2.0, ["Of 99 predictions with a probability above 0.9, 0 are right."]),  # too few for a temperature
        (
            200, 193, 0.998,
            ["Of 200 predictions with a probability above 0.9, 96.5% are right.",
             "A temperature of 1.00 would fit these rows best: the model is as confident as it should be."],
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_confidence(rows: int, right: int, temperature: float, told: list[str]) -> None:
    bins = [{"rows": rows, "probability": 0.95, "accuracy": right / rows}]
    assert remarks({"calibration": {"error": 0.1, "bins": bins, "temperature": temperature}})[1:] == told


def test_labels_have_scores_of_their_own_and_numbers_have_none() -> None:
    several, rows = files_task(["text"], MultiLabel(("a", "b"))), ROWS.select([0, 1])
    found = error_analysis(several, np.array([[2.0, -1.0], [1.0, 1.0]]), np.array([[1, 0], [0, 1]]), rows)
    assert found == {
        "classes": [
            {"class": "a", "rows": 1, "predicted": 2, "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)},
            {"class": "b", "rows": 1, "predicted": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0},
        ]
    }
    assert error_analysis(files_task(["text"], Regression()), np.zeros((2, 1)), np.zeros(2), rows) is None
