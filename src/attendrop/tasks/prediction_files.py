"""Files of predictions: GLUE submissions, and tables for custom files."""

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
    """Write one prediction for every row of ``dataset``, in its order, with a :class:`PredictionWriter`.

    Args:
        path: The file.
        task: The task.
        dataset: Only its column "index" is read.
        outputs: Outputs of the model, one row per example, such as logits ``(rows, classes)``.
    """
    with PredictionWriter(path, task) as writer:
        writer.write(dataset["index"], outputs)


class PredictionWriter:
    """Context manager that writes predictions to a .tsv, .csv or .jsonl file, in batches.

    For GLUE tasks, the columns are those of a submission, ``index`` and ``prediction``: the label in the format of the
    official files; for STS-B, the number clamped to [0, 5], with three decimals. For other tasks, they are ``index``
    (the row's number in the file, from 0) with ``label`` and ``probability``, the softmax of the predicted class, or
    with ``score`` for regression. The file is created when the block ends without an error.

    Args:
        path: The file; "-" is standard output.
        task: The task.
        format: "csv", "tsv" or "jsonl"; by default, the extension of ``path``.
        probabilities: Also write ``probability_CLASS`` for every class.
        keep_columns: Write the columns of the input instead of ``index``. The prediction is then called
            ``predicted_label`` or ``predicted_score``, so that labels in the input keep their name.

    Raises:
        AttendropError: The format is unknown; an output is NaN; probabilities or input columns are requested for a GLUE
            submission, or probabilities for regression; or an input column has the name of an added one.
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
                f"A submission of {task.name} has the columns index and prediction; to add others, give your own file "
                "instead of the task."
            )
        if probabilities and not task.head.has_probabilities:
            raise AttendropError(
                f"The model predicts {task.head.predicts}: it has no probabilities of classes; leave out the option."
            )
        self._unfinished = self.path.with_name(f".{self.path.name}.partial")
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def __enter__(self) -> PredictionWriter:
        return self

    def write(self, index: Sequence[int], outputs: Array, table: Table | None = None) -> None:
        """Write a prediction for each row.

        Args:
            index: Ids of the rows.
            outputs: Outputs of the model, one row each.
            table: The same rows of the input, required with ``keep_columns``.
        """
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
                f"The column {unknown[0]!r} is missing in the first rows of the input, and the header of a "
                f".{self.format} file is already written; write .jsonl."
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
        """Join rows of the input with their predictions."""
        answer = self.task.head.answer_column
        renamed = {answer: f"predicted_{answer}"}
        added = [{renamed.get(name, name): value for name, value in row.items() if name != "index"} for row in added]
        taken = [name for name in added[0] if name in table.columns]
        if taken:
            raise AttendropError(f"The input has a column {taken[0]!r}, a name that the predictions use; rename it.")
        kept = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
        return [row | prediction for row, prediction in zip(kept, added, strict=True)]


def output_format(path: str | Path, format: str | None = None) -> str:
    """Return the format of a file of predictions.

    Args:
        path: The file; "-" is standard output.
        format: "csv", "tsv" or "jsonl"; by default, the extension of ``path``, and "csv" for standard output.

    Raises:
        AttendropError: The format is unknown.
    """
    found = format or ("csv" if str(path) == STDOUT else Path(path).suffix.removeprefix("."))
    if found not in FORMATS:
        raise AttendropError(f"{found!r} is not a format of predictions; write .tsv, .csv or .jsonl.")
    return found
