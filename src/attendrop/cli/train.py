"""`attendrop train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attendrop.cli.app import Columns, DataDir, Device, Json, LabelColumn, Quiet, app, show, split_columns
from attendrop.cli.console import messages
from attendrop.cli.interrupts import Interrupted
from attendrop.cli.option_files import read_lora, read_options, read_settings, read_task_set
from attendrop.cli.run_options import (
    BatchSize,
    Bf16,
    ClassWeights,
    Epochs,
    EvalBatchSize,
    Fp16,
    GradientAccumulation,
    HeadStart,
    LabelType,
    LearningRate,
    LongTexts,
    Lora,
    MaxLength,
    MaxSteps,
    MaxTrainSamples,
    MetricName,
    Model,
    Pooling,
    Schedule,
    Shift,
    ShiftColumn,
    Shots,
    SkipBadRowsOfFiles,
    TaskName,
    TaskSet,
    TrainFile,
    UnknownLabels,
    Warmup,
    WeightDecay,
)
from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_METHOD, RunConfig, default_output_dir
from attendrop.runs.presets import preset
from attendrop.runs.run_file import read_run_file


@app.command()
def train(
    task: TaskName = None,
    train_file: TrainFile = None,
    eval_file: Annotated[
        str | None, typer.Option(help="Evaluation data: a file to report on, once, at the end.")
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(help="Instead of --eval-file: fraction of the training data to report on.", show_default="0"),
    ] = None,
    shift: Shift = None,
    shift_column: ShiftColumn = None,
    text_columns: Columns = None,
    label_column: LabelColumn = None,
    label_type: LabelType = None,
    task_options: TaskSet = None,
    data_dir: DataDir = None,
    skip_bad_rows: SkipBadRowsOfFiles = None,
    unknown_labels: UnknownLabels = None,
    model: Model = None,
    method: Annotated[
        str | None,
        typer.Option(help="`attendrop methods` lists them; finetune is the baseline.", show_default=DEFAULT_METHOD),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the method.")] = None,
    options_: Annotated[
        str | None,
        typer.Option("--options", metavar="FILE", help="JSON file of the method's options; --set overrides it."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="YAML file of these options, such as a run's run.yaml.")
    ] = None,
    preset_: Annotated[
        str | None, typer.Option("--preset", help="paper: training settings of the method's paper.")
    ] = None,
    output_dir: Annotated[str | None, typer.Option(show_default="runs/TASK-METHOD-seedSEED")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last complete checkpoint.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the folder when this one is complete.")
    ] = False,
    pooling: Pooling = None,
    head_start: HeadStart = None,
    lora: Lora = None,
    epochs: Epochs = None,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = None,
    eval_batch_size: EvalBatchSize = None,
    gradient_accumulation: GradientAccumulation = None,
    learning_rate: LearningRate = None,
    weight_decay: WeightDecay = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    max_length: MaxLength = None,
    long_texts: LongTexts = None,
    max_train_samples: MaxTrainSamples = None,
    shots: Shots = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="honest: select the epoch on held-out training data; paper: on the development set.",
            show_default="honest",
        ),
    ] = None,
    selection_fraction: Annotated[
        float | None,
        typer.Option(
            help="Fraction of training data to hold out for selecting the epoch; 0 keeps the last.",
            show_default="0, or 0.1 without evaluation data",
        ),
    ] = None,
    refit: Annotated[
        bool | None,
        typer.Option("--refit/--no-refit", help="Train again, also on the rows held out.", show_default="if any are"),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option("--patience", "--early-stopping", help="Stop after this many epochs without improvement."),
    ] = None,
    metric: MetricName = None,
    class_weights: ClassWeights = None,
    report_to: Annotated[
        str | None, typer.Option(help="tensorboard, wandb, trackio or mlflow.", show_default="none")
    ] = None,
    logging_steps: Annotated[int | None, typer.Option(help="Number of steps between logs.")] = None,
    save_steps: Annotated[int | None, typer.Option(help="Number of steps between additional checkpoints.")] = None,
    seed: Annotated[
        str | None, typer.Option(help="Several, such as 0,1,2: a run for each, and their mean.", show_default="0")
    ] = None,
    device: Device = None,
    bf16: Bf16 = None,
    fp16: Fp16 = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model, and save it with its scores."""
    given = {name: value for name, value in locals().items() if value is not None}
    run, seeds = _read_run(given)

    from attendrop.cli.progress import TrainingProgress
    from attendrop.cli.training_summary import run_summary, seeds_summary
    from attendrop.runs.seeds import train_seeds
    from attendrop.runs.train import train as train_run

    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        watching = [] if quiet else [progress]
        try:
            if len(seeds) == 1:
                found = train_run(run, resume=resume, overwrite=overwrite, callbacks=watching)
            else:
                found = train_seeds(run, seeds, resume=resume, overwrite=overwrite, callbacks=watching)
        except KeyboardInterrupt:
            instead = " instead of --overwrite" if overwrite else ""
            raise Interrupted(
                f"Interrupted. Run the same command with --resume{instead} to continue from the last checkpoint in "
                f"{run.output_dir}."
            ) from None
        finally:
            progress.close()
    show(found, (run_summary if len(seeds) == 1 else seeds_summary)(found), quiet=quiet, as_json=as_json)


_FIELDS = tuple(field.name for field in dataclasses.fields(RunConfig))


def _read_run(given: Mapping[str, Any]) -> tuple[RunConfig, list[int]]:
    """Make the configuration of the run and the list of seeds.

    Options on the command line override those of the ``--config`` file, which override a preset's.
    """
    file = read_run_file(given["config"]) if "config" in given else {}
    line = {name: given[name] for name in _FIELDS if name in given}
    if "text_columns" in line:
        line["text_columns"] = split_columns(line["text_columns"])
    if "lora" in line:
        line["lora"] = file.get("lora", {}) | read_lora(line["lora"])
    if "task_options" in line:
        line["task_options"] = file.get("task_options", {}) | read_task_set(line["task_options"])
    options = {"model": "minilm", "method": DEFAULT_METHOD, **file, **line}
    method = options["method"]
    named = given.get("preset_", options.pop("preset", None))
    of_preset = {} if named is None else preset(named, options.get("task"), method)
    options = of_preset | options
    if "epochs" in line and "max_steps" not in line:
        options.pop("max_steps", None)  # of a file or a preset, which would have the last word
    of_method = dict(of_preset.get("options", {}))
    if file.get("method", DEFAULT_METHOD) == method:  # options of another method do not apply
        of_method |= file.get("options", {})
    if "options_" in given:
        of_method |= read_options(given["options_"], method)
    seeds = _seeds(line.get("seed", file.get("seed", [0])))
    options |= {"options": of_method | read_settings(given.get("set_", [])), "seed": seeds[0]}
    options.setdefault("output_dir", default_output_dir(options.get("task"), options.get("train_file"), method, seeds))
    return RunConfig(**options), seeds


def _seeds(given: str | list[int]) -> list[int]:
    try:
        return [int(seed) for seed in given.split(",")] if isinstance(given, str) else given
    except ValueError:
        raise AttendropError(f"seed must be a whole number, or several such as 0,1,2, not {given!r}.") from None
