"""`attendrop report`, `evaluate`, `predict`, `patterns`, `attend`, `prune`, `export` and `push`: of finished runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_METHOD, RUN_FILE, Source
from attendrop.runs.run_folder import check_source, input_files, read_run
from attendrop.support.files import SCHEDULE, check_output, write_bytes, write_json, write_text
from attendrop.tasks.table import STDIN
from attendrop.wording import RIGHT, aligned, counted, counted_rows, counts_of, interval_of, score_text

_EVALUATED, _PREDICTED = "--eval-file", "--predict-file"
# Classes, confusions and errors that a report prints, and characters of a text; JSON has all.
_CLASSES, _CONFUSIONS, _ERRORS, _WIDTH = 30, 10, 5, 100
_PAGE = "attention.html"


@ui.register
def report(
    folder: Annotated[str, ui.path_argument("Folder of a study, a comparison or a run.", "DIR")],
    output_dir: Annotated[str | None, "Folder of the files.", "DIR/report"] = None,
    reference: Annotated[str | None, "Method to compare with, by its label.", "that of the answer, or finetune"] = None,
    overwrite: ui.Overwrite = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Make tables, figures and an HTML page of finished runs."""
    from attendrop.reports.report import PAGE, write_report

    with ui.messages(quiet=quiet):
        found = write_report(folder, output_dir, reference=reference, overwrite=overwrite)
    settings = found.results.settings
    figures = [name for name in found.files if name.endswith(".svg")]
    tables = [str(found.folder / name) for name in found.files if name.startswith("table.")]
    lines = [
        *(f"{each.name}: " * (len(settings) > 1) + each.answer.sentences[0] for each in settings),
        "",
        *found.results.notes,
        *(f"Not made: {line}" for line in found.left_out),
        *([f"Tables: {', '.join(tables)}"] if tables else []),
        f"Figures: {len(figures)} in {found.folder}, as PDF, PNG and SVG",
        f"Page: {found.folder / PAGE}",
    ]
    ui.show(found.as_dict(), "\n".join(lines), quiet=quiet, as_json=as_json)


