"""`attendrop compare`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, Quiet, Ray, Workers, app, show
from attendrop.cli.console import messages
from attendrop.cli.inspect import announce_files
from attendrop.cli.run_options import DATA, Groups, file_argument, one_file, with_run_options
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, checked, names
from attendrop.studies.comparison import Comparison, MethodSetting, default_methods
from attendrop.studies.units import REFERENCE, check_evaluation, check_workers

_DATA = Groups(
    *DATA,
    eval_file=("Evaluation data. Default: part of the training data is held out.", ""),
    test_fraction=("Instead of --eval-file: the fraction to hold out.", "0.25"),
)


@app.command()
@with_run_options
def compare(
    *,
    file: Annotated[str | None, file_argument("--train-file")] = None,
    data: Annotated[Mapping[str, Any], _DATA],
    compared: Annotated[Mapping[str, Any], Groups("methods", of=Comparison)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            help="Option of a method, which is then not tuned. Repeat it with another value to compare both.",
        ),
    ] = None,
    search: Annotated[Mapping[str, Any], Groups("search", of=Comparison)],
    training: Annotated[Mapping[str, Any], Groups("sample", "score", "length", "start", "optimization")],
    output: Annotated[Mapping[str, Any], Groups("output", of=Comparison)],
    workers: Workers = None,
    ray: Ray = None,
    machine: Annotated[Mapping[str, Any], Groups("machine")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find out what your data should be fine-tuned with.

    Compares methods with plain fine-tuning, and with baselines that need no fine-tuning, on the same rows over several
    seeds. Says what to use, how certain that is, and keeps the model in OUTPUT_DIR/best. When run again, it resumes.
    """
    if ray is None:
        check_workers(workers)
    train_file = one_file(file, "--train-file", data.get("train_file"))
    run = {"model": "minilm", "method": REFERENCE, "output_dir": "", **data, **training, **machine}
    named = names(compared.get("methods", ""))
    points = _points(settings or [], named[-1] if named else "METHOD")
    if named:
        _check_compared(points, named)
    search = {name: checked(Comparison, name, value) for name, value in search.items()}
    run |= {"train_file": train_file}
    check_evaluation(run)
    config = RunConfig(**run, on_data=partial(announce_files, quiet=quiet))
    named = named or tuple(default_methods())
    _check_compared(points, named)
    methods = [MethodSetting(name, options) for name in named for options in points.get(name, [{}])]
    comparison = Comparison(config=config, methods=methods, **search, **output)

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.compare import run_comparison
    from attendrop.studies.executor import LOCAL

    with messages(quiet=quiet) as console, closing(StudyProgress(console, quiet=quiet)) as progress:
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
