"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from datasets import Dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error
from transformers import BatchEncoding, PreTrainedConfig

from attendrop.attribution.predictions import NUMBER
from attendrop.errors import AttendropError
from attendrop.tasks.heads.base import Array, Metric, Tokenizer
from attendrop.tasks.heads.classification import SequenceHead
from attendrop.tasks.heads.linear_models import LinearFit, fit_ridge_regression
from attendrop.tasks.table import Table
from attendrop.tasks.values import are_numbers, number_problem, written


def predicted_numbers(outputs: Array) -> Array:
    """Return the number of each row of outputs ``(rows,)`` or ``(rows, 1)``."""
    return outputs.reshape(-1)


def _correlation(correlate: Callable[[Array, Array], Any]) -> Metric:
    """Make a correlation that is 0 where undefined: for fewer than two rows, or if one side is constant."""

    def score(labels: Array, predictions: Array) -> float:
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return float(correlate(labels, predictions).statistic)

    return Metric.of(score, predicted_numbers, span=2.0)


def _of_numbers(score: Callable[[Array, Array], float]) -> Metric:
    return Metric.of(score, predicted_numbers, span=math.inf)


# Errors of numbers, by their usual names: lower is better, so they are reported, and models selected by ``neg_...``.
_ERRORS = {"mse": mean_squared_error, "rmse": root_mean_squared_error, "mae": mean_absolute_error}
_NEGATED = {error: f"neg_{function.__name__}" for error, function in _ERRORS.items()}
_METRICS = {
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
    "r2": _of_numbers(lambda labels, predictions: r2_score(labels, predictions) if len(labels) > 1 else 0.0),
    **{_NEGATED[error]: _of_numbers(lambda *rows, of=function: -of(*rows)) for error, function in _ERRORS.items()},
    **{error: replace(_of_numbers(function), selects=False) for error, function in _ERRORS.items()},
}


class Regression(SequenceHead):
    """Head that predicts a number. Labels and targets are floats, outputs ``(rows,)`` or ``(rows, 1)``."""

    kind = "regression"
    label_type = "number"
    output_kind = NUMBER
    problem_type = "regression"
    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", *_ERRORS)
    metric_aliases: ClassVar = _NEGATED | {f"neg_{error}": name for error, name in _NEGATED.items()}
    fitted_at = ("r2", 0.7)
    answer_column = "score"
    predicts = "a number"
    labels_are = "numbers to predict"
    output_names = ("score",)
    metrics = _METRICS

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Accept models configured for regression, or with a single output."""
        return config.problem_type == "regression" or len(config.id2label or {}) == 1

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        return cls()

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head; raises AttendropError if all training rows have the same number."""
        train = tables["train"]
        if len(found := set(map(written, train.column(column)))) == 1:
            raise AttendropError(f"{train.path} has only one number, {found.pop()!r}; training needs at least two.")
        return super().from_labels(tables, column, asked=asked)

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """Accept numbers of which one has a decimal fraction or an exponent."""
        return are_numbers(tables, column)

    def label_problem(self, value: Any) -> str | None:
        return number_problem(value)

    def read_labels(self, values: Sequence[Any]) -> list[float]:
        return [float(written(value)) for value in values]

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[float]:
        return [float(label) for label in labels]

    def fit_linear(
        self, features: Array, targets: Sequence[float], *, balanced: bool, groups: Sequence[Any] | None = None
    ) -> LinearFit:
        return fit_ridge_regression(features, targets, groups)

    def decode(self, outputs: Array) -> list[float]:
        return [float(number) for number in predicted_numbers(outputs)]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        return [{"score": number} for number in self.decode(outputs)]

    def constant_answer(self, train: Array, references: Array) -> tuple[float, Array]:
        mean = float(np.mean(train))
        return mean, np.full(len(references), mean)

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        labels = rows["label"][:]
        return {"numbers": {"min": min(labels), "mean": statistics.fmean(labels), "max": max(labels)}}

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return [
            ["numbers", *("{min:g} to {max:g}".format(**part["numbers"]) for part in parts)],
            ["  mean", *(f"{part['numbers']['mean']:.3g}" for part in parts)],
        ]
