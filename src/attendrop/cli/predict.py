"""`attendrop predict`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import (
    Columns,
    DataDir,
    Device,
    InputFormat,
    Json,
    LongTexts,
    MaxLength,
    Overwrite,
    Quiet,
    RunFolder,
    SkipBadRows,
    SkippedFile,
    Task,
    TaskOptions,
    app,
    show,
    split_columns,
)
from attendrop.cli.console import messages
from attendrop.cli.run_options import file_argument, one_file, read_mapping
from attendrop.errors import AttendropError
from attendrop.runs.model_source import Source, check_source
from attendrop.tasks.dialect import STDIN
from attendrop.wording import counted


@app.command()
def predict(
    run: RunFolder,
    file: Annotated[str | None, file_argument("--predict-file")] = None,
    *,
    output: Annotated[str, typer.Option(help="A .tsv, .csv, .jsonl, .conll or .txt file; - is stdout.")],
    task: Task = None,
    split: Annotated[str | None, typer.Option(help="Split of the task.", show_default="test")] = None,
    data_dir: DataDir = None,
    predict_file: Annotated[str | None, typer.Option(help="Your file, or folder of images; - is stdin.")] = None,
    text_columns: Columns = None,
    input_format: InputFormat = None,
    output_format: Annotated[
        str | None, typer.Option(help="csv, tsv, jsonl, conll or txt.", show_default="by the extension; csv on stdout")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probabilities of all classes.")
    ] = False,
    keep_columns: Annotated[bool, typer.Option("--keep-columns", help="Write the columns of the file, too.")] = False,
    skip_bad_rows: SkipBadRows = False,
    skipped_file: SkippedFile = None,
    overwrite: Overwrite = False,
    max_length: MaxLength = None,
    long_texts: LongTexts = None,
    batch_size: int = 64,
    task_options: TaskOptions = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    file = one_file(file, "--predict-file", predict_file)
    source = Source(
        task=task, data_dir=data_dir, split=split, file=file, text_columns=split_columns(text_columns),
        input_format=input_format, skip_bad_rows=skip_bad_rows,
        skipped_file=skipped_file or (f"{output}.skipped.jsonl" if skip_bad_rows and output != STDIN else None),
        overwrite=overwrite, task_options=read_mapping("task_options", task_options or []), max_length=max_length,
        long_texts=long_texts,
        batch_size=batch_size, device=device or "auto",
    )  # fmt: skip
    if as_json and output == STDIN:
        raise AttendropError("--json and --output - both write on stdout; choose one.")

    check_source(run, source, "test")

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import predict as predict_rows

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = predict_rows(
            run, source, output, format=output_format, probabilities=probabilities, keep_columns=keep_columns,
            on_progress=progress,
        )  # fmt: skip
    shown = f"Wrote {counted(found['rows'], 'prediction')} to {output}."
    show(found, shown, quiet=quiet or output == STDIN, as_json=as_json)
