"""The interval of a difference of scores: against textbook formulas, and with too few rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from attendrop.pruning.selection import Array, Predictions, paired_difference
from attendrop.runs.prune import measure_speed


def mean(_: Array, values: Array) -> float:
    return float(values.mean())


def accuracy(labels: Array, values: Array) -> float:
    return float((labels == values.argmax(1)).mean())


def numbers(rows: int, *sizes: float) -> list[Array]:
    """Normal numbers with these standard deviations."""
    generator = np.random.default_rng(0)
    return [size * generator.normal(size=rows) for size in sizes]


@pytest.mark.parametrize("rows", [1, 2, 3, 30])
def test_of_means_it_is_the_interval_of_a_paired_t_test(rows: int) -> None:
    shared, noise = numbers(rows, 5.0, 1.0)
    found = paired_difference(Predictions(shared, shared, mean), Predictions(shared, shared + noise, mean))
    assert found.value == pytest.approx(noise.mean())
    if rows < 3:  # tell nothing
        assert found.as_dict() == {"value": found.value, "low": None, "high": None}
        return
    expected = stats.ttest_1samp(noise, 0).confidence_interval(0.95)
    assert found.high - found.low == pytest.approx(expected.high - expected.low, rel=0.15)
    assert found.high + found.low == pytest.approx(2 * found.value)


@pytest.mark.parametrize(("rows", "lost", "won"), [(6, 1, 0), (77, 4, 2)])
def test_of_classes_it_is_that_of_bonett_and_price(rows: int, lost: int, won: int) -> None:
    labels = np.arange(rows) % 3
    before, after = labels.copy(), labels.copy()
    after[:lost] = (labels[:lost] + 1) % 3
    before[lost : lost + won] = (labels[lost : lost + won] + 1) % 3
    first, second = (Predictions(labels, np.eye(3)[classes], accuracy, 3) for classes in (before, after))
    found = paired_difference(first, second)
    p, q = (lost + 1) / (rows + 2), (won + 1) / (rows + 2)
    error = math.sqrt((p + q - (p - q) ** 2) / (rows + 2)) * math.sqrt(rows / (rows - 1))
    assert found.value == pytest.approx((won - lost) / rows)
    assert found.high - found.low == pytest.approx(2 * stats.t.ppf(0.975, rows - 1) * error, rel=0.15)


@pytest.mark.parametrize("rows", [5, 100])
def test_models_that_agree_on_few_rows_may_differ_on_others_whatever_they_predict(rows: int) -> None:
    """Tags, several labels and answers are no classes of rows; the interval is about as wide as of classes."""
    labels = np.arange(rows) % 2
    of_classes = paired_difference(*[Predictions(labels, np.eye(2)[labels], accuracy, 2, span=1.0)] * 2)
    share = Predictions(labels, labels, lambda labels, found: float(np.mean(labels == found)), span=1.0)
    found = paired_difference(share, share)
    assert found.value == 0 and found.high == -found.low == pytest.approx(of_classes.high, rel=0.3)
    assert found.high <= 1  # which no difference exceeds


def test_of_correlations_it_is_paired() -> None:
    def correlation(labels: Array, values: Array) -> float:
        return float(np.corrcoef(labels, values)[0, 1])

    labels, error, change = numbers(400, 1.0, 1.0, 0.1)
    other = error[np.random.default_rng(1).permutation(400)]
    before = Predictions(labels, labels + error, correlation)
    paired = paired_difference(before, Predictions(labels, labels + error + change, correlation))
    apart = paired_difference(before, Predictions(labels, labels + other, correlation))
    assert paired.high - paired.low < 0.03 < apart.high - apart.low


@pytest.mark.parametrize("classes", [2, 0])
def test_of_groups_of_alike_rows_it_is_that_of_one_row_of_each(classes: int) -> None:
    """Ten rows of a customer tell no more than one: the interval covered no difference in 42 % of draws, not in 95."""
    labels, found = np.zeros(40, dtype=int), np.random.default_rng(0).integers(2, size=(2, 40))
    copies = np.repeat(np.arange(40), 10)

    def difference(rows: Array, groups: Array | None) -> Any:
        values = [np.eye(2)[each[rows]] if classes else 1.0 - each[rows] for each in found]
        metric = accuracy if classes else lambda _, values: float(values.mean())
        return paired_difference(*(Predictions(labels[rows], each, metric, classes, 1.0, groups) for each in values))

    one, ten, apart = (difference(*how) for how in ((np.arange(40), None), (copies, copies), (copies, None)))
    assert ten == one and apart.high - apart.low < 0.4 * (one.high - one.low)
    assert difference(copies, np.arange(400)) == apart


# Speed, by a clock that only the models move --------------------------------------------------------------------------


def measured(
    monkeypatch: pytest.MonkeyPatch, batches: int, *seconds: Callable[[int], float]
) -> tuple[dict[str, float], list[int], float]:
    """What is measured of two models that take so long in each of their calls, whose calls these were, and the time."""
    times, calls = [0.0], []
    monkeypatch.setattr("attendrop.runs.prune.time.perf_counter", lambda: times[-1])

    def model(number: int) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            times.append(times[-1] + seconds[number](calls.count(number)))
            calls.append(number)
            return SimpleNamespace(logits=torch.zeros(1))

        return run

    return measure_speed(model(0), model(1), [{}] * batches), calls, times[-1]


@pytest.mark.parametrize("seconds", [0.0005, 0.03, 3.0])
def test_at_least_two_seconds_in_turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    found, calls, now = measured(monkeypatch, 3, lambda _: seconds, lambda _: seconds / 2)
    assert [found[name] for name in ("median", "low", "high")] == pytest.approx([2, 2, 2])
    assert now > 2.0
    assert calls == [0, 1] * (len(calls) // 2)


def test_median_and_range_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    after = [9.0, 1.0, 0.5, 2.0, 4.0, 1.0]  # the first is not timed
    found, *_ = measured(monkeypatch, 1, lambda _: 2.0, after.__getitem__)
    assert found == {"median": 2.0, "low": 0.5, "high": 4.0, "rounds": 5}
