"""Scores of a task, of a model or of a constant answer."""

from dataclasses import replace

import numpy as np

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.heads.base import Array


def with_metric(task: Task, name: str) -> Task:
    """The task with another metric that decides; the one it had is reported beside it.

    name: as scikit-learn calls its scorers ("f1_macro", "balanced_accuracy", "roc_auc", "neg_mean_squared_error"), with
        dashes or underscores; "macro-f1" and "mcc" are understood, too.

    Raises AttendropError for a metric that is not known or does not fit the task.
    """
    wanted = name.strip().lower().replace("-", "_")
    wanted = task.head.metric_aliases.get(wanted, wanted)
    fitting = [metric for metric, score in task.head.metrics.items() if score.selects]
    if wanted not in fitting:
        hint = did_you_mean(wanted, fitting) or f"; there are {', '.join(fitting)}."
        raise AttendropError(f"there is no metric {name!r} for {task.head.labels_are}{hint}")
    others = tuple(metric for metric in (task.metric, *task.other_metrics) if metric != wanted)
    return replace(task, metric=wanted, other_metrics=others)


def compute_scores(task: Task, outputs: Array, labels: Array) -> dict[str, float]:
    """All metrics of the task, `task.metric` first.

    outputs: the model's, one row each, such as logits (rows, classes). labels: as the model is given them.

    Accuracy, F1 (of class 1; `f1_macro`: mean over the classes), Matthews, Pearson and Spearman are fractions, not per
    cent. A correlation that is undefined, because one side is constant, is 0.0 and not NaN.
    Raises AttendropError for no rows at all and for outputs that are NaN or infinite: a diverged model has no score.
    """
    outputs, labels = task.head.checked(outputs), np.asarray(labels)
    if len(labels) == 0:
        raise AttendropError("there are no rows to score.")
    return {name: task.head.metrics[name].score(labels, outputs) for name in (task.metric, *task.other_metrics)}


def constant_scores(task: Task, train_labels: Array, labels: Array) -> tuple[str | float, dict[str, float]] | None:
    """What a model comes to that has learnt nothing but the most common class in training, or the mean of the numbers.

    train_labels, labels: those trained on and those scored, as the model is given them. Returns that class or number,
    and its scores; None for a kind of task that has no such answer.
    """
    found = task.head.constant_answer(train_labels, labels)
    return None if found is None else (found[0], compute_scores(task, found[1], labels))
