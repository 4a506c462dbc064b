"""`attendrop train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from attendrop.cli.app import Columns, DataDir, Device, Json, LabelColumn, Quiet, app, show, split_columns
from attendrop.cli.console import messages
from attendrop.cli.options import read_options
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, preset


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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder's run, when this one is complete.")
    ] = False,
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
    options |= {"text_columns": split_columns(text_columns)} if text_columns is not None else {}
    if preset_ is not None:
        options = preset(preset_, task, method) | options
    from_file = read_options(options_, method) if options_ is not None else {}
    options["options"] = dict(options.get("options", {})) | from_file | _settings(set_ or [])
    named = task or Path(train_file or "").stem
    options.setdefault("output_dir", f"runs/{named}-{method}-seed{seed or 0}")
    config = RunConfig(**options)

    from attendrop.cli.progress import TrainingProgress
    from attendrop.cli.summary import run_summary
    from attendrop.runs.train import train as train_run

    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        try:
            metrics = train_run(config, resume=resume, overwrite=overwrite, callbacks=[] if quiet else [progress])
        except KeyboardInterrupt:
            progress.close()
            instead = " instead of --overwrite" if overwrite else ""
            console.print(
                f"Interrupted. The same command with --resume{instead} goes on from the last checkpoint in "
                f"{config.output_dir}."
            )
            raise typer.Exit(130) from None
        finally:
            progress.close()
    show(metrics, run_summary(metrics), quiet=quiet, as_json=as_json)


_CONFIG = tuple(field.name for field in dataclasses.fields(RunConfig))


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
