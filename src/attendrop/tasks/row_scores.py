"""Scores by evaluation row, so that intervals cover examples as well as seeds."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow
import pyarrow.parquet
from datasets import Dataset

from attendrop.tasks.base import Task
from attendrop.tasks.groups import GROUP, given_groups, groups_of, merged, numbered
from attendrop.tasks.types.base import Array

# File of a scored run beside metrics.json.
PREDICTIONS = "dev_predictions.parquet"
# Number of blocks of a jackknife: a standard error from n blocks is itself uncertain by 1 / sqrt(2n), here 7 %.
BLOCKS = 100
# A column with fewer different texts than this, such as one prompt for all rows, does not say which belong together.
_LEAST_GROUPS = 5


@dataclass(frozen=True)
class RowScores:
    """A score, divided among its evaluation rows.

    Attributes:
        values: One for each row, whether it is right; or for each block of rows, the jackknife's pseudo-value.
        rows: Number of rows.
        data: Hash of the rows; only scores on the same rows can be paired.
        numbers: The group of each row, from 0, where rows are right or wrong and several belong together.
        groups: Number of groups of rows, or of rows where none belong together; 0 if not known, as in older runs.
    """

    values: Array
    rows: int
    data: str
    numbers: Array | None = None
    groups: int = 0

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
        found = {"rows": self.rows, "data": self.data} | (
            {"groups": self.groups} if 0 < self.groups < self.rows else {}
        )
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

    Where it is the fraction of rows that are right, these are the values, and groups of rows that belong together, if
    there are any, are the units. Otherwise the rows are divided into up to 100 blocks of whole groups. The value of a
    group or block is its pseudo-value ``B * score - (B - 1) * score without the block`` (Tukey, 1958; Efron and
    Tibshirani, 1993, chapter 11): their mean is the score up to the jackknife's correction of bias, and their variance,
    divided by B, that of the score.

    Rows belong together by :func:`attendrop.tasks.groups.groups_of`, or if they share their longest text, such as the
    questions about one paragraph. Those of running text, whose neighbours are alike (``Head.in_sequence``), are divided
    into consecutive blocks, unless their groups are given.

    Outputs and references have one entry for each of the rows, which are as they were loaded. Returns None if there are
    fewer than two independent blocks.
    """
    task_type, metric = task.type, task.type.metrics[task.metric]
    outputs, count = task_type.checked(outputs), len(references)
    neighbours = count != len(rows) or (task_type.in_sequence and GROUP not in rows.column_names)
    if neighbours:
        blocks = np.arange(count) * min(count, BLOCKS) // max(count, 1)  # a long text may have become several rows
    elif task_type.in_sequence:
        blocks = np.array(numbered(given_groups(rows)))
    else:
        columns = [column for column in zip(*task_type.texts(rows), strict=False) if len(set(column)) >= _LEAST_GROUPS]
        longest = max(columns, key=lambda column: sum(map(len, column))) if columns else range(count)
        blocks = np.array(merged(longest, groups_of(rows, task)))
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
        without = np.array(
            [metric.score(references[blocks != block], outputs[blocks != block]) for block in range(number)]
        )
    else:  # what is counted in a row does not depend on the others
        counts_of, score_of = metric.of_sums
        counts = counts_of(references, outputs)
        sums = np.zeros((number, counts.shape[1]), dtype=counts.dtype)
        np.add.at(sums, blocks, counts)
        without = np.array([score_of(each) for each in sums.sum(axis=0) - sums])
    without[~np.isfinite(without)] = score  # not defined without a block, such as that of the only row of a class
    return RowScores(number * score - (number - 1) * without, count, data, groups=groups)


def write_predictions(path: Path, predictions: Sequence[Any]) -> None:
    """Write the predicted labels of the evaluation rows, in their order, as Parquet: some bytes for each row."""
    pyarrow.parquet.write_table(pyarrow.table({"prediction": list(predictions)}), path, compression="zstd")


def data_digest(*parts: Dataset | None) -> str:
    """Hash the content of rows."""
    digest = hashlib.sha256()
    for rows in parts:
        digest.update(json.dumps([] if rows is None else rows.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()
