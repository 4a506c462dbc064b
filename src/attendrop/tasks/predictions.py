"""Predictions as a file: GLUE's submission format, or a table beside one's own file."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.glue import GLUE
from attendrop.tasks.metrics import Array, finite
from attendrop.tasks.table_files import Table

STDOUT = "-"
FORMATS = ("csv", "tsv", "jsonl")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def write_predictions(path: str | Path, task: Task, dataset: Dataset, logits: Array) -> None:
    """Write one prediction for every row of `dataset`, in its order, with a `PredictionWriter`.

    dataset: only its column "index" is read. logits: (rows, classes); for regression (rows,) or (rows, 1).
    """
    with PredictionWriter(path, task) as writer:
        writer.write(dataset["index"], logits)


class PredictionWriter:
    """Writes predictions to a .tsv, .csv or .jsonl file, as many at a time as there are.

    GLUE tasks get the columns of a submission, `index` and `prediction`: the label as the official files write it, for
    STS-B the number cut to [0, 5] with three decimals. Other tasks get `index` (the row's number in the file, from 0)
    with `label` and `probability`, the softmax of the predicted class, or for regression with `score`.

    It is a context manager. The file is put in place when the block ends, and not at all after an error.

    path: "-" is standard output. format: "csv", "tsv" or "jsonl"; by default the path's extension says it.
    probabilities: write `probability_CLASS` of every class besides.
    keep_columns: write the columns of the input, in place of `index`; what is predicted is then called
        `predicted_label` or `predicted_score`, so that labels in the input keep their name.

    Raises AttendropError for another format, for NaN, for probabilities or columns of the input in a GLUE submission,
    for probabilities in regression, and for columns of the input that are called as those that are added.
    """

    def __init__(
        self,
        path: str | Path,
        task: Task,
        *,
        format: str | None = None,
        probabilities: bool = False,
        keep_columns: bool = False,
    ) -> None:
        self.path, self.task = Path(path), task
        self.probabilities, self.keep_columns = probabilities, keep_columns
        self.format = output_format(path, format)
        if task.name in GLUE and (probabilities or keep_columns):
            raise AttendropError(
                f"A submission of {task.name} has the columns index and prediction; to add others, name one's own file "
                "instead of the task."
            )
        if probabilities and not task.label_names:
            raise AttendropError("The model predicts a number: it has no probabilities of classes to write.")
        self._unfinished = self.path.with_name(f".{self.path.name}.partial")
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def __enter__(self) -> PredictionWriter:
        return self

    def write(self, index: Sequence[int], logits: Array, table: Table | None = None) -> None:
        """Write a prediction for each row; `table`: these rows of the input, needed with `keep_columns`."""
        added = self._predictions(index, finite(logits))
        rows = added if table is None or not self.keep_columns else self._beside(table, added)
        if self._file is None:
            self._begin(list(rows[0]))
        assert self._file is not None
        if self.format == "jsonl":
            self._file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            return
        unknown = [name for row in rows for name in row if name not in self._columns]
        if unknown:
            raise AttendropError(
                f"The column {unknown[0]!r} is not in the first rows of the input, and a .{self.format} file cannot "
                "take it any more; write .jsonl."
            )
        self._delimited().writerows(rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if self._file is sys.stdout:
            self._file.flush()
            return
        try:
            self._file.close()
            if error is None:
                self._unfinished.replace(self.path)
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _begin(self, columns: list[str]) -> None:
        self._columns = columns
        if str(self.path) == STDOUT:
            self._file = sys.stdout
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._unfinished.open("w", encoding="utf-8", newline="")
        if self.format in _DELIMITERS:
            self._delimited().writeheader()

    def _delimited(self) -> csv.DictWriter[str]:
        assert self._file is not None
        return csv.DictWriter(self._file, self._columns, delimiter=_DELIMITERS[self.format], lineterminator="\n")

    def _predictions(self, index: Sequence[int], logits: Array) -> list[dict[str, Any]]:
        if self.task.name in GLUE:
            return _glue_rows(self.task, index, logits)
        if not self.task.label_names:
            return [{"index": i, "score": float(score)} for i, score in zip(index, logits.reshape(-1), strict=True)]
        return _class_rows(self.task, index, logits, every=self.probabilities)

    def _beside(self, table: Table, added: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the input with their predictions."""
        renamed = {"label": "predicted_label", "score": "predicted_score"}
        added = [{renamed.get(name, name): value for name, value in row.items() if name != "index"} for row in added]
        taken = [name for name in added[0] if name in table.columns]
        if taken:
            raise AttendropError(f"The input has a column {taken[0]!r}, which the predictions need; rename it.")
        kept = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        return [row | prediction for row, prediction in zip(kept, added, strict=True)]


def output_format(path: str | Path, format: str | None = None) -> str:
    """In what format predictions go to `path`: `format`, else what its extension says; "csv" for standard output.

    Raises AttendropError for a format that is not known.
    """
    found = format or ("csv" if str(path) == STDOUT else Path(path).suffix.removeprefix("."))
    if found not in FORMATS:
        raise AttendropError(f"Predictions are written as .tsv, .csv or .jsonl, not as {Path(path).name!r}.")
    return found


def _glue_rows(task: Task, index: Sequence[int], logits: Array) -> list[dict[str, Any]]:
    if task.label_names:
        answers = [GLUE[task.name].file_labels[label] for label in logits.argmax(axis=1)]
    else:
        answers = [f"{score:.3f}" for score in logits.reshape(-1).clip(0, 5)]
    return [{"index": i, "prediction": answer} for i, answer in zip(index, answers, strict=True)]


def _class_rows(task: Task, index: Sequence[int], logits: Array, *, every: bool) -> list[dict[str, Any]]:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = exp / exp.sum(axis=1, keepdims=True)
    rows = []
    for i, row in zip(index, probs, strict=True):
        best = int(row.argmax())
        of_all = {f"probability_{name}": round(float(p), 6) for name, p in zip(task.label_names, row, strict=True)}
        rows.append(
            {"index": i, "label": task.label_names[best], "probability": round(float(row[best]), 6)}
            | (of_all if every else {})
        )
    return rows
