"""All commands but `train`: evaluate, predict, runs, patterns, prune, export, methods, tasks, doctor, demo."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from attendrop.cli.app import Columns, DataDir, Device, Json, LabelColumn, Quiet, RunFolder, app, show, split_columns
from attendrop.cli.console import aligned, messages
from attendrop.errors import AttendropError
from attendrop.runs.source import STDIN, Source

InputFormat = Annotated[str | None, typer.Option(help="Of stdin: csv, tsv or jsonl.", show_default="csv")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out unusable rows, and list them.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist; those that are read, never.")]
SkippedFile = Annotated[str | None, typer.Option(help="Where bad rows are listed, JSON lines.")]


@app.command()
def evaluate(
    run: RunFolder,
    task: Annotated[str | None, typer.Option(help="Name of a task. Default: the run's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Of the task.", show_default="dev")] = None,
    data_dir: DataDir = None,
    eval_file: Annotated[str | None, typer.Option(help="One's own file instead of a task; - is stdin.")] = None,
    text_columns: Columns = None,
    label_column: LabelColumn = None,
    input_format: InputFormat = None,
    skip_bad_rows: SkipBadRows = False,
    skipped_file: SkippedFile = None,
    overwrite: Overwrite = False,
    max_length: Annotated[int | None, typer.Option(show_default="as in training")] = None,
    batch_size: Annotated[int, typer.Option()] = 64,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score the model of a run on labelled data."""
    source = Source(
        task=task, data_dir=data_dir, split=split, file=eval_file, text_columns=split_columns(text_columns),
        label_column=label_column, input_format=input_format, skip_bad_rows=skip_bad_rows, skipped_file=skipped_file,
        overwrite=overwrite, max_length=max_length, batch_size=batch_size, device=device or "auto",
    )  # fmt: skip

    from attendrop.cli.progress import row_progress
    from attendrop.runs.infer import evaluate as evaluate_run

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = evaluate_run(run, source, progress)
    lines = {"data": f"{found['task']}, {found['split']}: {found['rows']} rows ({found['source']})"}
    lines |= {name.replace("_", " "): f"{value:.4f}" for name, value in found["all_scores"].items()}
    show(found, aligned(lines), quiet=quiet, as_json=as_json)


@app.command()
def predict(
    run: RunFolder,
    output: Annotated[str, typer.Option(help="A .tsv, .csv or .jsonl file; - is stdout.")],
    task: Annotated[str | None, typer.Option(help="Name of a task. Default: the run's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Of the task.", show_default="test")] = None,
    data_dir: DataDir = None,
    predict_file: Annotated[str | None, typer.Option(help="One's own file instead of a task; - is stdin.")] = None,
    text_columns: Columns = None,
    input_format: InputFormat = None,
    output_format: Annotated[
        str | None, typer.Option(help="csv, tsv or jsonl.", show_default="by the extension; csv on stdout")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Write those of all classes.")] = False,
    keep_columns: Annotated[bool, typer.Option("--keep-columns", help="Write the columns of the file, too.")] = False,
    skip_bad_rows: SkipBadRows = False,
    skipped_file: SkippedFile = None,
    overwrite: Overwrite = False,
    max_length: Annotated[int | None, typer.Option(show_default="as in training")] = None,
    batch_size: Annotated[int, typer.Option()] = 64,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    source = Source(
        task=task, data_dir=data_dir, split=split, file=predict_file, text_columns=split_columns(text_columns),
        input_format=input_format, skip_bad_rows=skip_bad_rows,
        skipped_file=skipped_file or (f"{output}.skipped.jsonl" if skip_bad_rows and output != STDIN else None),
        overwrite=overwrite, max_length=max_length, batch_size=batch_size, device=device or "auto",
    )  # fmt: skip
    if as_json and output == STDIN:
        raise AttendropError("--json and --output - both write on stdout; choose one.")

    from attendrop.cli.progress import row_progress
    from attendrop.runs.infer import predict as predict_rows

    with messages(quiet=quiet) as console, row_progress(console, quiet=quiet) as progress:
        found = predict_rows(
            run, source, output, format=output_format, probabilities=probabilities, keep_columns=keep_columns,
            on_progress=progress,
        )  # fmt: skip
    shown = f"Wrote {found['rows']} prediction{'s' if found['rows'] != 1 else ''} to {output}."
    show(found, shown, quiet=quiet or output == STDIN, as_json=as_json)


@app.command()
def runs(
    folder: Annotated[str, typer.Argument(help="The folder to look in, and below.")] = "runs",
    as_json: Json = False,
) -> None:
    """List the runs in a folder with their scores."""
    from attendrop.runs.listing import list_runs

    found = list_runs(folder)
    table = Table(Column("run", overflow="fold"), "model", "task", "method", "seed", "metric", "selection", "dev")
    for run in found:
        scores = ("-" if run[name] is None else f"{run[name]:.4f}" for name in ("selection_score", "score"))
        state = "" if run["finished"] else " (unfinished)"
        method = f"{run['method']}, pruned" if run["pruned"] else run["method"]
        model = Path(run["model"]).name
        table.add_row(
            run["folder"] + state, model, run["task"], method, str(run["seed"]), run["metric"] or "-", *scores
        )
    show(found, table if found else f"There is no run in {folder}.", as_json=as_json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain it, or each of a+b: options and source.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, which may be combined (ad-drop+r-drop), or explain one."""
    from attendrop.cli.explain import explanation
    from attendrop.methods import build_method, get_method, method_names
    from attendrop.methods.options import described

    names = method_names() if name is None else [part.strip() for part in name.split("+")]
    classes = [get_method(each) for each in names]
    if name is not None and len(classes) > 1:
        build_method(name)  # says so if they cannot be combined
    found = [
        {"name": m.name, "summary": m.summary, "acts_on": list(m.facts.acts_on), "paper": m.paper}
        | {"options": described(m)}
        for m in classes
    ]
    table = Table(Column("method", no_wrap=True), "what it does", Column("source", no_wrap=True))
    for m in classes:
        authors, year, _ = m.paper.partition(")")  # the title stands in what explains a method
        table.add_row(m.name, m.summary, authors + year)
    show(found, table if name is None else "\n\n".join(map(explanation, classes)), as_json=as_json)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks with their labels and metrics."""
    from attendrop.tasks import get_task, task_names

    found = [dataclasses.asdict(get_task(name)) for name in task_names()]
    table = Table("task", "what it asks", "labels", "metric")
    for row in found:
        metrics = "\n".join((row["metric"], *row["other_metrics"])).replace("_", " ")
        table.add_row(row["name"], row["description"], "\n".join(row["label_names"]) or "a number", metrics)
    show(found, table, as_json=as_json)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="minilm, a folder, or a hub id; weights are not loaded.")],
    as_json: Json = False,
) -> None:
    """Say whether a model is supported, and which attention layers were found."""
    from attendrop.cli.doctor import examine

    with messages(quiet=True):
        found = examine(model)
    lines = {
        "model": f"{model} ({found['architecture']})",
        "supported": "yes" if found["supported"] else f"no: {found['reason']}",
        "to train": "`attendrop train` can"
        if found["trainable"]
        else "not by `attendrop train`: it has no classification head",
    }
    for kind in dict.fromkeys(site["kind"] for site in found["sites"]):
        names = [site["name"] for site in found["sites"] if site["kind"] == kind]
        lines[f"{kind} attention"] = f"{len(names)} layers: {names[0]} ... {names[-1]}"
    if found["not_run"]:
        names = found["not_run"]
        lines["not tried"] = f"{len(names)} layers, which the made-up input does not reach: {names[0]} ... {names[-1]}"
    show(found, aligned(lines), as_json=as_json)
    raise typer.Exit(0 if found["supported"] else 2)


