"""Files of predictions: GLUE submissions, and tables for custom files."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from attendrop.errors import AttendropError
from attendrop.support.files import finite, new_file
from attendrop.tasks.base import Task
from attendrop.tasks.heads.base import Array
from attendrop.tasks.registry import GLUE, submitted
from attendrop.tasks.table import BadRows, Table
from attendrop.wording import counted

STDOUT = "-"
FORMATS = ("csv", "tsv", "jsonl", "conll", "txt")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
# Column of the reason why a row has no prediction, where invalid rows are skipped.
SKIPPED = "skipped"
# What a spreadsheet computes when it opens a file: a cell that begins so, and is not just a number.
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20](?![\d.,]+%?$)")
logger = logging.getLogger(__name__)


class PredictionWriter:
    """Context manager that writes predictions to a .tsv, .csv, .jsonl, .conll or .txt file, in batches.

    For GLUE tasks, the columns are those of a submission, ``index`` and ``prediction``, as in the official files; for
    STS-B, the number clamped to [0, 5], with three decimals. For other tasks, they are ``index`` (the row's number in
    the file, from 0) and those of the head, such as ``label`` and ``probability`` (softmax of the predicted class).
    Lists, such as tags of words, are written as in JSON, where null stands for NaN; a .conll file has a line for each
    word: the words, and the prediction last. A .txt file has a line for each row of the input, with the prediction
    alone. The file is created when the block ends without an error.

    There is an answer to each row of the input, in their order. One that was left out has an empty one, in a .conll
    file a sentence of the word "_"; where invalid rows are skipped, the column ``skipped`` of tables says why.

    Args:
        path: The file; "-" is standard output.
        task: The task.
        format: One of ``FORMATS``; by default, the extension of ``path``.
        probabilities: Also write ``probability_CLASS`` for every class; of choices, a list of ``probabilities``.
        keep_columns: Write the columns of the input instead of ``index``. The prediction is then called
            ``predicted_label`` or ``predicted_score``, so that labels in the input keep their name.
        bad: What was left out of the input so far, whenever a prediction is written.
        escape_formulas: Write an apostrophe before cells of .csv and .tsv files that spreadsheets would compute. Such
            cells are otherwise written as they are, with a warning.

    Raises:
        AttendropError: The format is unknown, or cannot hold what is requested; an output is NaN; or an input column
            has the name of an added one.
    """

    def __init__(
        self,
        path: str | Path,
        task: Task,
        *,
        format: str | None = None,
        probabilities: bool = False,
        keep_columns: bool = False,
        bad: BadRows | None = None,
        escape_formulas: bool = False,
    ) -> None:
        self.path, self.task = Path(path), task
        self.probabilities, self.keep_columns = probabilities, keep_columns
        self.format = output_format(path, format)
        if task.name in GLUE and (probabilities or keep_columns):
            raise AttendropError(
                f"A submission of {task.name} has the columns index and prediction; to add others, give your own file "
                "instead of the task."
            )
        if probabilities:
            task.head.check_probabilities()
        if self.format == "txt" and (probabilities or keep_columns):
            raise AttendropError("A .txt file has the predictions alone; write .jsonl, .tsv or .csv for more.")
        if escape_formulas and self.format not in _DELIMITERS:
            raise AttendropError(f"A .{self.format} file has no cells of spreadsheets; omit --escape-formulas.")
        self._apostrophe, self._formulas = "'" * escape_formulas, 0
        self._answer = "prediction" if task.name in GLUE else task.head.answer_column
        self._file: TextIO | None = None
        self._columns: list[str] = []
        self._delimited_columns: list[str] = []  # of a table of fields, which a row may have too few or too many of
        self._bad = bad or BadRows()
        self._gives_reasons = self._bad.skip and self.format not in ("txt", "conll")

    def __enter__(self) -> PredictionWriter:
        return self

    def write(self, columns: Mapping[str, Any], outputs: Array, table: Table | None = None) -> None:
        """Write a prediction for each row, with "index" among its columns; ``keep_columns`` requires the ``table``."""
        head = self.task.head
        added = self._predictions(head.checked(outputs))
        if table is not None and self.keep_columns:
            rows = self._beside(table.columns, table.rows, added)
        elif self.format == "conll":
            inputs = head.inputs_in(columns)
            rows = self._beside(inputs, zip(*(columns[name][:] for name in inputs), strict=True), added)
        else:
            rows = [{"index": number} | row for number, row in zip(columns["index"][:], added, strict=True)]
        if self._gives_reasons and SKIPPED in rows[0]:
            raise AttendropError(
                f"The input has a column {SKIPPED!r}, a name that the predictions use for skipped rows; rename it."
            )
        rows = [row | {SKIPPED: None} for row in rows] if self._gives_reasons else rows
        self._delimited_columns = table.columns if table is not None and table.delimiter else []
        numbers: list[int] = columns["index"][:]
        if empty := [(number, self._empty(number, rows[0])) for number in self._left_out(numbers[-1])]:
            in_order = sorted([*empty, *zip(numbers, rows, strict=True)], key=itemgetter(0))
            rows = [row for _, row in in_order]
        self._write(rows)

    def write_left_out(self) -> None:
        """Write the empty answers to what was left out of the input after the last row that has an answer."""
        self._write([self._empty(number, self._columns) for number in self._left_out(None)])

    def _left_out(self, before: int | None) -> list[int]:
        return sorted(number for number in self._bad.left_out if before is None or number < before)

    def _empty(self, number: int, columns: Iterable[str]) -> dict[str, Any]:
        """Make the empty answer to a row that was left out, with what could be read of the columns that are kept."""
        left_out, empty = self._bad.left_out.pop(number), dict.fromkeys(columns)
        if self.format == "conll":
            return empty
        if not self.keep_columns:
            empty[next(iter(empty))] = number
        elif isinstance(left_out.row, dict):
            empty |= {name: value for name, value in left_out.row.items() if name in empty}
        elif isinstance(left_out.row, list):  # of too few or too many fields
            empty |= dict(zip(self._delimited_columns, left_out.row, strict=False))
        return empty | ({SKIPPED: left_out.reason} if self._gives_reasons else {})

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        file = self._file or self._begin(list(rows[0]))
        if self.format == "jsonl":
            file.writelines(json.dumps(finite(row), ensure_ascii=False, default=str) + "\n" for row in rows)
            return
        if self.format == "conll":
            file.writelines(map(_sentence, rows))
            return
        if self.format == "txt":
            answers = ("" if row[self._answer] is None else str(_cell(row[self._answer])) for row in rows)
            file.writelines(" ".join(answer.split()) + "\n" for answer in answers)
            return
        unknown = [name for row in rows for name in row if name not in self._columns]
        if unknown:
            raise AttendropError(
                f"The column {unknown[0]!r} is missing in the first rows of the input, and the header of a "
                f".{self.format} file is already written; write .jsonl."
            )
        cells = ({name: self._for_spreadsheets(_cell(value)) for name, value in row.items()} for row in rows)
        self._delimited(file).writerows(cells)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if self._formulas and not self._apostrophe and error is None:
            logger.warning(
                "%s has %s beginning with =, +, - or @, which spreadsheets compute when they open it; "
                "--escape-formulas writes an apostrophe there.",
                *(self.path, counted(self._formulas, "cell")),
            )
        if self._file is sys.stdout:
            self._file.flush()
            return
        try:
            self._file.close()
            if error is None:
                os.replace(self._file.name, self.path)
        finally:
            Path(self._file.name).unlink(missing_ok=True)

    def _begin(self, columns: list[str]) -> TextIO:
        self._columns = columns
        if str(self.path) == STDOUT:
            file = sys.stdout
            if isinstance(file, io.TextIOWrapper):
                file.reconfigure(encoding="utf-8", newline="")
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = new_file(self.path, "x", encoding="utf-8", newline="")
        self._file = file
        if self.format in _DELIMITERS:
            self._delimited(file).writerow({name: self._for_spreadsheets(name) for name in columns})
        return file

    def _delimited(self, file: TextIO) -> csv.DictWriter[str]:
        # The writer quotes cells with characters of its line ends; so a lone carriage return in a cell is quoted, too.
        return csv.DictWriter(
            _LineFeeds(file), self._columns, delimiter=_DELIMITERS[self.format], lineterminator="\r\n"
        )

    def _for_spreadsheets(self, cell: Any) -> Any:
        """Count a cell that spreadsheets would compute, and escape it if that is asked for."""
        if not isinstance(cell, str) or _FORMULA.match(cell) is None:
            return cell
        self._formulas += 1
        return self._apostrophe + cell

    def _predictions(self, outputs: Array) -> list[dict[str, Any]]:
        head, source = self.task.head, GLUE.get(self.task.name)
        if source is not None:
            return [{"prediction": submitted(source, label)} for label in head.decode(outputs)]
        return head.prediction_rows(outputs, probabilities=self.probabilities)

    def _beside(
        self, names: Sequence[str], kept: Iterable[Sequence[Any]], added: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Join rows of the input, values by column, with their predictions."""
        answer = self.task.head.answer_column
        renamed = {answer: f"predicted_{answer}"}
        added = [{renamed.get(name, name): value for name, value in row.items()} for row in added]
        taken = [name for name in added[0] if name in names]
        if taken:
            raise AttendropError(f"The input has a column {taken[0]!r}, a name that the predictions use; rename it.")
        return [dict(zip(names, row, strict=True)) | prediction for row, prediction in zip(kept, added, strict=True)]


