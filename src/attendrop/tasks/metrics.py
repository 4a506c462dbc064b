"""The metrics of the tasks."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
    precision_score,
    r2_score,
    recall_score,
    roc_auc_score,
)

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, did_you_mean

Array = np.ndarray[Any, np.dtype[Any]]


def _correlation(correlate: Callable[[Array, Array], Any]) -> Callable[[Array, Array], float]:
    """A correlation that is 0 where it is undefined: fewer than two rows, or a side that is constant."""

    def score(labels: Array, predictions: Array) -> float:
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return float(correlate(labels, predictions).statistic)

    return score


def _ranking(score: Callable[..., float]) -> Callable[[Array, Array], float]:
    """A score of how well the second class is ranked above the first; 0.5 where there is one class only."""
    return lambda labels, margins: float(score(labels, margins)) if np.ptp(labels) else 0.5


def _averaged(score: Callable[..., float], average: str) -> Callable[[Array, Array], float]:
    return lambda labels, predictions: score(labels, predictions, average=average, zero_division=0.0)


# By the names of scikit-learn's scorers; more is always better. Of predicted classes:
_CLASS_METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "matthews_correlation": matthews_corrcoef,
    "cohen_kappa": cohen_kappa_score,
    "f1_macro": _averaged(f1_score, "macro"),
    "f1_micro": _averaged(f1_score, "micro"),
    "f1_weighted": _averaged(f1_score, "weighted"),
    "precision_macro": _averaged(precision_score, "macro"),
    "recall_macro": _averaged(recall_score, "macro"),
}
# Of the second of two classes, as predicted, and by how far its logit is above the other:
_BINARY_METRICS: dict[str, Callable[[Array, Array], float]] = {
    "f1": _averaged(f1_score, "binary"),
    "precision": _averaged(precision_score, "binary"),
    "recall": _averaged(recall_score, "binary"),
}
_RANKING_METRICS: dict[str, Callable[[Array, Array], float]] = {
    "roc_auc": _ranking(roc_auc_score),
    "average_precision": _ranking(average_precision_score),
}
_NUMBER_METRICS: dict[str, Callable[[Array, Array], float]] = {
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
    "r2": lambda labels, predictions: r2_score(labels, predictions) if len(labels) > 1 else 0.0,
    "neg_mean_squared_error": lambda labels, predictions: -mean_squared_error(labels, predictions),
    "neg_mean_absolute_error": lambda labels, predictions: -mean_absolute_error(labels, predictions),
}
_REPORTED_ONLY: dict[str, Callable[[Array, Array], float]] = {"mse": mean_squared_error}
# From -1 to 1, and without a lower end; all others go from 0 to 1.
_SIGNED = ("matthews_correlation", "cohen_kappa", "pearson", "spearman")
_UNBOUNDED = ("r2", "neg_mean_squared_error", "neg_mean_absolute_error", "mse")
_ALIASES = {
    "macro_f1": "f1_macro",
    "micro_f1": "f1_micro",
    "weighted_f1": "f1_weighted",
    "mcc": "matthews_correlation",
    "matthews": "matthews_correlation",
    "matthews_corrcoef": "matthews_correlation",
    "auc": "roc_auc",
}


def with_metric(task: Task, name: str) -> Task:
    """The task with another metric that decides; the one it had is reported beside it.

    name: as scikit-learn calls its scorers ("f1_macro", "balanced_accuracy", "roc_auc", "neg_mean_squared_error"), with
        dashes or underscores; "macro-f1" and "mcc" are understood, too.

    Raises AttendropError for a metric that is not known or does not fit the task.
    """
    wanted = name.strip().lower().replace("-", "_")
    wanted = _ALIASES.get(wanted, wanted)
    fitting = [*_CLASS_METRICS] if task.label_names else [*_NUMBER_METRICS]
    if len(task.label_names) == 2:
        fitting += [*_BINARY_METRICS, *_RANKING_METRICS]
    if wanted not in fitting:
        what = f"{len(task.label_names)} classes" if task.label_names else "numbers to predict"
        hint = did_you_mean(wanted, fitting) or f"; there are {', '.join(fitting)}."
        raise AttendropError(f"there is no metric {name!r} for {what}{hint}")
    others = tuple(metric for metric in (task.metric, *task.other_metrics) if metric != wanted)
    return replace(task, metric=wanted, other_metrics=others)


def compute_scores(task: Task, logits: Array, labels: Array) -> dict[str, float]:
    """All metrics of the task, `task.metric` first.

    logits: (rows, classes); for regression (rows,) or (rows, 1). labels: (rows,), class ids or numbers.

    Accuracy, F1 (of class 1; `f1_macro`: mean over the classes), Matthews, Pearson and Spearman are fractions, not per
    cent. A correlation that is undefined, because one side is constant, is 0.0 and not NaN.
    Raises AttendropError for no rows at all and for logits that are NaN or infinite: a diverged model has no score.
    """
    logits, labels = finite(logits), np.asarray(labels)
    if len(labels) == 0:
        raise AttendropError("there are no rows to score.")
    if not task.label_names:
        metrics, predictions = _NUMBER_METRICS | _REPORTED_ONLY, logits.reshape(-1)
    else:
        metrics, predictions = _CLASS_METRICS | _BINARY_METRICS, logits.argmax(axis=1)
    return {
        name: float(_RANKING_METRICS[name](labels, logits[:, 1] - logits[:, 0]))
        if name in _RANKING_METRICS
        else float(metrics[name](labels, predictions))
        for name in (task.metric, *task.other_metrics)
    }


def score_span(metric: str) -> float:
    """How far apart two scores of a metric can be."""
    if metric in _UNBOUNDED:
        return math.inf
    return 2.0 if metric in _SIGNED else 1.0


def predicted_counts(task: Task, logits: Array) -> dict[str, int]:
    """How many rows are predicted to be of each class, for classes with any; empty for regression."""
    if not task.label_names:
        return {}
    counts = np.bincount(logits.argmax(axis=1), minlength=len(task.label_names))
    return {name: int(count) for name, count in zip(task.label_names, counts, strict=True) if count}


def constant_scores(task: Task, train_labels: Array, labels: Array) -> tuple[str | float, dict[str, float]]:
    """What a model comes to that has learnt nothing but the most common class in training, or the mean of the numbers.

    train_labels, labels: (rows,), those trained on and those scored. Returns that class or number, and its scores.
    """
    if not task.label_names:
        mean = float(np.mean(train_labels))
        return mean, compute_scores(task, np.full(len(labels), mean), labels)
    most = int(np.bincount(train_labels).argmax())
    logits = np.tile(np.eye(len(task.label_names))[most], (len(labels), 1))
    return task.label_names[most], compute_scores(task, logits, labels)


def finite(logits: Array) -> Array:
    """The logits in float64; raises AttendropError if one is NaN or infinite."""
    logits = np.asarray(logits, dtype=np.float64)
    good = np.isfinite(logits.reshape(len(logits), -1)).all(axis=1) if len(logits) else np.ones(0, dtype=bool)
    if not good.all():
        raise AttendropError(
            f"the model's output is NaN or infinite for {int(np.sum(~good))} of {len(good)} rows: training diverged; "
            "lower the learning rate."
        )
    return logits
