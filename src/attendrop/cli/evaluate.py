"""`attendrop evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, Quiet, RunFolder, app, show
from attendrop.cli.console import lines_of, messages
from attendrop.cli.run_options import Groups, file_argument, one_file, with_run_options
from attendrop.runs.model_source import Source, check_source
from attendrop.wording import counted, counts_of, score_text

_FILE = "--eval-file"


@app.command()
@with_run_options
def evaluate(
    run: RunFolder,
    path: Annotated[str | None, file_argument(_FILE)] = None,
    *,
    data: Annotated[
        Mapping[str, Any],
        Groups(
            *("task", "file", "columns", "labels", "format", "rows"),
            of=Source,
            split=("Split of the task.", "dev"),
            file=(None, None, _FILE),
        ),
    ],
    report: Annotated[
        bool, typer.Option("--report", help="Also analyse errors: classes, confusions, calibration, examples.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score the model of a run on labelled data; without any, on the rows that the run held out."""
    source = Source(**{**data, "file": one_file(path, _FILE, data.get("file"))})
    check_source(run, source, "dev")

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import evaluate as evaluate_run

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = evaluate_run(run, source, progress, report=report)
    lines = {"data": f"{found['task']}, {found['split']}: {counted(found['rows'], 'row')} ({found['source']})"}
    lines |= {name.replace("_", " "): score_text(value) for name, value in found["all_scores"].items()}
    if unknown := found["unknown_labels"]:
        lines["unknown labels"] = f"{sum(unknown.values())}, which count as wrong: {counts_of(unknown)}"
    for groups in found["groups"].values():
        scores = {name: score_text(group[found["metric"]]) for name, group in groups.items()}
        lines |= {name: f"{score} ({counted(groups[name]['rows'], 'row')})" for name, score in scores.items()}
    shown = lines_of(lines)
    if report:
        from attendrop.cli.error_report import error_report

        shown = f"{shown}\n\n{error_report(found['report'])}"
    show(found, shown, quiet=quiet, as_json=as_json)
