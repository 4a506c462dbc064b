"""Scores of models, also of those trained on other tasks, and of constant predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attendrop.errors import AttendropError, check_known
from attendrop.tasks.base import Task
from attendrop.tasks.types.base import Array, TaskType, row_array

# Names of metrics in the field, and those of scikit-learn's scorers. Some heads have further ones.
ALIASES = {
    **{f"{average}_f1": f"f1_{average}" for average in ("macro", "micro", "weighted")},
    **dict.fromkeys(("mcc", "matthews", "matthews_corrcoef"), "matthews_correlation"),
    "auc": "roc_auc",
    "map": "average_precision",
    "exact_match": "accuracy",
    "loss": "neg_log_loss",
    "chrf2": "chrf",
}


def with_metric(task: Task, name: str) -> Task:
    """Return the task with another metric for model selection; the previous one is reported beside it.

    The name is that of a scorer of scikit-learn ("f1_macro", "roc_auc", "neg_mean_squared_error"), with dashes or
    underscores, or an alias such as "macro-f1" and "mcc".

    Raises:
        AttendropError: The metric is unknown or does not fit the task.
    """
    wanted = name.strip().lower().replace("-", "_")
    wanted = task.type.metric_aliases.get(wanted, ALIASES.get(wanted, wanted))
    fitting = [metric for metric, score in task.type.metrics.items() if score.selects]
    problem = f"there is no metric {name!r} for {task.type.labels_are}"
    check_known(wanted, fitting, problem, f"there are {', '.join(fitting)}")
    others = tuple(metric for metric in (task.metric, *task.other_metrics) if metric != wanted)
    return replace(task, metric=wanted, other_metrics=others)


def compute_scores(task: Task, outputs: Array, labels: Array) -> dict[str, float]:
    """Compute all metrics of the task, ``task.metric`` first.

    Accuracy, F1 (of class 1; ``f1_macro``: mean over the classes that occur among the true or the predicted ones, as in
    scikit-learn; of several labels per row, over all labels), Matthews, Pearson and Spearman are fractions, not
    percentages. A score that is undefined, such as the correlation with a constant, is 0.0, not NaN.

    Outputs have one entry per row, such as logits ``(rows, classes)``; labels are those of :meth:`TaskType.references`.

    Raises:
        AttendropError: There are no rows, or an output is NaN or infinite because the model diverged.
    """
    outputs, labels = task.type.checked(outputs), np.asarray(labels)
    if len(labels) == 0:
        raise AttendropError("there are no rows to score.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A single label was found")  # of a few rows
        scores = {name: task.type.metrics[name].score(labels, outputs) for name in (task.metric, *task.other_metrics)}
    return {name: 0.0 if math.isnan(score) else score for name, score in scores.items()}


def constant_scores(task: Task, train_labels: Array, labels: Array) -> tuple[str | float, dict[str, float]] | None:
    """Score the constant prediction, the most common class of training or the mean of its numbers; return both.

    Both labels are those of :meth:`TaskType.references`. Returns None if the kind of task has no constant prediction.
    """
    found = task.type.constant_answer(train_labels, labels)
    return None if found is None else (found[0], compute_scores(task, found[1], labels))


def label_mapping(task: Task, task_type: TaskType) -> list[int] | None:
    """Return the class of a task that each class of a model is read as; None if they are the task's own, in its order.

    Raises:
        AttendropError: The task says which classes can be read, and the model has others.
    """
    if task_type.label_names == task.label_names:
        return None
    own = set(task_type.label_names)
    if own and own == set(task.label_names) and task_type.fits(task.type):
        return [task.label_names.index(name) for name in task_type.label_names]
    if not task.readings:
        return None
    for reading in task.readings:
        if set(task_type.label_names) == set(reading):
            return [task.label_names.index(reading[name]) for name in task_type.label_names]
    known = "; or ".join(", ".join(names) for names in (task.label_names, *task.readings))
    classes = ", ".join(task_type.label_names) or task_type.predicts
    raise AttendropError(f"{task.name} scores models with the classes {known}. This model's are: {classes}.")


def read_as(outputs: Array, reading: Sequence[int] | None, classes: int) -> Array:
    """Convert logits of a model, of rows or of the words of each, to those of a task: the largest of joined classes.

    So the predicted class is the one that the model's prediction is read as, as McCoy et al. (2019) do.
    """
    if reading is None:
        return outputs
    if outputs.dtype == object:  # of words
        return row_array([read_as(row, reading, classes) for row in outputs])
    places = np.asarray(reading)
    return np.stack([outputs[:, places == number].max(axis=1) for number in range(classes)], axis=1)


def group_scores(
    task: Task, outputs: Array, labels: Array, groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Score groups of rows, given by columns and their values: the number of ``rows``, and the task's metric."""

    def of_rows(rows: Array) -> dict[str, float]:
        score = compute_scores(task, outputs[rows], labels[rows])[task.metric]
        return {"rows": int(rows.sum()), task.metric: score}

    return {
        column: {value: of_rows(np.asarray(values) == value) for value in dict.fromkeys(values)}
        for column, values in groups.items()
    }
