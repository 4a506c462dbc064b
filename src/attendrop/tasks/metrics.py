"""Scores of models, also of those trained on other tasks, and divided among rows, so that they hold for new ones."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow
import pyarrow.parquet
from datasets import Dataset

from attendrop.errors import AttendropError, check_known
from attendrop.tasks.base import OTHERS, Task, with_others
from attendrop.tasks.class_names import same_text
from attendrop.tasks.splits import GROUP, given_groups, groups_of, merged, numbered
from attendrop.tasks.types.base import Array, TaskType, row_array

# File of a scored run beside metrics.json.
PREDICTIONS = "dev_predictions.parquet"
# Number of blocks of a jackknife: a standard error from n blocks is itself uncertain by 1 / sqrt(2n), here 7 %.
BLOCKS = 100
# Names of metrics in the field, beside scikit-learn's. Some kinds of tasks have further ones.
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

    F1 is of class 1; ``f1_macro`` the mean over the classes that occur among the true or the predicted ones, as in
    scikit-learn; of several labels per row, over all labels. Scores are fractions, not percentages. One that is
    undefined, such as the correlation with a constant, is 0.0, not NaN.

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
    for reading in task.readings:
        if own == set(reading):
            return [task.label_names.index(reading[name]) for name in task_type.label_names]
    if not task.readings:
        return None
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


def group_scores(task: Task, outputs: Array, labels: Array, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Score groups of rows, by column and value: the number of ``rows``, and the task's metric."""
    found: dict[str, Any] = {}
    for column, values in groups.items():
        for value in dict.fromkeys(values):
            rows = np.asarray(values) == value
            score = compute_scores(task, outputs[rows], labels[rows])[task.metric]
            found.setdefault(column, {})[value] = {"rows": int(rows.sum()), task.metric: score}
    return found


# Scores by row -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowScores:
    """A score, divided among its evaluation rows."""

    values: Array  # for each row, whether it is right; or for each block of rows, the jackknife's pseudo-value
    rows: int  # their number
    data: str  # hash of the rows; only scores on the same rows can be paired
    numbers: Array | None = (
        None  # group of each row, from 0, where rows are right or wrong, and several belong together
    )
    groups: int = 0  # number of groups of rows, or of rows where none belong together; 0 if not known, as in older runs

    @property
    def by_unit(self) -> Array:
        """The units of inference: whether each row is right, or the pseudo-values of groups or blocks of rows."""
        if self.numbers is None:
            return self.values.astype(np.float64)
        right, sizes = np.bincount(self.numbers, self.values), np.bincount(self.numbers)
        without = (right.sum() - right) / (self.rows - sizes)
        return np.asarray(len(sizes) * self.values.mean() - (len(sizes) - 1) * without)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: of rows that are right or wrong, bits in base64, and the rows that belong together."""
        found: dict[str, Any] = {"rows": self.rows, "data": self.data}
        found |= {"groups": self.groups} if 0 < self.groups < self.rows else {}
        if self.values.dtype != bool:
            return found | {"blocks": self.values.tolist()}
        found |= {"right": base64.b64encode(np.packbits(self.values).tobytes()).decode()}
        if self.numbers is None:
            return found
        members: list[list[int]] = [[] for _ in range(self.groups)]
        for row, number in enumerate(self.numbers.tolist()):
            members[number].append(row)
        return found | {"together": [group for group in members if len(group) > 1]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` returned."""
        rows, data, groups = found["rows"], found["data"], found.get("groups", 0)
        if "right" not in found:
            return cls(np.asarray(found["blocks"], dtype=np.float64), rows, data, groups=groups)
        bits = np.unpackbits(np.frombuffer(base64.b64decode(found["right"]), np.uint8), count=rows).astype(bool)
        if "together" not in found:
            return cls(bits, rows, data, groups=groups)
        numbers = np.arange(rows)
        for group in found["together"]:
            numbers[group] = group[0]
        return cls(bits, rows, data, np.unique(numbers, return_inverse=True)[1], groups)


