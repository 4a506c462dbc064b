"""`attendrop predict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, Quiet, RunFolder, app, show
from attendrop.cli.console import messages
from attendrop.cli.run_options import Groups, file_argument, one_file, with_run_options
from attendrop.errors import AttendropError
from attendrop.runs.config import Source
from attendrop.runs.run_folder import check_source
from attendrop.tasks.table import STDIN
from attendrop.wording import counted

_FILE = "--predict-file"


@app.command()
@with_run_options
def predict(
    run: RunFolder,
    path: Annotated[str | None, file_argument(_FILE)] = None,
    *,
    output: Annotated[str, typer.Option(help="A .tsv, .csv, .jsonl, .conll or .txt file; - is stdout.")],
    data: Annotated[
        Mapping[str, Any],
        Groups(
            *("task", "file", "columns", "format"),
            of=Source,
            split=("Split of the task.", "test"),
            file=("Your file; - is stdin.", "", _FILE),
        ),
    ],
    output_format: Annotated[
        str | None, typer.Option(help="csv, tsv, jsonl, conll or txt.", show_default="by the extension; csv on stdout")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probabilities of all classes.")
    ] = False,
    keep_columns: Annotated[bool, typer.Option("--keep-columns", help="Also write the columns of the file.")] = False,
    escape_formulas: Annotated[
        bool,
        typer.Option("--escape-formulas", help="Write ' before cells that a spreadsheet would compute, such as =1+1."),
    ] = False,
    rows: Annotated[Mapping[str, Any], Groups("rows", of=Source)],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    options = {**data, **rows, "file": one_file(path, _FILE, data.get("file"))}
    if rows.get("skip_bad_rows") and output != STDIN:
        options.setdefault("skipped_file", f"{output}.skipped.jsonl")
    source = Source(**options)
    if as_json and output == STDIN:
        raise AttendropError("--json and --output - both write on stdout; choose one.")
    check_source(run, source, labelled=False)

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import predict as predict_rows

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = predict_rows(
            run, source, output, format=output_format, probabilities=probabilities, keep_columns=keep_columns,
            escape_formulas=escape_formulas, on_progress=progress,
        )  # fmt: skip
    empty = f", and an empty one for {counted(found['skipped'], 'skipped row')}," if found["skipped"] else ""
    shown = f"Wrote {counted(found['rows'], 'prediction')}{empty} to {output}."
    show(found, shown, quiet=quiet or output == STDIN, as_json=as_json)
