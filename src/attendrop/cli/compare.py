"""`attendrop compare`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, Quiet, Workers, app, show, split_columns
from attendrop.cli.console import continued_by, messages
from attendrop.cli.inspect import announce_files
from attendrop.cli.run_options import DATA, Groups, file_argument, one_file, with_run_options
from attendrop.errors import AttendropError
from attendrop.methods.core.declared import check_declared
from attendrop.runs.config import RunConfig

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DATA = Groups(
    *DATA,
    eval_file=("Evaluation data. Default: a part of the training data is set aside.", ""),
    test_fraction=("Instead of --eval-file: the part to set aside.", "0.25"),
)


@app.command()
@with_run_options
def compare(
    *,
    file: Annotated[str | None, file_argument("--train-file")] = None,
    data: Annotated[Mapping[str, Any], _DATA],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare with plain fine-tuning, comma-separated; `attendrop methods` lists them.",
            show_default="those most used",
        ),
    ] = None,
    settings: Annotated[
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
    training: Annotated[Mapping[str, Any], Groups("sample", "score", "length", "start", "optimization")],
    output_dir: Annotated[
        str, typer.Option(help="Folder of the answer; the same command continues there.")
    ] = "comparison",
    workers: Workers = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster to run on: its address, or local.")] = None,
    machine: Annotated[Mapping[str, Any], Groups("machine")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find out what your data should be fine-tuned with.

    Compares methods with plain fine-tuning, and with baselines that need no fine-tuning, on the same rows over several
    seeds. Says what to use, how certain that is, and keeps the model in OUTPUT_DIR/best. Started again, it goes on.
    """
    given = {**data, "train_file": one_file(file, "--train-file", data.get("train_file")), **training, **machine}
    run = {"model": "minilm", "method": "finetune", "output_dir": output_dir, **given}
    names = split_columns(methods)
    points = _points(settings or [], names[-1] if names else "METHOD")
    if names:
        _check_compared(points, names)
    for name in dict.fromkeys([*names, *points]):
        for options in points.get(name, [{}]):
            check_declared(name, options)
    seconds = None if budget is None else read_duration(budget)
    config = RunConfig(**run, on_data=partial(announce_files, quiet=quiet))

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.compare import run_comparison
    from attendrop.studies.comparison import Comparison, default_methods
    from attendrop.studies.executor import LOCAL
    from attendrop.studies.setting_search import MethodSetting
    from attendrop.studies.units import CHEAP

    cheap = CHEAP if baselines is None else () if baselines == "none" else split_columns(baselines)
    names = names or tuple(default_methods())
    _check_compared(points, names)
    comparison = Comparison(
        config=config,
        output_dir=output_dir,
        methods=[MethodSetting(name, options) for name in names for options in points.get(name, [{}])],
        seeds=seeds,
        budget=seconds,
        trials=trials,
        folds=folds,
        baselines=cheap,
    )
    with (
        messages(quiet=quiet) as console,
        closing(StudyProgress(console, quiet=quiet)) as progress,
        continued_by("Interrupted. The same command goes on where it stopped."),
    ):
        backend = LOCAL if ray is None else f"ray:{ray}"
        outcome = run_comparison(comparison, workers=workers, backend=backend, on_event=progress, on_plan=progress.plan)
    show(outcome.as_dict(), "\n".join(outcome.lines()), quiet=quiet, as_json=as_json)


def _points(given: list[str], example: str) -> dict[str, list[dict[str, str]]]:
    """Read the options of each method; one with several values makes a point of each."""
    values: dict[str, dict[str, list[str]]] = {}
    for each in given:
        name, equals, value = (part.strip() for part in each.partition("="))
        method, dot, option = name.partition(".")
        if not (method and dot and option and equals and value):
            raise AttendropError(f"--set {each!r} is not of the form METHOD.NAME=VALUE, such as {example}.p=0.3.")
        values.setdefault(method, {}).setdefault(option, []).append(value)
    return {
        method: [dict(zip(options, point, strict=True)) for point in product(*options.values())]
        for method, options in values.items()
    }


def _check_compared(points: Collection[str], names: Collection[str]) -> None:
    if absent := next((name for name in points if name not in names), None):
        raise AttendropError(f"--set {absent}: method '{absent}' is not compared; add it to --methods.")


def read_duration(text: str) -> float:
    """Read a duration such as ``30m``, ``2h``, ``90s`` or ``1.5h``; returns seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise AttendropError(f"budget {text!r} is not a duration; write 30m, 2h or 90s.")
    return float(match[1]) * _UNITS[match[2]]
