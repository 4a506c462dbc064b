"""`attendrop evaluate` and `attendrop predict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError
from attendrop.runs.config import Source
from attendrop.runs.run_folder import check_source
from attendrop.tasks.table import STDIN
from attendrop.wording import aligned, counted, counts_of, score_text

_EVALUATED, _PREDICTED = "--eval-file", "--predict-file"
# Classes, confusions and errors that a report prints, and characters of a text; JSON has all.
_CLASSES, _CONFUSIONS, _ERRORS, _WIDTH = 30, 10, 5, 100
# Columns of accuracy at coverage, and the length of a bar of accuracy 1.
_CURVE, _BAR = ("confidence", "accuracy"), 40


@ui.app.command()
@ui.with_run_options
def evaluate(
    run: ui.RunFolder,
    path: Annotated[str | None, ui.file_argument(_EVALUATED)] = None,
    *,
    data: Annotated[
        Mapping[str, Any],
        ui.Groups(
            *("task", "file", "columns", "labels", "format", "rows"),
            of=Source,
            split=("Split of the task.", "dev"),
            file=(None, None, _EVALUATED),
        ),
    ],
    report: Annotated[
        bool, typer.Option("--report", help="Also analyse errors: classes, confusions, calibration, examples.")
    ] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Score the model of a run on labelled data; without any, on the rows that the run held out."""
    source = Source(**{**data, "file": ui.one_file(path, _EVALUATED, data.get("file"))})
    check_source(run, source, labelled=True)

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import evaluate as evaluate_run

    with ui.messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = evaluate_run(run, source, progress, report=report)
    lines = {"data": f"{found['task']}, {found['split']}: {counted(found['rows'], 'row')} ({found['source']})"}
    lines |= {name.replace("_", " "): score_text(value) for name, value in found["all_scores"].items()}
    if unknown := found["unknown_labels"]:
        lines["unknown labels"] = f"{sum(unknown.values())}, which count as wrong: {counts_of(unknown)}"
    for groups in found["groups"].values():
        for name, group in groups.items():
            lines[name] = f"{score_text(group[found['metric']])} ({counted(group['rows'], 'row')})"
    shown = ui.lines_of(lines) + (f"\n\n{error_report(found['report'])}" if report else "")
    ui.show(found, shown, quiet=quiet, as_json=as_json)


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
    if coverage := report.get("coverage"):
        shown = [(f"{each['coverage']:.0%}", *(f"{each[name]:.3f}" for name in _CURVE)) for each in coverage]
        bars = ["", *("█" * round(_BAR * each["accuracy"]) for each in coverage)]
        lines = aligned([("most confident", *_CURVE), *shown], "r")
        parts.append([f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)])
    parts += [found] if (found := remarks(report)) else []
    lines = ["most confident errors"]
    for error in report.get("errors", ())[:_ERRORS]:
        lines.append(f"  row {error['row'] + 1}: {short(error['text'])}")
        lines.append(f"    is {error['class']}, predicted {error['predicted']} ({error['probability']:.2f})")
        if near := error.get("nearest"):
            lines.append(f"    nearest training row ({near['likeness']:.2f}), {near['class']}: {short(near['text'])}")
    parts += [lines] if len(lines) > 1 else []
    return "\n\n".join("\n".join(part) for part in parts)


@ui.app.command()
@ui.with_run_options
def predict(
    run: ui.RunFolder,
    path: Annotated[str | None, ui.file_argument(_PREDICTED)] = None,
    *,
    output: Annotated[str, typer.Option(help="A .tsv, .csv, .jsonl, .conll or .txt file; - is stdout.")],
    data: Annotated[
        Mapping[str, Any],
        ui.Groups(
            *("task", "file", "columns", "format"),
            of=Source,
            split=("Split of the task.", "test"),
            file=("Your file; - is stdin.", "", _PREDICTED),
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
    rows: Annotated[Mapping[str, Any], ui.Groups("rows", of=Source)],
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    options = {**data, **rows, "file": ui.one_file(path, _PREDICTED, data.get("file"))}
    if rows.get("skip_bad_rows") and output != STDIN:
        options.setdefault("skipped_file", f"{output}.skipped.jsonl")
    source = Source(**options)
    if as_json and output == STDIN:
        raise AttendropError("--json and --output - both write on stdout; choose one.")
    check_source(run, source, labelled=False)

    from attendrop.cli.progress import row_progress
    from attendrop.runs.inference import predict as predict_rows

    with ui.messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = predict_rows(
            run, source, output, format=output_format, probabilities=probabilities, keep_columns=keep_columns,
            escape_formulas=escape_formulas, on_progress=progress,
        )  # fmt: skip
    empty = f", and an empty one for {counted(found['skipped'], 'skipped row')}," if found["skipped"] else ""
    shown = f"Wrote {counted(found['rows'], 'prediction')}{empty} to {output}."
    ui.show(found, shown, quiet=quiet or output == STDIN, as_json=as_json)
