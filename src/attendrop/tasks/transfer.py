"""Scores of a model on a task that it was not trained on: its classes read as those of the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.output_scorer import Array
from attendrop.tasks.metrics import compute_scores


def reading_of(task: Task, head: Head) -> list[int] | None:
    """Return the class of a task that each class of a model is read as; None if they are the task's own, in its order.

    Raises:
        AttendropError: The task says which classes can be read, and the model has others.
    """
    if head.label_names == task.label_names:
        return None
    if head.num_classes and head.fits(task.head) and set(head.label_names) == set(task.label_names):
        return [task.label_names.index(name) for name in head.label_names]
    if not task.readings:
        return None
    for reading in task.readings:
        if set(head.label_names) == set(reading):
            return [task.label_names.index(reading[name]) for name in head.label_names]
    known = "; or ".join(", ".join(names) for names in (task.label_names, *task.readings))
    own = ", ".join(head.label_names) or head.predicts
    raise AttendropError(f"{task.name} scores models with the classes {known}. This model's are: {own}.")


def read_as(outputs: Array, reading: Sequence[int] | None, classes: int) -> Array:
    """Convert logits of a model to those of a task: of classes that are one there, the largest.

    So the predicted class is the one that the model's prediction is read as, as McCoy et al. (2019) do.
    """
    if reading is None:
        return outputs
    places = np.asarray(reading)
    return np.stack([outputs[:, places == number].max(axis=1) for number in range(classes)], axis=1)


def group_scores(
    task: Task, outputs: Array, labels: Array, groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Score groups of rows.

    Args:
        task: The task.
        outputs: Outputs, one for each row.
        labels: References.
        groups: By column, its values.

    Returns:
        By column and value, the number of ``rows`` and the task's metric.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for column, values in groups.items():
        for value in dict.fromkeys(values):
            rows = np.asarray(values) == value
            score = compute_scores(task, outputs[rows], labels[rows])[task.metric]
            found.setdefault(column, {})[value] = {"rows": int(rows.sum()), task.metric: score}
    return found
