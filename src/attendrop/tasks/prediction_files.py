"""Files of predictions: GLUE submissions, and tables for custom files."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from attendrop.errors import AttendropError
from attendrop.support.files import finite, new_file
from attendrop.tasks.base import Task
from attendrop.tasks.error_analysis import with_acceptance
from attendrop.tasks.registry import GLUE, submitted
from attendrop.tasks.table import STDIN, BadRows, Table
from attendrop.tasks.types.base import Array
from attendrop.wording import counted

FORMATS = ("csv", "tsv", "jsonl", "conll", "txt")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
# Column of the reason why a row has no prediction, where invalid rows are skipped.
SKIPPED = "skipped"
# What a spreadsheet computes when it opens a file: a cell that begins so, and is not just a number.
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20](?![\d.,]+%?$)")
logger = logging.getLogger(__name__)


class PredictionWriter:
    """Context manager that writes predictions to a .tsv, .csv, .jsonl, .conll or .txt file, in batches.

    For GLUE tasks, the columns are those of a submission, ``index`` and ``prediction``; for others ``index`` (the row's
    number in the file, from 0) and those of the kind of task, such as ``label`` and ``probability`` (softmax of the
    predicted class). Lists, such as tags of words, are written as in JSON; a .conll file has a line for each word: the
    words, and the prediction last; a .txt file a line for each row, the prediction. The file is created when the block
    ends without an error.

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
        accept: Which answers to accept, for the columns ``confidence`` and ``accepted``, see
            :func:`attendrop.tasks.error_analysis.choose_threshold`.
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
        accept: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.task = Path(path), task
        self.probabilities, self.keep_columns, self.accept = probabilities, keep_columns, accept
        self.format = output_format(path, format)
        if task.name in GLUE and (probabilities or keep_columns):
            said = (
                f"A submission of {task.name} has the columns index and prediction; give your own file to add others."
            )
            raise AttendropError(said)
        if probabilities:
            task.type.check_probabilities()
        if self.format == "txt" and (probabilities or keep_columns):
            raise AttendropError("A .txt file has the predictions alone; write .jsonl, .tsv or .csv for more.")
        if escape_formulas and self.format not in _DELIMITERS:
            raise AttendropError(f"A .{self.format} file has no cells of spreadsheets; omit --escape-formulas.")
        self._apostrophe, self._formulas = "'" * escape_formulas, 0
        self._file: IO[str] | None = None
        self._columns: list[str] = []
        self._fields: list[str] = []  # of a table of fields, which a row may have too few or too many of
        self._bad = bad or BadRows()
        self._gives_reasons = self._bad.skip and self.format not in ("txt", "conll")

    def __enter__(self) -> PredictionWriter:
        return self

    def write(self, columns: Mapping[str, Any], outputs: Array, table: Table | None = None) -> None:
        """Write a prediction for each row, with "index" among its columns; ``keep_columns`` requires the ``table``."""
        task_type, numbers = self.task.type, list(columns["index"][:])
        outputs = task_type.checked(outputs)
        added: list[dict[str, Any]]
        if (source := GLUE.get(self.task.name)) is not None:
            added = [{"prediction": submitted(source, label)} for label in task_type.decode(outputs)]
        else:
            added = task_type.prediction_rows(outputs, columns, probabilities=self.probabilities)
            added = with_acceptance(added, outputs, self.accept)
        added = [row | {SKIPPED: None} for row in added] if self._gives_reasons else added
        kept: Iterable[dict[str, Any]] = ({"index": number} for number in numbers)
        own = table.own_columns if table is not None and self.keep_columns else []
        if own or self.format == "conll":
            names = own or task_type.inputs_in(columns)
            values = [table.column(name) if table is not None and own else columns[name][:] for name in names]
            kept = (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
            renamed = {task_type.answer_column: f"predicted_{task_type.answer_column}"}
            added = [{renamed.get(name, name): value for name, value in row.items()} for row in added]
        found = []
        for row, new in zip(kept, added, strict=True):
            if taken := [name for name in new if name in row]:
                raise AttendropError(f"The input has a column {taken[0]!r}, as the predictions have; rename it.")
            found.append(row | new)
        self._fields = table.own_columns if table is not None and table.delimiter else []
        if empty := self._left_out(found[0], numbers[-1]):
            found = [row for _, row in sorted([*empty, *zip(numbers, found, strict=True)], key=itemgetter(0))]
        self._write(found)

    def _left_out(self, columns: Iterable[str], before: int | None) -> list[tuple[int, dict[str, Any]]]:
        """Make the empty answers to rows that were left out, with what could be read of the columns that are kept."""
        found = []
        for number in sorted(number for number in self._bad.left_out if before is None or number < before):
            left_out, row = self._bad.left_out.pop(number), dict[str, Any].fromkeys(columns)
            given = left_out.row
            given = given if isinstance(given, dict) else dict(zip(self._fields, given, strict=False))
            if self.format != "conll" and not self.keep_columns:
                row[next(iter(row))] = number
            elif self.format != "conll":
                row |= {name: value for name, value in given.items() if name in row}
            found.append((number, row | ({SKIPPED: left_out.reason} if self._gives_reasons else {})))
        return found

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        begins, self._columns = self._file is None, self._columns or list(rows[0])
        if self._file is None and str(self.path) == STDIN:
            self._file = sys.stdout
            if isinstance(self._file, io.TextIOWrapper):
                self._file.reconfigure(encoding="utf-8", newline="")
        elif self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = new_file(self.path, "x", encoding="utf-8", newline="")
        assert self._file is not None
        if self.format == "jsonl":
            self._file.writelines(f"{_cell(row)}\n" for row in rows)
        elif self.format == "conll":
            for row in rows:
                values = [["_"] if value is None else value for value in row.values()]
                if not all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
                    problem = f"A .conll file has an entry for each word, and {', '.join(row)} do not"
                    raise AttendropError(f"{problem}; write .jsonl, .tsv or .csv.")
                for word in zip(*values, strict=True):  # tabs and line breaks would divide words
                    fields = ("_" if entry is None else re.sub(r"[\t\r\n]", " ", str(entry)) for entry in word)
                    self._file.write("\t".join(fields) + "\n")
                self._file.write("\n")
        elif self.format == "txt":
            answer = "prediction" if self.task.name in GLUE else self.task.type.answer_column
            answers = ("" if row[answer] is None else str(_cell(row[answer])) for row in rows)
            self._file.writelines(" ".join(answer.split()) + "\n" for answer in answers)
        else:
            if unknown := [name for row in rows for name in row if name not in self._columns]:
                raise AttendropError(
                    f"The column {unknown[0]!r} is missing in the first rows of the input, and the header of a "
                    f".{self.format} file is already written; write .jsonl."
                )
            # The writer quotes cells with characters of its line ends, so that a lone carriage return is quoted, too;
            # rows end with the line feed alone.
            for row in ([dict(zip(self._columns, self._columns, strict=True))] if begins else []) + rows:
                cells = [_cell(row.get(name)) for name in self._columns]
                computed = [isinstance(cell, str) and _FORMULA.match(cell) is not None for cell in cells]
                self._formulas += sum(computed)
                escaped = zip(cells, computed, strict=True)
                line = io.StringIO(newline="")
                writer = csv.writer(line, delimiter=_DELIMITERS[self.format], lineterminator="\r\n")
                writer.writerow([f"{self._apostrophe}{cell}" if is_so else cell for cell, is_so in escaped])
                self._file.write(line.getvalue().removesuffix("\r\n") + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        try:
            if error is None:  # what was left out after the last row that has an answer
                self._write([row for _, row in self._left_out(self._columns, None)])
            if self._file is sys.stdout:
                self._file.flush()
            else:
                self._file.close()
                if error is None:
                    os.replace(self._file.name, self.path)
        finally:
            if self._file is not sys.stdout:
                Path(self._file.name).unlink(missing_ok=True)
        if self._formulas and not self._apostrophe and error is None:
            logger.warning(
                "%s has %s beginning with =, +, - or @, which spreadsheets compute when they open it; "
                "--escape-formulas writes an apostrophe there.",
                *("The output" if str(self.path) == STDIN else self.path, counted(self._formulas, "cell")),
            )


def output_format(path: str | Path, format: str | None = None) -> str:
    """Return the format: by default the extension, and "csv" for "-"; raise AttendropError for an unknown one."""
    found = format or ("csv" if str(path) == STDIN else Path(path).suffix.removeprefix(".").lower())
    if found not in FORMATS:
        what = f"{found!r} is not a format of predictions; write"
        what = what if found else f"the output {str(path)!r} has no extension; name it"
        raise AttendropError(f"{what} .{', .'.join(FORMATS)}.")
    return found


def _cell(value: Any) -> Any:
    """Write what a cell of a table cannot hold as JSON."""
    return json.dumps(finite(value), ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
