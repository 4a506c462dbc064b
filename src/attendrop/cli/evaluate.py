"""`attendrop evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, Quiet, RunFolder, app, show
from attendrop.cli.console import lines_of, messages
from attendrop.cli.run_options import Groups, file_argument, one_file, with_run_options
from attendrop.runs.config import Source
from attendrop.runs.run_folder import check_source
from attendrop.wording import aligned, counted, counts_of, score_text

_FILE = "--eval-file"
# Classes, confusions and errors that a report prints, and characters of a text; JSON has all.
_CLASSES, _CONFUSIONS, _ERRORS, _WIDTH = 30, 10, 5, 100


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
    check_source(run, source, labelled=True)

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
        shown = f"{shown}\n\n{error_report(found['report'])}"
    show(found, shown, quiet=quiet, as_json=as_json)


def error_report(report: Mapping[str, Any]) -> str:
    """Format an :func:`attendrop.tasks.error_analysis.error_analysis`: worst classes first, then its parts."""
    from attendrop.tasks.error_analysis import remarks, worst_classes

    def short(text: str) -> str:
        line = " ".join(text.split())
        return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"

    worst, scores = worst_classes(report), ("precision", "recall", "f1")
    table = [("class", "rows", "predicted", "precision", "recall", "F1")] + [
        (each["class"], str(each["rows"]), str(each["predicted"]), *(f"{each[name]:.3f}" for name in scores))
        for each in worst[:_CLASSES]
    ]
    parts = [aligned(table, "lr")]
    if len(worst) > _CLASSES:
        parts[0].append(f"and {len(worst) - _CLASSES} with an F1 no lower; --json has all")
    if confusions := report.get("confusions"):
        pairs = [(each["class"], "->", each["predicted"], str(each["rows"])) for each in confusions[:_CONFUSIONS]]
        parts.append(["most confused", *(f"  {line}" for line in aligned(pairs, "lllr"))])
    parts += [found] if (found := remarks(report)) else []
    lines = ["most confident errors"]
    for error in report.get("errors", ())[:_ERRORS]:
        lines.append(f"  row {error['row'] + 1}: {short(error['text'])}")
        lines.append(f"    is {error['class']}, predicted {error['predicted']} ({error['probability']:.2f})")
        if near := error.get("nearest"):
            lines.append(f"    nearest training row ({near['likeness']:.2f}), {near['class']}: {short(near['text'])}")
    parts += [lines] if len(lines) > 1 else []
    return "\n\n".join("\n".join(part) for part in parts)
