"""The commands: train, evaluate, predict, patterns, prune, export, methods, tasks, doctor, demo."""

from __future__ import annotations

import dataclasses
import inspect
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from attendrop import __version__
from attendrop.cli.console import TrainingProgress, aligned, messages, run_summary
from attendrop.cli.demo import METHODS, SETS, run_demo
from attendrop.cli.doctor import examine
from attendrop.cli.options import read_options
from attendrop.cli.patterns import show_patterns
from attendrop.cli.prune import export_run, prune_summary
from attendrop.errors import AttendropError
from attendrop.methods import get_method, method_names
from attendrop.runs.config import RunConfig, preset
from attendrop.runs.folder import is_main_process
from attendrop.runs.infer import Source
from attendrop.runs.infer import evaluate as evaluate_run
from attendrop.runs.infer import predict as predict_rows
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train as train_run
from attendrop.tasks import get_task, task_names

app = typer.Typer(
    help="Fine-tune pre-trained transformers on small data without overfitting, by regularising attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
DataDir = Annotated[str | None, typer.Option(help="Folder of GLUE files. Default: $ATTENDROP_DATA, then the hub.")]
Columns = Annotated[str | None, typer.Option(help="Text column of one's own files, or two with a comma between.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of one's own files to learn.")]
Device = Annotated[str | None, typer.Option(help="auto or cpu.", show_default="auto")]
RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    task: Annotated[str | None, typer.Option(help="Name of a task; `attendrop tasks` lists them.")] = None,
    train_file: Annotated[str | None, typer.Option(help="One's own .csv, .tsv, .jsonl or .parquet file.")] = None,
    eval_file: Annotated[str | None, typer.Option(help="One's own file to report on, once, at the end.")] = None,
    text_columns: Columns = None,
    label_column: LabelColumn = None,
    label_type: Annotated[str | None, typer.Option(help="auto, class or number.", show_default="auto")] = None,
    data_dir: DataDir = None,
    model: Annotated[str, typer.Option(help="minilm, a folder, or a hub id.")] = "minilm",
    method: Annotated[str, typer.Option(help="`attendrop methods` lists them; finetune is the baseline.")] = "ad-drop",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the method.")] = None,
    options_: Annotated[
        str | None,
        typer.Option("--options", metavar="FILE", help="JSON file of the method's options; --set goes over it."),
    ] = None,
    preset_: Annotated[str | None, typer.Option("--preset", help="paper: training as in the paper.")] = None,
    output_dir: Annotated[str | None, typer.Option(show_default="runs/TASK-METHOD-seedSEED")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last complete checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run that the folder holds.")] = False,
    epochs: Annotated[int | None, typer.Option(show_default="4")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps, not by epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per process.", show_default="32")] = None,
    eval_batch_size: Annotated[int | None, typer.Option(show_default="64")] = None,
    gradient_accumulation: Annotated[int | None, typer.Option(help="Batches per step.", show_default="1")] = None,
    learning_rate: Annotated[float | None, typer.Option(show_default="5e-5")] = None,
    weight_decay: Annotated[float | None, typer.Option(show_default="0.01")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, constant or cosine.", show_default="linear")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of all steps.", show_default="0.1")] = None,
    max_length: Annotated[int | None, typer.Option(help="In tokens.", show_default="128")] = None,
    max_train_samples: Annotated[int | None, typer.Option(help="Use so many training rows.")] = None,
    shots: Annotated[int | None, typer.Option(help="Use so many training rows of each class.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="honest: choose the epoch on training data set aside; paper: on the development set.",
            show_default="honest",
        ),
    ] = None,
    selection_fraction: Annotated[
        float | None, typer.Option(help="Share of training data set aside; 0 keeps the last epoch.", show_default="0.1")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option("--patience", "--early-stopping", help="Stop after so many epochs without a better one."),
    ] = None,
    save_steps: Annotated[int | None, typer.Option(help="Checkpoints also every so many steps.")] = None,
    seed: Annotated[int | None, typer.Option(show_default="0")] = None,
    device: Device = None,
    bf16: Annotated[bool | None, typer.Option("--bf16", help="bfloat16 mixed precision.")] = None,
    fp16: Annotated[bool | None, typer.Option("--fp16", help="float16 mixed precision; needs a GPU.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model, and leave it with its scores in a folder."""
    given = {name: value for name, value in locals().items() if value is not None}
    options = {name: given[name] for name in _CONFIG if name in given}
    options |= {"text_columns": _columns(text_columns)} if text_columns is not None else {}
    if preset_ is not None:
        options = preset(preset_, task, method) | options
    from_file = read_options(options_, method) if options_ is not None else {}
    options["options"] = dict(options.get("options", {})) | from_file | _settings(set_ or [])
    named = task or Path(train_file or "").stem
    options.setdefault("output_dir", f"runs/{named}-{method}-seed{seed or 0}")
    config = RunConfig(**options)
    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        try:
            metrics = train_run(config, resume=resume, overwrite=overwrite, callbacks=[] if quiet else [progress])
        except KeyboardInterrupt:
            progress.close()
            console.print(
                f"Interrupted. The same command with --resume goes on from the last checkpoint in {config.output_dir}."
            )
            raise typer.Exit(130) from None
        finally:
            progress.close()
    _show(metrics, run_summary(metrics), quiet=quiet, as_json=as_json)


_CONFIG = tuple(field.name for field in dataclasses.fields(RunConfig))


@app.command()
def evaluate(
    run: RunFolder,
    task: Annotated[str | None, typer.Option(help="Name of a task. Default: the run's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Of the task.", show_default="dev")] = None,
    data_dir: DataDir = None,
    eval_file: Annotated[str | None, typer.Option(help="One's own file instead of a task.")] = None,
    text_columns: Columns = None,
    label_column: LabelColumn = None,
    max_length: Annotated[int | None, typer.Option(show_default="as in training")] = None,
    batch_size: Annotated[int, typer.Option()] = 64,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score the model of a run on labelled data."""
    source = Source(
        task=task, data_dir=data_dir, split=split, file=eval_file, text_columns=_columns(text_columns),
        label_column=label_column, max_length=max_length, batch_size=batch_size, device=device or "auto",
    )  # fmt: skip
    with messages(quiet=quiet):
        found = evaluate_run(run, source)
    lines = {"data": f"{found['task']}, {found['split']}: {found['rows']} rows ({found['source']})"}
    lines |= {name.replace("_", " "): f"{value:.4f}" for name, value in found["all_scores"].items()}
    _show(found, aligned(lines), quiet=quiet, as_json=as_json)


@app.command()
def predict(
    run: RunFolder,
    output: Annotated[str, typer.Option(help="A .tsv, .csv or .jsonl file.")],
    task: Annotated[str | None, typer.Option(help="Name of a task. Default: the run's own.")] = None,
    split: Annotated[str | None, typer.Option(help="Of the task.", show_default="test")] = None,
    data_dir: DataDir = None,
    predict_file: Annotated[str | None, typer.Option(help="One's own file instead of a task.")] = None,
    text_columns: Columns = None,
    max_length: Annotated[int | None, typer.Option(show_default="as in training")] = None,
    batch_size: Annotated[int, typer.Option()] = 64,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a prediction for every row; for GLUE tasks in the format of a submission."""
    source = Source(
        task=task, data_dir=data_dir, split=split, file=predict_file, text_columns=_columns(text_columns),
        max_length=max_length, batch_size=batch_size, device=device or "auto",
    )  # fmt: skip
    with messages(quiet=quiet):
        found = predict_rows(run, source, output)
    _show(found, f"Wrote {found['rows']} predictions to {output}.", quiet=quiet, as_json=as_json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one: what it does, its options, its source.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, which may be combined (ad-drop+r-drop), or explain one."""
    classes = [get_method(each) for each in ([name] if name is not None else method_names())]
    found = [
        {"name": m.name, "summary": m.summary, "acts_on": list(m.facts.acts_on), "paper": m.paper}
        | {"options": m().options()}
        for m in classes
    ]
    table = Table(Column("method", no_wrap=True), "what it does", Column("source", no_wrap=True))
    for m in classes:
        authors, year, _ = m.paper.partition(")")  # the title stands in what explains a method
        table.add_row(m.name, m.summary, authors + year)
    explained = "" if name is None else f"{name}: {classes[0].summary}\n\n{inspect.cleandoc(classes[0].__doc__ or '')}"
    _show(found, explained or table, as_json=as_json)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks with their labels and metrics."""
    found = [dataclasses.asdict(get_task(name)) for name in task_names()]
    table = Table("task", "what it asks", "labels", "metric")
    for row in found:
        metrics = "\n".join((row["metric"], *row["other_metrics"])).replace("_", " ")
        table.add_row(row["name"], row["description"], "\n".join(row["label_names"]) or "a number", metrics)
    _show(found, table, as_json=as_json)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="minilm, a folder, or a hub id; weights are not loaded.")],
    as_json: Json = False,
) -> None:
    """Say whether a model is supported, and which attention layers were found."""
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
    _show(found, aligned(lines), as_json=as_json)
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
    start = time.monotonic()
    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        try:
            found = run_demo(output_dir, model=model, seeds=seeds, callbacks=[] if quiet else [progress])
        finally:
            progress.close()
    found["seconds"] = round(time.monotonic() - start, 1)
    _show(found["summary"] if quiet else found, _demo_table(found["summary"]), as_json=as_json)
    if not as_json:
        print(_demo_reading(found, output_dir))


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
    as_json: Json = False,
) -> None:
    """Draw what AttendOut learnt to drop, and fit a schedule to it for the method scheduler."""
    found, shown = show_patterns(run, fit, output, options)
    _show(found, shown, as_json=as_json)


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
    with messages(quiet=quiet):
        found = prune_run(
            run, output_dir, layers=layers, tolerance=tolerance, recover_epochs=recover_epochs, data_dir=data_dir,
            device=device or "auto",
        )  # fmt: skip
    _show(found, prune_summary(found), quiet=quiet, as_json=as_json)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run, or of a pruned model.")],
    output: Annotated[str, typer.Option(help="The file.")],
    format_: Annotated[str, typer.Option("--format", help="onnx or torch (torch.export).")] = "onnx",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a model for other programs; they need nothing of attendrop."""
    with messages(quiet=True):
        found = export_run(run, format_, output)
    _show(found, f"Wrote {output}, {found['bytes'] / 2**20:.0f} MiB.", quiet=quiet, as_json=as_json)


def _demo_table(summary: dict[str, Any]) -> Table:
    table = Table(
        "set", "method", "accuracy, mean ± std", "n", "each seed", title="grammar: is the sentence acceptable?"
    )
    for part in SETS:
        for name, row in summary[part].items():
            sign = "+" if name == "difference" else ""
            spread = "" if row["std"] is None else f" ± {row['std']:.4f}"
            each = "  ".join(f"{value:{sign}.4f}" for value in row["values"])
            label = f"{METHODS[1]} − {METHODS[0]}" if name == "difference" else name
            table.add_row(
                part, label, f"{row['mean']:{sign}.4f}{spread}", str(row["n"]), each, end_section=name == "difference"
            )
    return table


def _demo_reading(found: dict[str, Any], folder: str) -> str:
    seeds = len(found["results"]) // len(METHODS)
    count = "One seed is one seed: it says nothing about the next." if seeds == 1 else f"{seeds} seeds are few."
    rows = found["results"][0]["data"]["rows"]["dev"]
    return (
        f"dev: {rows} sentences like the training ones; ood: as many with longer dependencies.\n"
        "Both methods had the same rows, batches and steps; epochs were chosen on training rows set aside for it,\n"
        "and each set was scored once. The learning rate suits plain fine-tuning; AD-DROP's p and q are its defaults.\n"
        f"{count} The sentences come from one small artificial grammar. So this shows that the method runs\n"
        "and how results are reported, not that one method is better than the other on other data.\n"
        f"{found['seconds']:.0f} s; the runs are in {folder}."
    )


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _settings(pairs: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise AttendropError(f"--set takes NAME=VALUE, such as p=0.3, not {pair!r}.")
        if name in settings:
            raise AttendropError(f"--set gives {name} twice.")
        settings[name] = value
    return settings


def _show(found: Any, shown: str | Table, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print a result: JSON, or for people; only in the main process."""
    if not is_main_process():
        return
    if as_json:
        print(json.dumps(found, indent=2))
    elif isinstance(shown, str) and not quiet:
        print(shown)
    elif not quiet:
        Console(highlight=False).print(shown)
