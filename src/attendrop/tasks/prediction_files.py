"""Predictions as a file: GLUE's submission format, or a table beside one's own file."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.glue import GLUE
from attendrop.tasks.heads.base import Array
from attendrop.tasks.table_files import Table

STDOUT = "-"
FORMATS = ("csv", "tsv", "jsonl")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def write_predictions(path: str | Path, task: Task, dataset: Dataset, outputs: Array) -> None:
    """Write one prediction for every row of `dataset`, in its order, with a `PredictionWriter`.

    dataset: only its column "index" is read. outputs: the model's, one row each, such as logits (rows, classes).
    """
    with PredictionWriter(path, task) as writer:
        writer.write(dataset["index"], outputs)


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
        if probabilities and not task.head.has_probabilities:
            raise AttendropError(
                f"The model predicts {task.head.predicts}: it has no probabilities of classes to write."
            )
        self._unfinished = self.path.with_name(f".{self.path.name}.partial")
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def __enter__(self) -> PredictionWriter:
        return self

    def write(self, index: Sequence[int], outputs: Array, table: Table | None = None) -> None:
        """Write a prediction for each row; `table`: these rows of the input, needed with `keep_columns`."""
        added = self._predictions(index, self.task.head.checked(outputs))
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

    def _predictions(self, index: Sequence[int], outputs: Array) -> list[dict[str, Any]]:
        head, source = self.task.head, GLUE.get(self.task.name)
        if source is not None:
            rows = [{"prediction": source.labels.write(label)} for label in head.decode(outputs)]
        else:
            rows = head.prediction_rows(outputs, probabilities=self.probabilities)
        return [{"index": i} | row for i, row in zip(index, rows, strict=True)]

    def _beside(self, table: Table, added: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the input with their predictions."""
        answer = self.task.head.answer_column
        renamed = {answer: f"predicted_{answer}"}
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