@app.command()
def demo(
    output_dir: Annotated[
        str, typer.Option(help="Folder for the runs; finished ones are not run again.")
    ] = "attendrop-demo",
    model: Annotated[str, typer.Option(help="minilm, a folder, or a hub id.")] = "minilm",
    seeds: Annotated[int, typer.Option(help="How many.")] = 3,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare plain fine-tuning with AD-DROP on a small generated grammar: a few minutes on two cores."""
    if seeds < 1:
        raise AttendropError(f"seeds must be at least 1, not {seeds}.")

    from attendrop.cli.demo import demo_reading, demo_table, run_demo
    from attendrop.cli.progress import TrainingProgress

    start = time.monotonic()
    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        try:
            found = run_demo(output_dir, model=model, seeds=seeds, callbacks=[] if quiet else [progress])
        finally:
            progress.close()
    found["seconds"] = round(time.monotonic() - start, 1)
    show(found["summary"] if quiet else found, demo_table(found["summary"]), as_json=as_json)
    if not as_json:
        print(demo_reading(found, output_dir))


@app.command()
def patterns(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run of method attendout.")],
    fit: Annotated[
        int | None, typer.Option(help="Fit a schedule of so many linear pieces.", show_default="none")
    ] = None,
    output: Annotated[str | None, typer.Option(help="The picture, PNG.", show_default="RUN/patterns.png")] = None,
    options: Annotated[
        str | None, typer.Option(help="Where to write the fit, JSON.", show_default="RUN/scheduler.json")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Draw what AttendOut learnt to drop, and fit a schedule to it for the method scheduler."""
    from attendrop.cli.patterns import show_patterns

    found, shown = show_patterns(run, fit, output, options, overwrite=overwrite)
    show(found, shown, as_json=as_json)


@app.command()
def prune(
    run: RunFolder,
    output_dir: Annotated[str, typer.Option(help="A new folder for the pruned model.")],
    layers: Annotated[
        str, typer.Option(help="auto; a count (4); a list (0,3,5, or 4, for one); a threshold on pi ('>=0.8').")
    ] = "auto",
    tolerance: Annotated[float, typer.Option(help="With auto: how much of the selection score it may cost.")] = 0.0,
    recover_epochs: Annotated[int, typer.Option(help="Fine-tune for so many epochs afterwards.")] = 0,
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make the attention of some layers constant, and the model smaller and faster."""
    from attendrop.cli.progress import TrainingProgress
    from attendrop.cli.prune import prune_summary
    from attendrop.runs.prune import prune_run

    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        on_pass, callbacks = (None, []) if quiet else (progress.show, [progress])
        try:
            found = prune_run(
                run, output_dir, layers=layers, tolerance=tolerance, recover_epochs=recover_epochs, data_dir=data_dir,
                device=device or "auto", on_pass=on_pass, callbacks=callbacks,
            )  # fmt: skip
        finally:
            progress.close()
    show(found, prune_summary(found), quiet=quiet, as_json=as_json)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run, or of a pruned model.")],
    output: Annotated[str, typer.Option(help="The file, or a folder for model.onnx; its tokenizer comes beside it.")],
    format_: Annotated[str, typer.Option("--format", help="onnx or torch (torch.export).")] = "onnx",
    quantize: Annotated[
        str | None, typer.Option(help="int8: a quarter of the size; what it costs in score is measured.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file, and what lies beside it.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a model for other programs; they need nothing of attendrop."""
    from attendrop.cli.prune import export_summary
    from attendrop.runs.export import export_run

    with messages(quiet=True):
        found = export_run(run, output, format=format_, quantize=quantize, overwrite=overwrite, data_dir=data_dir)
    show(found, export_summary(found), quiet=quiet, as_json=as_json)
