"""`attendrop compare`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendrop.cli.app import Columns, DataDir, Device, Json, LabelColumn, Quiet, app, show, split_columns
from attendrop.cli.option_files import read_lora, read_task_set
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

if TYPE_CHECKING:
    from attendrop.studies.setting_search import MethodSetting

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Options that are not of each run.
_OF_COMPARISON = ("methods", "set_", "seeds", "budget", "trials", "folds", "baselines")
_OF_COMMAND = ("workers", "ray", "quiet", "as_json")


@app.command()
def compare(
    task: TaskName = None,
    train_file: TrainFile = None,
    eval_file: Annotated[
        str | None, typer.Option(help="Evaluation data. Default: a part of the training data is set aside.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Instead of --eval-file: the part to set aside.", show_default="0.25")
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
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare with plain fine-tuning, comma-separated; `attendrop methods` lists them.",
            show_default="those most used",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            help="Option of a method; it is then not searched. Given again with another value: both are compared.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each method.")] = 5,
    budget: Annotated[str | None, typer.Option(help="Time limit, such as 30m or 2h.")] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Settings to try of each method, learning rates among them.", show_default="what fits into the budget"
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Selection splits on which settings are scored.")] = 3,
    baselines: Annotated[str | None, typer.Option(help="Comma-separated, or none.", show_default="all")] = None,
    max_train_samples: MaxTrainSamples = None,
    shots: Shots = None,
    metric: MetricName = None,
    class_weights: ClassWeights = None,
    max_length: MaxLength = None,
    long_texts: LongTexts = None,
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
    output_dir: Annotated[
        str, typer.Option(help="Folder of the answer; the same command continues there.")
    ] = "comparison",
    workers: Annotated[
        int | None, typer.Option(help="Number of processes; 0: only this one.", show_default="one per GPU or core")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster to run on: its address, or local.")] = None,
    device: Device = None,
    bf16: Bf16 = None,
    fp16: Fp16 = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find out what your data should be fine-tuned with.

    Compares methods with plain fine-tuning, and with baselines that need no fine-tuning, on the same rows over several
    seeds. Says what to use, how certain that is, and keeps the model in OUTPUT_DIR/best. Started again, it goes on.
    """
    given = {name: value for name, value in locals().items() if value is not None}

    from attendrop.cli.console import messages
    from attendrop.cli.interrupts import Interrupted
    from attendrop.cli.study_progress import StudyProgress
    from attendrop.studies.compare import run_comparison
    from attendrop.studies.comparison import Comparison
    from attendrop.studies.executor import LOCAL

    comparison = Comparison(**_comparison(given))
    with messages(quiet=quiet) as console:
        progress = StudyProgress(console, 0, quiet=quiet)
        try:
            outcome = run_comparison(
                comparison,
                workers=workers,
                backend=LOCAL if ray is None else f"ray:{ray}",
                on_event=progress,
                on_plan=progress.plan,
            )
        except KeyboardInterrupt:
            raise Interrupted("Interrupted. The same command goes on where it stopped.") from None
        finally:
            progress.close()
    show(outcome.as_dict(), "\n".join(outcome.lines()), quiet=quiet, as_json=as_json)


def _comparison(given: Mapping[str, Any]) -> dict[str, Any]:
    """Make the arguments of the comparison from the options that are given."""
    from attendrop.runs.config import RunConfig
    from attendrop.studies.comparison import default_methods

    run = {name: value for name, value in given.items() if name not in _OF_COMPARISON + _OF_COMMAND}
    run["text_columns"] = split_columns(given.get("text_columns"))
    if "lora" in run:
        run["lora"] = read_lora(run["lora"])
    if "task_options" in run:
        run["task_options"] = read_task_set(run["task_options"])
    run = {"model": "minilm", "method": "finetune"} | run
    names = split_columns(given.get("methods")) or tuple(default_methods())
    found: dict[str, Any] = {"config": RunConfig(**run), "output_dir": given["output_dir"]}
    found["methods"] = _settings(names, given.get("set_", []))
    found |= {name: given[name] for name in ("seeds", "trials", "folds") if name in given}
    if "budget" in given:
        found["budget"] = read_duration(given["budget"])
    if "baselines" in given:
        found["baselines"] = () if given["baselines"] == "none" else split_columns(given["baselines"])
    return found


def _settings(names: tuple[str, ...], given: list[str]) -> list[MethodSetting]:
    """Make the settings of methods; an option with several values makes a setting of each."""
    from attendrop.studies.setting_search import MethodSetting

    values: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for each in given:
        name, equals, value = (part.strip() for part in each.partition("="))
        method, dot, option = name.partition(".")
        if not (method and dot and option and equals and value):
            raise AttendropError(f"--set {each!r} is not of the form METHOD.NAME=VALUE, such as {names[-1]}.p=0.3.")
        if method not in values:
            raise AttendropError(f"--set {each!r}: method '{method}' is not compared; add it to --methods.")
        values[method].setdefault(option, []).append(value)
    return [
        MethodSetting(method, dict(zip(options, point, strict=True)))
        for method, options in values.items()
        for point in product(*options.values())
    ]


def read_duration(text: str) -> float:
    """Read a duration such as ``30m``, ``2h``, ``90s`` or ``1.5h``; returns seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise AttendropError(f"budget {text!r} is not a duration; write 30m, 2h or 90s.")
    return float(match[1]) * _UNITS[match[2]]
