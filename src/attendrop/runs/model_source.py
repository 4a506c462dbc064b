"""What is evaluated or predicted: the finished run, and the data; checked before PyTorch is loaded."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.config import PATH, as_in_runs, check_fields, option, refuse_options_of_files
from attendrop.runs.run_file import RUN_FILE, partial_of
from attendrop.runs.run_folder import (
    METRICS,
    RUN,
    check_whole,
    is_baseline,
    keeps_model,
    read_metrics,
    read_run,
    run_options,
)
from attendrop.tasks.inspection import label_columns
from attendrop.tasks.table import STDIN, BadRows, column_names, default_columns, read_chunks
from attendrop.wording import names_of


def check_finished(run_dir: str) -> None:
    """Raise AttendropError if there is no such folder, or no finished run or other model in it, but runs below it."""
    folder = Path(run_dir)
    unfinished = (partial_of(folder) / RUN).is_file()
    if not folder.is_dir() and not unfinished:
        raise AttendropError(f"There is no run folder '{run_dir}'.")
    inner = next((path.parent for path in sorted(folder.glob(f"[!.]*/{METRICS}"))), None)
    if inner is not None and not any((folder / name).exists() for name in (RUN, "config.json")):
        raise AttendropError(f"'{run_dir}' holds no model; did you mean '{inner}'?")
    if (read_run(folder) is not None or unfinished) and read_metrics(folder) is None:
        raise AttendropError(f"The run in '{run_dir}' is not finished; `attendrop train` with --resume finishes it.")


def read_finished(run_dir: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read ``run.json`` and ``metrics.json``; raises AttendropError if the folder holds no finished run."""
    check_finished(run_dir)
    run, metrics = read_run(Path(run_dir)), read_metrics(Path(run_dir))
    if run is None or metrics is None:
        raise AttendropError(f"'{run_dir}' holds no finished run; name the folder of one.")
    return run, metrics


def check_keeps_model(run_dir: str) -> None:
    """Raise AttendropError if a run kept its scores, and not its model, or lost a file of it."""
    folder = Path(run_dir)
    if not keeps_model(folder) and not is_baseline(folder):
        check_whole(folder)
        again = shlex.quote(f"{run_dir}/{RUN_FILE}")
        raise AttendropError(
            f"The run in '{run_dir}' kept no model, only its scores; train one with `attendrop train --config {again}`."
        )


# Number of rows in memory at a time, which are sorted by length into batches.
CHUNK_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data to evaluate or predict. Defaults are those of the run: its task and its folder, or the columns of its files.

    Raises:
        AttendropError: An option is out of range, or two options conflict.
    """

    task: str | None = option(None, "task", "Name of a task. Default: the task of the run.")
    split: str | None = option(None, "task", "Split of the task.")
    data_dir: str | None = as_in_runs("data_dir", "task")
    file: str | None = option(None, "file", "Your file instead of a task; - is stdin.", PATH)
    text_columns: tuple[str, ...] = as_in_runs("text_columns", "columns", shown="as in training")
    label_column: str | None = as_in_runs("label_column", "labels", shown="as in training")
    """Only to evaluate."""
    label_map: str | None = as_in_runs("label_map", "labels", shown="as in training")
    unknown_labels: str | None = as_in_runs("unknown_labels", "labels", shown="as in training")
    input_format: str | None = option(
        None, "format", "Format of stdin: csv, tsv, json, jsonl, conll, conllu or txt.", shown="csv"
    )
    skip_bad_rows: bool = as_in_runs("skip_bad_rows", "rows", flags=("--skip-bad-rows",))
    skipped_file: str | None = option(None, "rows", "File for the skipped rows, JSON lines.", PATH)
    overwrite: bool = option(
        False, "rows", "Replace existing files, except those that are read.", flags=["--overwrite"]
    )
    max_length: int | None = option(None, "rows", "In tokens.", shown="as in training")
    long_texts: str | None = as_in_runs("long_texts", "rows", shown="as in training")
    batch_size: int = as_in_runs("eval_batch_size", "rows")
    task_options: Mapping[str, Any] = as_in_runs("task_options", "rows")
    """They override those of the run."""
    device: str = as_in_runs("device", "rows")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.file is not None and (self.task or self.split or self.data_dir):
            raise AttendropError("Give a task (with its split and data-dir) or a file, and not both.")
        if self.task is not None:
            refuse_options_of_files(self)
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
        as_trained, trained_label = (), None  # files of this format have their own columns
    columns = source.text_columns or as_trained or texts
    if not columns:
        raise AttendropError(f"No text-columns are given; give some, comma-separated{names_of_columns(file)}.")
    named = (name for name in (source.label_column, trained_label, label) if name is not None)  # "" is a name, too
    return columns, next(named, None) if split == "dev" else None


def names_of_columns(file: str) -> str:
    """List the columns of a file, for messages; those of standard input are not read."""
    return "" if file == STDIN else f" of {names_of(column_names(file))}"


def check_source(run_dir: str, source: Source, split: str) -> None:
    """Check the run and the beginning of the file, to refuse errors in them before PyTorch is loaded."""
    check_finished(run_dir)
    options = run_options(Path(run_dir))
    if not options and not keeps_model(run_dir):
        return  # loading the model says that there is none
    if source.file in (None, STDIN):
        return
    columns, label = file_columns(source, str(source.file), options, split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading the whole file warns
        table = next(read_chunks(str(source.file), CHUNK_ROWS, BadRows(skip=source.skip_bad_rows)), None)
    if table is not None:
        for name in (*columns, *(() if label is None else label_columns(table.columns, label))):
            table.column(name)