@ui.register
def evaluate(
    run: ui.RunFolder,
    *,
    data: Annotated[
        Mapping[str, Any],
        ui.Groups(
            *("task", "file", "columns", "labels", "format", "rows"),
            of=Source,
            argument=("file", _EVALUATED),
            split=("Split of the task.", "dev"),
            file=(None, None, _EVALUATED),
        ),
    ],
    report: Annotated[bool, "Also analyse errors: classes, confusions, calibration, examples."] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Score the model of a run on labelled data; without any, on the rows that the run held out."""
    source = Source(**data)
    check_source(run, source, labelled=True)

    from attendrop.runs.inference import evaluate as evaluate_run

    with ui.messages(quiet=quiet):
        found = evaluate_run(run, source, report=report)
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
        rows = [
            (f"{each['coverage']:.0%}", f"{each['confidence']:.3f}", f"{each['accuracy']:.3f}") for each in coverage
        ]
        bars = ["", *("█" * round(40 * each["accuracy"]) for each in coverage)]
        lines = aligned([("most confident", "confidence", "accuracy"), *rows], "r")
        parts.append([f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)])
    parts += [found] if (found := remarks(report)) else []
    lines = ["most confident errors"]
    for error in report.get("errors", ())[:_ERRORS]:
        lines.append(f"  row {error['row'] + 1}: {shorten(error['text'], _WIDTH, placeholder='…')}")
        lines.append(f"    is {error['class']}, predicted {error['predicted']} ({error['probability']:.2f})")
        if near := error.get("nearest"):
            text = shorten(near["text"], _WIDTH, placeholder="…")
            lines.append(f"    nearest training row ({near['likeness']:.2f}), {near['class']}: {text}")
    parts += [lines] if len(lines) > 1 else []
    return "\n\n".join("\n".join(part) for part in parts)


@ui.register
def predict(
    run: ui.RunFolder,
    *,
    output: Annotated[str, "A .tsv, .csv, .jsonl, .conll or .txt file; - is stdout."],
    data: Annotated[
        Mapping[str, Any],
        ui.Groups(
            *("task", "file", "columns", "format"),
            of=Source,
            argument=("file", _PREDICTED),
            split=("Split of the task.", "test"),
            file=("Your file; - is stdin.", "", _PREDICTED),
        ),
    ],
    output_format: Annotated[str | None, "csv, tsv, jsonl, conll or txt.", "by the extension; csv on stdout"] = None,
    probabilities: Annotated[bool, "Write the probabilities of all classes."] = False,
    keep_columns: Annotated[bool, "Also write the columns of the file."] = False,
    escape_formulas: Annotated[bool, "Write ' before cells that a spreadsheet would compute, such as =1+1."] = False,
    rows: Annotated[Mapping[str, Any], ui.Groups("rows", of=Source)],
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    options = {**data, **rows}
    if rows.get("skip_bad_rows") and output != STDIN:
        options.setdefault("skipped_file", f"{output}.skipped.jsonl")
    source = Source(**options)
    if as_json and output == STDIN:
        raise AttendropError("--json and --output - both write on stdout; choose one.")
    check_source(run, source, labelled=False)

    from attendrop.runs.inference import predict as predict_rows

    with ui.messages(quiet=quiet):
        found = predict_rows(
            run, source, output, format=output_format, probabilities=probabilities, keep_columns=keep_columns,
            escape_formulas=escape_formulas,
        )  # fmt: skip
    empty = f", and an empty one for {counted(found['skipped'], 'skipped row')}," if found["skipped"] else ""
    shown = f"Wrote {counted(found['rows'], 'prediction')}{empty} to {output}."
    ui.show(found, shown, quiet=quiet or output == STDIN, as_json=as_json)


@ui.register
def patterns(
    run: ui.RunFolder,
    fit: Annotated[int | None, "Least number of linear pieces of a fitted schedule.", "none"] = None,
    output: Annotated[str | None, "PNG figure of what was learnt.", "RUN/patterns.png"] = None,
    options: Annotated[str | None, "JSON file of the fit.", f"RUN/{SCHEDULE}"] = None,
    overwrite: ui.Overwrite = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Show what a run of AttendOut learnt, and fit a schedule to it."""
    if options is not None and fit is None:
        raise AttendropError("--options names the file of a fit; give the number of its pieces with --fit.")
    from attendrop.reports import learned_patterns

    with ui.messages(quiet=quiet):
        found = learned_patterns.read(Path(run))
        fitted = None if fit is None else learned_patterns.fit(found, fit)
        picture, schedule = Path(output or f"{run}/patterns.png"), Path(options or f"{run}/{SCHEDULE}")
        for file in (picture, schedule) if fitted is not None else (picture,):
            check_output(file, input_files(Path(run)), overwrite=overwrite)
        write_bytes(picture, learned_patterns.figure(found, fitted).files()["png"])
        curves = [[None if math.isnan(p) else p for p in curve] for curve in found.probabilities.T.tolist()]
        values: dict[str, Any] = {
            "run": run,
            "picture": str(picture),
            "dropout_steps": len(found.steps),
            "drop_probability": dict(zip(found.layers, curves, strict=True)),
            "steps": found.steps.astype(int).tolist(),
            "period_shares": found.period_shares.tolist(),
        }
        # At most twelve dropout steps, with the first and the last.
        last = min(len(found.steps), 12) - 1
        shown = sorted({round(i * (len(found.steps) - 1) / max(last, 1)) for i in range(last + 1)})
        kinds = {layer.split(".")[0] for layer in found.layers}
        rows = [["step", *(each.split(".")[1] if len(kinds) == 1 else each for each in found.layers), "reward", "kept"]]
        for i in shown:
            cells = ["–" if math.isnan(p) else f"{p:.3f}" for p in found.probabilities[i]]
            partial, kept = "" if found.period_shares[i] == 1 else "*", "A" if found.attacker_survived[i] else "D"
            rows.append([f"{found.steps[i]:.0f}{partial}", *cells, f"{found.rewards[i]:+.3f}", kept])
        survivor = f"the attacker (A) or the defender (D); A {sum(found.attacker_survived)} times."
        text = [
            *(f"AttendOut: {found.run}", ""),
            f"Mean probability of dropping, by layer of {' and '.join(sorted(kinds))} attention:",
            *aligned(rows, RIGHT, " "),
            f"{len(shown)} of {len(found.steps)} dropout steps. Kept: {survivor}",
        ]
        if (found.period_shares < 1).any():
            text.append("* a partial period, since training ended; it weighs less in a fit.")
        text += ["", f"Wrote {picture}."]
        if fit is not None and fitted is not None:
            method = learned_patterns.scheduler(found, fitted)
            write_json(schedule, {"method": method.name, "options": method.options()})  # for train --options
            again = ["--config", f"{run}/{RUN_FILE}", "--method", method.name, "--options", str(schedule)]
            command = shlex.join(["attendrop", "train", *again])
            values["fit"] = {
                "file": str(schedule),
                "rms": dict(zip(found.layers, fitted.rms.tolist(), strict=True)),
                "largest_deviation": dict(zip(found.layers, fitted.largest.tolist(), strict=True)),
                "command": command,
                **method.options(),
            }
            rows = [["progress", *(f"{knot:.2f}" for knot in fitted.knots), "RMS error", "largest"]]
            for layer, at_knots, *errors in zip(found.layers, fitted.values.T, fitted.rms, fitted.largest, strict=True):
                rows.append([layer, *(f"{value:.3f}" for value in at_knots), *(f"{error:.4f}" for error in errors)])
            text += ["", f"Least squares fit, linear pieces between {len(fitted.knots)} knots:"]
            text += aligned(rows, RIGHT, " ")
            if (taken := len(fitted.knots) - 1) > fit:
                text.append(f"A fit of {counted(fit, 'piece')} is far off the curves; {taken} were taken.")
            if fitted.largest.max() > learned_patterns.FAR:
                text.append(f"The fit is still far off the curves: by up to {fitted.largest.max():.2f}.")
            text += [f"Wrote {schedule}. To train with it:", command]
    ui.show(values, "\n".join(text), quiet=quiet, as_json=as_json)


@ui.register
def attend(
    model: Annotated[str, ui.path_argument("Folder of a finished run or of a model, hub id, or minilm.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="One or more texts.")],
    text_pair: Annotated[list[str] | None, "Second text of a pair; give one for each text."] = None,
    method: Annotated[str | None, "Cross out what this method drops.", f"that of the run, or {DEFAULT_METHOD}"] = None,
    settings: ui.MethodSettings = None,
    attribution: Annotated[str, "gradient or integrated_gradient."] = "gradient",
    layers: Annotated[str, "Layers to show: all, first, or numbers such as 0,5."] = "all",
    max_length: Annotated[int | None, "In tokens.", "that of the run, or 128"] = None,
    seed: Annotated[int, "Seed of random drops."] = 0,
    output: Annotated[str | None, "The page, HTML.", f"RUN/{_PAGE}, or {_PAGE}"] = None,
    overwrite: ui.Overwrite = False,
    device: ui.Device = "auto",
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Show attention, attribution and what a method drops for texts of your own, as one HTML page."""
    from attendrop.methods.core.registry import build_method
    from attendrop.reports.attention_viewer import attention_page, load_stages, show_texts

    options = ui.read_settings(settings or [])
    chosen = None if method is None else build_method(method, options)
    folder = Path(model)
    is_run = folder.is_dir() and read_run(folder) is not None
    file = Path(output or (folder / _PAGE if is_run else _PAGE))
    check_output(file, input_files(folder), overwrite=overwrite)
    with ui.messages(quiet=quiet):
        stages = load_stages(model, chosen, settings=options, seed=seed, device=device)
        shown = show_texts(
            stages, texts, text_pair or [], attribution=attribution, layers=layers, max_length=max_length
        )
        page = attention_page(folder.absolute().name, stages, shown, attribution)
    write_text(file, page)
    told: list[dict[str, Any]] = []
    lines = []
    for each in shown:
        of_stages = list(zip(stages.stages, each.stages, strict=True))
        found: dict[str, Any] = {"text": each.text, "tokens": len(each.stages[0].tokens), "note": each.note}
        found["predictions"] = {stage.name: dict(maps.prediction) for stage, maps in of_stages}
        told.append(found | {"predicted": [maps.predicted for maps in each.stages]})
        lines.append(f"{each.text} ({len(each.stages[0].tokens)} tokens)")
        lines += [f"  {stage.name}: {maps.predicted}" for stage, maps in of_stages]
    crossed = None if stages.method is None else stages.method.name
    lines.append("No method drops anything." if crossed is None else f"Crossed out: what {crossed} drops.")
    size = len(page.encode())
    lines.append(f"Wrote {file}, {size / 1e6:.1f} MB; open it in a browser.")
    found = {"model": model, "output": str(file), "bytes": size, "method": crossed, "texts": told}
    ui.show(found, "\n".join(lines), quiet=quiet, as_json=as_json)


@ui.register
def prune(
    run: ui.RunFolder,
    output_dir: Annotated[str, "A new folder for the pruned model."],
    layers: Annotated[
        str, "auto; a count: 4; layers: 0,3,5 or '4,'; '>=0.8': those that AttendOut drops so often."
    ] = "auto",
    select_by: Annotated[
        str,
        "importance (loss without a layer); method (what it learnt to drop); auto: importance, unless what the method "
        "learnt can be told from noise.",
    ] = "auto",
    tolerance: Annotated[float, "With auto: allowed loss in selection score."] = 0.0,
    recover_epochs: Annotated[int, "Number of epochs of fine-tuning afterwards."] = 0,
    data_dir: ui.DataDir = None,
    device: ui.Device = "auto",
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Replace attention by constants in some layers, for a smaller and faster model."""
    from attendrop.cli.progress import TrainingProgress
    from attendrop.pruning.selection import IMPORTANCE
    from attendrop.runs.prune import prune_run

    with ui.messages(quiet=quiet) as console, closing(TrainingProgress(console)) as progress:
        metrics = prune_run(
            run, output_dir, layers=layers, select_by=select_by, tolerance=tolerance, recover_epochs=recover_epochs,
            data_dir=data_dir, device=device, callbacks=[] if quiet else [progress],
        )  # fmt: skip
    pruned, name, times = metrics["pruned"], metrics["metric"].replace("_", " "), ("before", "after")
    layers = f"{len(pruned['layers'])} of {pruned['of']} layers{': ' if pruned['layers'] else ''}"
    ranking = "  ".join(f"{key.split('.')[1]}: {value:.3f}" for key, value in pruned["harm"].items())
    lines = {"constant attention": layers + ", ".join(map(str, pruned["layers"]))}
    lines["ranked by"] = f"{pruned['measure']}  {ranking}"
    if pruned["scores"]:  # the trials of auto, and what the rows cannot decide
        rows = f"{name} on {pruned['rows']} rows of {pruned['chosen_on']}"
        ranked = ", but on rows that ranked the layers, too" if pruned["ranked_by"] == IMPORTANCE else ""
        lines["tried"] = f"{rows}; differences, 95 % intervals for all at once{ranked}"
        for count, score in pruned["scores"].items():
            found = pruned["differences"].get(count)
            gap = "" if found is None else f"  {score_text(found['value'], score, '+')}  ({interval_of(found, score)})"
            lines[f"  {counted(int(count), 'layer')}"] = score_text(score) + gap
        lines |= {"not known": pruned["unknown"]} if pruned["unknown"] else {}
    if pruned["recover_epochs"]:
        lines["recovered"] = f"fine-tuned for {counted(pruned['recover_epochs'], 'more epoch')}"
    sets = ({"selection": pruned["selection"]} if pruned["selection"] else {}) | pruned["all_scores"]
    for part, both in sets.items():
        score = both["before"][metrics["metric"]]
        before, after = (score_text(both[when][metrics["metric"]], score) for when in times)
        gap = f"95 % interval of the difference: {interval_of(both['difference'], score)}"
        lines[f"{part} score"] = f"{name} {before}" + (f" -> {after}  ({gap})" if both["difference"] else "")
    lines["parameters"] = " -> ".join(dict.fromkeys(f"{pruned['parameters'][when]:,}" for when in times))
    lines["weights on disk"] = " -> ".join(dict.fromkeys(ui.size(pruned["bytes"][when]) for when in times))
    if speed := pruned["speed"]:
        spread = f"{speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds"
        rows = counted_rows(speed["rows"], f"rows of {pruned['chosen_on']}", speed["windows"])
        form = "" if pruned["fast"] else "; this family has no fast form here"
        measured = f"({spread}; {rows}, {speed['batch_size']} at a time){form}"
        lines["speed"] = f"{speed['median']:.2f} times as fast on {speed['device']} {measured}"
    if pruned["chosen"] and pruned["chosen_on"] == "dev":
        lines["protocol"] = "layers were chosen on dev, so the dev score is optimistic"
    lines["model"] = metrics["output_dir"]
    shown = f"{metrics['model']} on {metrics['task']} with {metrics['method']}, pruned\n{ui.lines_of(lines)}"
    ui.show(metrics, shown, quiet=quiet, as_json=as_json)


@ui.register
def export(
    run: Annotated[str, ui.path_argument("Folder of a finished run, or of a pruned model.", "RUN")],
    output: Annotated[str, "The file, or a folder for model.onnx; the tokenizer is saved beside it."],
    format_: Annotated[str, typer.Option("--format", help="onnx or torch (torch.export).")] = "onnx",
    quantize: Annotated[str | None, "int8: a quarter of the size; the loss in score is measured."] = None,
    overwrite: Annotated[bool, "Replace the file, and the files saved with it."] = False,
    data_dir: ui.DataDir = None,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Export a model for programs without attendrop."""
    from attendrop.runs.export import export_run

    with ui.messages(quiet=True):
        found = export_run(run, output, format=format_, quantize=quantize, overwrite=overwrite, data_dir=data_dir)
    within = f"On example inputs its logits are within {found['difference']:.1e} of the model's."
    shown = f"Wrote {found['output']}, {ui.size(found['bytes'])}. {within}"
    if (loss := found.get("loss")) is not None:
        before, after = (score_text(loss[when], loss["before"]) for when in ("before", "after"))
        interval = f"95 % interval of the difference: {interval_of(loss['difference'], loss['before'])}"
        scores = f"{loss['metric'].replace('_', ' ')} {before} -> {after} on {loss['rows']} rows of {loss['set']}"
        shown += f"\nint8: {scores} ({interval})."
    ui.show(found, shown, quiet=quiet, as_json=as_json)


@ui.register
def push(
    run: ui.RunFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Repository on the hub, such as user/model.")],
    public: Annotated[bool, "Make a new repository public."] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Upload a model, its tokenizer and its card, on which its scores are, to the Hugging Face hub; nothing else."""
    from attendrop.runs.export import push_run

    with ui.messages(quiet=quiet):
        found = push_run(run, name, public=public)
    ui.show(found, f"{found['url']}: {counted(len(found['files']), 'file')}", quiet=quiet, as_json=as_json)