def row_scores(task: Task, outputs: Array, references: Array, rows: Dataset) -> RowScores | None:
    """Divide the score of the task's metric among the evaluation rows.

    Where it is the fraction of rows that are right, these are the values, and groups of rows that belong together
    (:func:`units_of`) the units. Otherwise the rows are divided into up to 100 blocks of whole groups; of running text
    (``TaskType.in_sequence``) without given groups, into consecutive ones. The value of a group or block is its
    pseudo-value ``B * score - (B - 1) * score without the block`` (Tukey, 1958; Efron and Tibshirani, 1993, chapter
    11): their mean is the score up to the jackknife's correction of bias, and their variance, divided by B, that of the
    score.

    Outputs and references have one entry for each of the rows, which are as they were loaded. Returns None if there are
    fewer than two independent blocks.
    """
    task_type, metric = task.type, task.type.metrics[task.metric]
    if OTHERS in rows.column_names:  # the same rows with and without other columns in their text are paired
        rows = with_others(rows, joined=False).remove_columns(OTHERS)
    outputs, count = task_type.checked(outputs), len(references)
    units = independent_units(rows, task, count)
    neighbours = units is None
    blocks = np.arange(count) * min(count, BLOCKS) // max(count, 1) if units is None else units
    number = int(blocks.max(initial=-1)) + 1
    if number < 2:
        return None
    data = data_digest(rows)
    if metric.right is not None and (number == count or not neighbours):
        numbers = None if number == count else blocks
        return RowScores(metric.right(references, outputs), count, data, numbers, number)
    groups = 0 if neighbours else number
    if number > BLOCKS:
        blocks, number = np.random.default_rng(0).permutation(number)[blocks] % BLOCKS, BLOCKS
    score = metric.score(references, outputs)
    score = 0.0 if np.isnan(score) else score  # as in `compute_scores`
    if metric.of_sums is None:
        others = (blocks != block for block in range(number))
        without = np.array([metric.score(references[kept], outputs[kept]) for kept in others])
    else:  # what is counted in a row does not depend on the others
        counts_of, score_of = metric.of_sums
        counts = counts_of(references, outputs)
        sums = np.zeros((number, counts.shape[1]), dtype=counts.dtype)
        np.add.at(sums, blocks, counts)
        without = np.array([score_of(each) for each in sums.sum(axis=0) - sums])
    without[~np.isfinite(without)] = score  # not defined without a block, such as that of the only row of a class
    return RowScores(number * score - (number - 1) * without, count, data, groups=groups)


def independent_units(rows: Dataset, task: Task, count: int) -> Array | None:
    """Number the group of each of ``count`` scored rows, from 0; None if they are of running text without groups."""
    if count != len(rows) or (task.type.in_sequence and GROUP not in rows.column_names):
        return None  # a long text may have become several rows
    return np.array(numbered(given_groups(rows)) if task.type.in_sequence else units_of(rows, task))


def units_of(rows: Dataset, task: Task) -> list[int]:
    """Number the groups of rows that belong together, from 0.

    They do by :func:`groups_of`, or if they share their longest text, such as the questions about one paragraph.
    """
    rows = with_others(rows, joined=False)
    columns = [column for column in zip(*task.type.texts(rows), strict=False) if len(set(column)) >= 5]  # no prompts
    longest = max(columns, key=lambda column: sum(map(len, column))) if columns else range(len(rows))
    return merged(longest, groups_of(rows, task))


def texts_alone(rows: Dataset, task: Task) -> list[tuple[str, ...]]:
    """Return the texts of rows, as they are looked for in others, without what other columns say in front."""
    return [tuple(map(same_text, text)) for text in task.type.texts(with_others(rows, joined=False))]


def new_rows(rows: Dataset, train: Dataset, task: Task) -> list[int]:
    """Return the numbers of the rows whose text no training row has."""
    known = set(texts_alone(train, task))
    return [row for row, text in enumerate(texts_alone(rows, task)) if text not in known]


def write_predictions(path: Path, predictions: Sequence[Any]) -> None:
    """Write the predicted labels of the evaluation rows, in their order, as Parquet: some bytes for each row."""
    pyarrow.parquet.write_table(pyarrow.table({"prediction": list(predictions)}), path, compression="zstd")


def data_digest(*parts: Dataset | None) -> str:
    """Hash the content of rows."""
    digest = hashlib.sha256()
    for rows in parts:
        digest.update(json.dumps([] if rows is None else rows.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()