class _LineFeeds:
    """Writes the rows of a csv writer, which end in a carriage return and a line feed, with the line feed alone."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> Any:
    return json.dumps(finite(value), ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _sentence(row: Mapping[str, Any]) -> str:
    """Write a row of a column file; nothing is "_"."""
    values = [["_"] if value is None else value for value in row.values()]
    if not all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        raise AttendropError(
            f"A .conll file has an entry for each word, and {', '.join(row)} do not; write .jsonl, .tsv or .csv."
        )
    lines = ("\t".join(map(_word, entries)) for entries in zip(*values, strict=True))
    return "\n".join(lines) + "\n\n"


def _word(entry: Any) -> str:
    """Write a word of a column file, in which tabs and line breaks would be columns and rows."""
    return "_" if entry is None else " ".join(re.split(r"[\t\r\n]", str(entry)))


def output_format(path: str | Path, format: str | None = None) -> str:
    """Return the format: by default the extension, and "csv" for "-"; raise AttendropError for an unknown one."""
    found = format or ("csv" if str(path) == STDOUT else Path(path).suffix.removeprefix(".").lower())
    if not found:
        raise AttendropError(f"the output {str(path)!r} has no extension; name it .{', .'.join(FORMATS)}.")
    if found not in FORMATS:
        raise AttendropError(f"{found!r} is not a format of predictions; write .{', .'.join(FORMATS)}.")
    return found
