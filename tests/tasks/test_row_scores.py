"""Scores divided among evaluation rows: their mean is the score, their variance that of the score."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from datasets import Dataset

from attendrop.tasks.base import Task
from attendrop.tasks.metrics import RowScores, compute_scores, row_scores
from attendrop.tasks.types.base import row_array
from attendrop.tasks.types.token_classification import TokenClassification
from attendrop.tasks.types.translation import WrittenText

CLASSES, TAGS = ("no", "yes"), ("O", "B-PER", "I-PER")


def task(metric: str, kind: str = "classification", names: Sequence[str] = CLASSES) -> Task:
    return Task("files", kind, ("text",), tuple(names), metric, "")


def rows_of(texts: Sequence[str]) -> Dataset:
    return Dataset.from_dict({"text": list(texts), "label": [0] * len(texts), "index": list(range(len(texts)))})


def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and labels that agree in three rows of four."""
    generator = np.random.default_rng(0)
    labels = (generator.random(count) < 0.4).astype(int)
    answers = labels ^ (generator.random(count) < 0.25)
    return np.eye(2)[answers], labels


def correlated(count: int, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    outputs, noise = np.random.default_rng(key).normal(size=(2, count))
    return outputs, outputs + noise


CORRELATION = task("pearson", "regression", ())


def correlation_scores(count: int) -> RowScores:
    found = row_scores(CORRELATION, *correlated(count), rows_of([str(row) for row in range(count)]))
    return found


@pytest.mark.parametrize("count", [99, 1000])
def test_the_mean_of_the_values_is_the_score(count: int) -> None:
    expected = compute_scores(CORRELATION, *correlated(count))["pearson"]
    assert np.mean(correlation_scores(count).values) == pytest.approx(expected, abs=0.3 / count)
    (outputs, labels), texts = drawn(count), [f"row {row}" for row in range(count)]
    assert pairs(texts, texts).values.tolist() == (outputs.argmax(1) == labels).tolist()


def test_the_variance_of_the_values_is_that_of_the_score_on_other_rows() -> None:
    scores = [compute_scores(CORRELATION, *correlated(400, key))["pearson"] for key in range(100)]
    found = correlation_scores(400).values
    assert np.std(found, ddof=1) / np.sqrt(len(found)) == pytest.approx(np.std(scores), rel=0.25)


def pairs(first: Sequence[str], second: Sequence[str]) -> RowScores:
    """Divide accuracy among pairs of texts."""
    outputs, labels = drawn(len(first))
    columns = {"text": list(first), "text_pair": list(second), "label": labels.tolist()}
    found = row_scores(task("accuracy"), outputs, labels, Dataset.from_dict(columns))
    assert found is not None and found.rows == len(first)
    return found


def test_neighbours_in_running_text_are_one_block() -> None:
    """Errors that come in runs make the score less certain than independent ones."""
    outputs = row_array([WrittenText("", -float(row // 20 % 2), 1) for row in range(200)])
    found = row_scores(task("neg_log_loss", "translation", ()), outputs, row_array([""] * 200), rows_of([""] * 200))
    assert found is not None and found.values == pytest.approx(-np.repeat(np.arange(10) % 2, 10))


@pytest.mark.parametrize("metric", ["entity_f1", "accuracy"])
def test_counts_of_rows_are_made_once_and_not_again_without_each_block(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So of 20,000 sentences they take seconds."""
    tags, own = np.random.default_rng(0).integers(3, size=(2, 60, 4)), task(metric, "token-classification", TAGS)
    references, outputs = row_array(list(tags[0])), row_array(list(np.eye(3)[tags[1]]))
    rows = Dataset.from_dict({"tokens": [[f"word {row}"] * 4 for row in range(60)]})
    score = own.type.metrics[metric].score
    without = [score(np.delete(references, row), np.delete(outputs, row)) for row in range(60)]
    decoded: list[int] = []
    decode = TokenClassification.decode
    monkeypatch.setattr(
        TokenClassification, "decode", lambda task_type, of: decoded.append(len(of)) or decode(task_type, of)
    )
    found = row_scores(own, outputs, references, rows)
    assert found.values == pytest.approx(60 * score(references, outputs) - 59 * np.array(without))
    assert len(decoded) == 3  # the score, twice, and the counts


def test_values_are_read_as_they_were_written() -> None:
    texts = [f"row {row}" for row in range(77)]
    shared = [f"a long paragraph {row * row % 13}" for row in range(77)]
    for found in (correlation_scores(77), pairs(texts, texts), pairs(texts, shared)):
        again = RowScores.from_dict(json.loads(json.dumps(found.as_dict())))
        assert (again.values == found.values).all() and (again.by_unit == found.by_unit).all()
        assert (again.rows, again.data) == (found.rows, found.data)


def test_only_scores_on_the_same_rows_are_of_the_same_data() -> None:
    texts = [str(row) for row in range(9)]
    one, same, other = (
        row_scores(task("accuracy"), *drawn(9), rows_of([*texts[:8], last])) for last in ("8", "8", "another")
    )
    assert one.data == same.data != other.data


@pytest.mark.filterwarnings("ignore")  # of scikit-learn
def test_a_score_that_is_undefined_without_a_row_is_that_of_all_rows() -> None:
    """Such as the only row of a class: left out as a score of 0, it would look like the row on which all depends."""
    labels = np.array([0, 0, 0, 0, 0, 1])
    found = row_scores(task("cohen_kappa"), np.eye(2)[labels], labels, rows_of([*"abcdef"]))
    assert found.values.tolist() == [1.0] * 6
