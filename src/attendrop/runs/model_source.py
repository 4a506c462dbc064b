"""Data to evaluate or predict with a finished model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attendrop.argument_checks import check_choice, check_least
from attendrop.errors import AttendropError
from attendrop.tasks.long_texts import LONG_TEXTS
from attendrop.tasks.table import UNKNOWN_LABELS

STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data to evaluate or predict. Defaults are those of the run: its task and its folder, or the columns of its files.

    Attributes:
        task: A task's name, with ``data_dir`` as in training and the name of a ``split``.
        file: Custom file, with ``text_columns`` and, to evaluate, ``label_column``; ``"-"`` is standard input, in
            ``input_format`` (``"csv"``, ``"tsv"``, ``"jsonl"``, ``"conll"``, ``"conllu"`` or ``"txt"``).
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
        if self.task is not None and self.unknown_labels is not None:
            raise AttendropError("unknown-labels is for custom files; omit it for a task.")
        if self.input_format is not None and self.file != STDIN:
            raise AttendropError("input-format is for standard input (-); omit it for a file, whose extension says it.")
        if self.skipped_file is not None and not self.skip_bad_rows:
            raise AttendropError("skipped-file is for skip-bad-rows; omit it, or add skip-bad-rows.")
