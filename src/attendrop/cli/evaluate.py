"""`attendrop evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import (
    Columns,
    DataDir,
    Device,
    InputFormat,
    Json,
    LabelColumn,
    LabelMap,
    LongTexts,
    MaxLength,
    Overwrite,
    Quiet,
    RunFolder,
    SkipBadRows,
    SkippedFile,
    Task,
    TaskOptions,
    UnknownLabels,
    app,
    show,
    split_columns,
)
from attendrop.cli.console import lines_of, messages
from attendrop.cli.run_options import file_argument, one_file, read_mapping
from attendrop.runs.model_source import Source, check_source
from attendrop.wording import counted, counts_of


@app.command()
def evaluate(
    run: RunFolder,
    file: Annotated[str | None, file_argument("--eval-file")] = None,
    task: Task = None,
    split: Annotated[str | None, typer.Option(help="Split of the task.", show_default="dev")] = None,
    data_dir: DataDir = None,
    eval_file: Annotated[str | None, typer.Option(help="Your file instead of a task; - is stdin.")] = None,
    text_columns: Columns = None,
    label_column: LabelColumn = None,
    label_map: LabelMap = None,
    input_format: InputFormat = None,
    skip_bad_rows: SkipBadRows = False,
    unknown_labels: UnknownLabels = None,
    skipped_file: SkippedFile = None,
    overwrite: Overwrite = False,
    max_length: MaxLength = None,
    long_texts: LongTexts = None,
    batch_size: int = 64,
    task_options: TaskOptions = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also say what goes wrong: classes, confusions, calibration, errors.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score the model of a run on labelled data."""
    file = one_file(file, "--eval-file", eval_file)
    source = Source(
        task=task, data_dir=data_dir, split=split, file=file, text_columns=split_columns(text_columns),
        label_column=label_column, label_map=label_map, input_format=input_format,
        skip_bad_rows=skip_bad_rows, skipped_file=skipped_file,
        overwrite=overwrite, task_options=read_mapping("task_options", task_options or []), max_length=max_length,
        long_texts=long_texts, unknown_labels=unknown_labels,
        batch_size=batch_size, device=device or "auto",
    )  # fmt: skip

    check_source(run, source, "dev")

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import evaluate as evaluate_run

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = evaluate_run(run, source, progress, report=report)
    lines = {"data": f"{found['task']}, {found['split']}: {counted(found['rows'], 'row')} ({found['source']})"}
    lines |= {name.replace("_", " "): f"{value:.4f}" for name, value in found["all_scores"].items()}
    if unknown := found["unknown_labels"]:
        lines["unknown labels"] = f"{sum(unknown.values())}, which count as wrong: {counts_of(unknown)}"
    for groups in found["groups"].values():
        metric = found["metric"]
        lines |= {name: f"{group[metric]:.4f} ({counted(group['rows'], 'row')})" for name, group in groups.items()}
    shown = lines_of(lines)
    if report:
        from attendrop.cli.error_report import error_report

        shown = f"{shown}\n\n{error_report(found['report'])}"
    show(found, shown, quiet=quiet, as_json=as_json)
