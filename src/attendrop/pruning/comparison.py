"""Difference of two models' scores on the same rows, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
CONFIDENCE = 0.95
RESAMPLES = 200  # enough for a standard error: Efron and Tibshirani (1993), section 6.4


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for some rows, with their metric.

    Without rows, ``metric`` returns the score, which is then taken as exact.
    """

    labels: Array  # (rows,)
    values: Array  # logits of classes, (rows, classes); or other values that the metric takes, such as losses
    metric: Callable[[Array, Array], float]  # from labels and values to a score; greater is better
    classes: int = 0  # 0 if the values are not logits of classes
    span: float = math.inf  # largest possible difference of two scores, such as 1 for an accuracy

    @property
    def score(self) -> float:
        """Score on all rows."""
        return float(self.metric(self.labels, self.values))


@dataclass(frozen=True)
class Difference:
    """Difference of two scores, with a confidence interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float | None]:
        """Return a dictionary for JSON, in which an infinite end is None."""
        ends = {name: end if math.isfinite(end) else None for name, end in (("low", self.low), ("high", self.high))}
        return {"value": self.value, **ends}


def paired_difference(before: Predictions, after: Predictions, confidence: float = CONFIDENCE) -> Difference:
    """Subtract the score of ``before`` from that of ``after``, with an interval from a paired bootstrap of the rows.

    Both models are scored on the same resamples, so any metric can be used. The interval is the difference plus and
    minus Student's t times the bootstrap's standard error (Efron and Tibshirani, 1993, chapter 12). The error is
    multiplied by ``sqrt(n / (n - 1))``, because the bootstrap underestimates it by that factor. The interval is clipped
    to the possible differences.

    For classes, two pseudo-rows are added to the sample, one that only ``before`` predicts correctly and one that only
    ``after`` does (Bonett and Price, 2012). Otherwise the interval has no width if the models agree on all rows. For
    other scores that are fractions (``span`` of 1), such as the F1 of entities, the variance that two such rows alone
    have is added to the bootstrap's.

    With one or two rows, the interval is infinite. Without rows, the scores are taken as exact.
    """
    value, rows = after.score - before.score, len(before.labels)
    if not rows:
        return Difference(value, value, value)
    if rows < 3:
        return Difference(value, -math.inf, math.inf)
    labels, first, second, weights = before.labels, before.values, after.values, np.full(rows, 1.0)
    if before.classes:
        right, wrong = (np.eye(before.classes)[(labels + shift) % before.classes] for shift in (0, 1))
        first, second = np.concatenate([first, right, wrong]), np.concatenate([second, wrong, right])
        weights = np.concatenate([weights, np.full(2 * rows, 1 / rows)])  # two rows in all, with the labels of all rows
        labels = np.tile(labels, 3)
    generator = np.random.default_rng(0)
    size, probabilities = round(weights.sum()), weights / weights.sum()
    found = []
    for _ in range(RESAMPLES):
        sampled = generator.choice(len(labels), size, p=probabilities)
        found.append(before.metric(labels[sampled], second[sampled]) - before.metric(labels[sampled], first[sampled]))
    error = float(np.std(found)) * math.sqrt(rows / (rows - 1))
    if before.span == 1 and not before.classes:
        error = math.hypot(error, math.sqrt(2) / (rows + 2))
    half = student_t((1 + confidence) / 2, rows - 1) * error
    return Difference(value, max(value - half, -before.span), min(value + half, before.span))


def student_t(probability: float, freedom: int) -> float:
    """Approximate a quantile of Student's t by the normal one (Wallace, 1959), from above for two or more degrees."""
    z = NormalDist().inv_cdf(probability)
    scale = (freedom - 5 / 6) / (freedom - 2 / 3 + 1 / (10 * freedom)) ** 2
    return math.sqrt(freedom * math.expm1(z * z * scale))
