"""Scores by evaluation row, so that models can be compared on new rows."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow
import pyarrow.parquet
from datasets import Dataset

from attendrop.tasks.base import Task
from attendrop.tasks.heads.base import Array, Metric

# File of a scored run beside metrics.json.
PREDICTIONS = "dev_predictions.parquet"
# Number of blocks of a jackknife: a standard error from n blocks is itself uncertain by 1 / sqrt(2n), here 7 %.
BLOCKS = 100
# A column with fewer different texts than this, such as one prompt for all rows, does not say which belong together.
_LEAST_GROUPS = 5


@dataclass(frozen=True)
class RowScores:
    """A score, divided among its evaluation rows."""

    values: Array  # one for each row, whether it is right; or for each block of rows, the jackknife's pseudo-value
    rows: int
    data: str  # hash of the rows; only scores on the same rows can be paired

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: of rows that are right or wrong, bits in base64."""
        found = {"rows": self.rows, "data": self.data}
        if self.values.dtype == bool:
            return found | {"right": base64.b64encode(np.packbits(self.values).tobytes()).decode()}
        return found | {"blocks": self.values.tolist()}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` returned."""
        if "right" not in found:
            return cls(np.asarray(found["blocks"], dtype=np.float64), found["rows"], found["data"])
        bits = np.unpackbits(np.frombuffer(base64.b64decode(found["right"]), np.uint8), count=found["rows"])
        return cls(bits.astype(bool), found["rows"], found["data"])


def row_scores(task: Task, outputs: Array, references: Array, rows: Dataset) -> RowScores | None:
    """Divide the score of the task's metric among the evaluation rows.

    Where it is the fraction of rows that are right, and the rows are independent, these are the values. Otherwise the
    rows are divided into up to 100 blocks of rows that belong together, and a block's value is its pseudo-value
    ``B * score - (B - 1) * score without the block`` (Tukey, 1958; Efron and Tibshirani, 1993, chapter 11): their mean
    is the score up to the jackknife's correction of bias, and their variance, divided by B, that of the score.

    Rows belong together if they share their longest text, such as the questions about one paragraph. Those of running
    text, whose neighbours are alike (``Head.in_sequence``), are divided into consecutive blocks.

    Outputs and references have one entry for each of the rows, which are as they were loaded. Returns None if there are
    fewer than two independent blocks.
    """
    head, metric = task.head, task.head.metrics[task.metric]
    outputs, count = head.checked(outputs), len(references)
    if head.in_sequence or count != len(rows):  # a long text may have become several rows
        blocks = np.arange(count) * min(count, BLOCKS) // max(count, 1)
    else:
        blocks = _belonging_together(head.texts(rows))
    number = int(blocks.max(initial=-1)) + 1
    if number < 2:
        return None
    data = data_digest(rows)
    if metric.right is not None and number == count:
        return RowScores(metric.right(references, outputs), count, data)
    if number > BLOCKS:
        blocks, number = np.random.default_rng(0).permutation(number)[blocks] % BLOCKS, BLOCKS
    score = metric.score(references, outputs)
    score = 0.0 if np.isnan(score) else score  # as in `compute_scores`
    without = np.array(list(_scores_without(metric, outputs, references, blocks, number)))
    without[~np.isfinite(without)] = score  # not defined without a block, such as that of the only row of a class
    return RowScores(number * score - (number - 1) * without, count, data)


def _scores_without(metric: Metric, outputs: Array, references: Array, blocks: Array, number: int) -> Iterator[float]:
    """Yield the score without each block of rows; where it is one of sums, rows are counted once."""
    if metric.of_sums is None:
        for block in range(number):
            yield metric.score(references[blocks != block], outputs[blocks != block])
        return
    counts_of, score_of = metric.of_sums
    counts = counts_of(references, outputs)
    sums = np.zeros((number, counts.shape[1]), dtype=counts.dtype)
    np.add.at(sums, blocks, counts)
    yield from map(score_of, sums.sum(axis=0) - sums)


def write_predictions(path: Path, predictions: Sequence[Any]) -> None:
    """Write the predicted labels of the evaluation rows, in their order, as Parquet: some bytes for each row."""
    pyarrow.parquet.write_table(pyarrow.table({"prediction": list(predictions)}), path, compression="zstd")


def data_digest(*parts: Dataset | None) -> str:
    """Hash the content of rows."""
    digest = hashlib.sha256()
    for rows in parts:
        digest.update(json.dumps([] if rows is None else rows.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()


def _belonging_together(texts: Sequence[Sequence[str]]) -> Array:
    """Number the groups of rows that share their longest text, from 0; a column of few different texts makes none."""
    columns = [column for column in zip(*texts, strict=False) if len(set(column)) >= _LEAST_GROUPS]
    if not columns:
        return np.arange(len(texts))
    longest = max(columns, key=lambda column: sum(map(len, column)))
    numbers = {text: number for number, text in enumerate(dict.fromkeys(longest))}
    return np.array([numbers[text] for text in longest])
