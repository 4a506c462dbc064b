"""Data to evaluate or predict with a finished model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendrop.argument_checks import check_choice, check_least
from attendrop.errors import AttendropError
from attendrop.runs.run_folder import run_options
from attendrop.tasks.dialect import STDIN
from attendrop.tasks.file_formats import default_columns
from attendrop.tasks.long_texts import LONG_TEXTS
from attendrop.tasks.table import UNKNOWN_LABELS, BadRows
from attendrop.tasks.table_files import column_names, read_chunks

# Number of rows in memory at a time, which are sorted by length into batches.
CHUNK_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data to evaluate or predict. Defaults are those of the run: its task and its folder, or the columns of its files.

    Attributes:
        task: A task's name, with ``data_dir`` as in training and the name of a ``split``.
        file: Custom file, with ``text_columns`` and, to evaluate, ``label_column``; ``"-"`` is standard input, in
            ``input_format`` (``"csv"``, ``"tsv"``, ``"jsonl"``, ``"conll"``, ``"conllu"`` or ``"txt"``).
        label_map: File that says what labels mean, see :class:`attendrop.runs.config.RunConfig`; None: as in training.
        task_options: Options of the kind of task, which override those of the run.
        skip_bad_rows: Skip invalid rows of the file, and write them to ``skipped_file``, if given, JSON lines.
        unknown_labels: As in :class:`attendrop.runs.config.RunConfig`; None: as in training.
        overwrite: Replace files that exist.
        max_length: In tokens.
        long_texts: See :class:`attendrop.runs.config.RunConfig`; None: as in training.
        batch_size: Rows in a batch.
        device: ``"auto"`` or ``"cpu"``.
    """

    task: str | None = None
    data_dir: str | None = None
    split: str | None = None
    file: str | None = None
    input_format: str | None = None
    text_columns: tuple[str, ...] = ()
    task_options: Mapping[str, Any] = field(default_factory=dict)
    label_column: str | None = None
    label_map: str | None = None
    skip_bad_rows: bool = False
    skipped_file: str | None = None
    unknown_labels: str | None = None
    overwrite: bool = False
    max_length: int | None = None
    long_texts: str | None = None
    batch_size: int = 64
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("max_length", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                check_least(name, value)
        if self.long_texts is not None:
            check_choice("long_texts", self.long_texts, LONG_TEXTS)
        if self.file is not None and (self.task or self.split or self.data_dir):
            raise AttendropError("Give a task (with its split and data-dir) or a file, and not both.")
        if self.task is not None and (self.text_columns or self.label_column):
            raise AttendropError("text-columns and label-column are for custom files; omit them for a task.")
        if self.unknown_labels is not None:
            check_choice("unknown_labels", self.unknown_labels, UNKNOWN_LABELS)
        for name in ("unknown_labels", "label_map"):
            if self.task is not None and getattr(self, name) is not None:
                raise AttendropError(f"{name.replace('_', '-')} is for custom files; omit it for a task.")
        if self.input_format is not None and self.file != STDIN:
            raise AttendropError("input-format is for standard input (-); omit it for a file, whose extension says it.")
        if self.skipped_file is not None and not self.skip_bad_rows:
            raise AttendropError("skipped-file is for skip-bad-rows; omit it, or add skip-bad-rows.")


def file_columns(
    source: Source, file: str, options: Mapping[str, Any], split: str
) -> tuple[tuple[str, ...], str | None]:
    """Return the text columns and the label column of a file: as given, as in training, or those of its format."""
    texts, label = default_columns(f"x.{source.input_format}" if file == STDIN else file)
    as_trained, trained_label = tuple(options.get("text_columns", ())), options.get("label_column")
    if texts and default_columns(options.get("train_file"))[0] != texts:
        as_trained, trained_label = (), None  # files of this format have columns of their own
    columns = source.text_columns or as_trained or texts
    if not columns:
        raise AttendropError(f"No text-columns are given; give some, comma-separated{names_of_columns(file)}.")
    return columns, (source.label_column or trained_label or label) if split == "dev" else None


def names_of_columns(file: str) -> str:
    """List the columns of a file, for messages; those of standard input are not read."""
    return "" if file == STDIN else f" of {', '.join(map(repr, column_names(file)))}"


def check_source(run_dir: str, source: Source, split: str) -> None:
    """Look at the run and at the beginning of the file, to refuse what is wrong with them before PyTorch is loaded."""
    if not Path(run_dir).is_dir():
        raise AttendropError(f"There is no run folder '{run_dir}'.")
    if source.file in (None, STDIN) or Path(str(source.file)).is_dir():
        return
    columns, label = file_columns(source, str(source.file), run_options(Path(run_dir)), split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading the whole file warns
        table = next(read_chunks(str(source.file), CHUNK_ROWS, BadRows(skip=source.skip_bad_rows)), None)
    if table is not None:
        for name in filter(None, (*columns, label)):
            table.column(name)
