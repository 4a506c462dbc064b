"""The metrics of the tasks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_squared_error

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task

Array = np.ndarray[Any, np.dtype[Any]]


def _correlation(correlate: Callable[[Array, Array], Any]) -> Callable[[Array, Array], float]:
    """A correlation that is 0 where it is undefined: fewer than two rows, or a side that is constant."""

    def score(labels: Array, predictions: Array) -> float:
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return float(correlate(labels, predictions).statistic)

    return score


_METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": accuracy_score,
    "f1": lambda labels, predictions: f1_score(labels, predictions, zero_division=0.0),
    "f1_macro": lambda labels, predictions: f1_score(labels, predictions, average="macro", zero_division=0.0),
    "matthews_correlation": matthews_corrcoef,
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
    "mse": mean_squared_error,
}


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
    predictions = logits.argmax(axis=1) if task.label_names else logits.reshape(-1)
    return {name: float(_METRICS[name](labels, predictions)) for name in (task.metric, *task.other_metrics)}


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
