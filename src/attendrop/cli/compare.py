"""`attendrop compare` and `attendrop study`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.cli.inspect import announce_files
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, checked, names
from attendrop.studies.comparison import Comparison, MethodSetting, default_methods
from attendrop.studies.executor import LOCAL, RAY, REFERENCE, REPORTS, with_evaluation

_DATA = ui.Groups(
    *ui.DATA,
    eval_file=("Evaluation data. Default: part of the training data is held out.", ""),
    test_fraction=("Instead of --eval-file: the fraction to hold out.", "0.25"),
)


@ui.app.command()
@ui.with_run_options
def compare(
    *,
    file: Annotated[str | None, ui.file_argument("--train-file")] = None,
    data: Annotated[Mapping[str, Any], _DATA],
    compared: Annotated[Mapping[str, Any], ui.Groups("methods", of=Comparison)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            help="Option of a method, which is then not tuned. Repeat it with another value to compare both.",
        ),
    ] = None,
    search: Annotated[Mapping[str, Any], ui.Groups("search", of=Comparison)],
    training: Annotated[Mapping[str, Any], ui.Groups("sample", "score", "length", "start", "optimization")],
    output: Annotated[Mapping[str, Any], ui.Groups("output", of=Comparison)],
    workers: ui.Workers = None,
    ray: ui.Ray = None,
    machine: Annotated[Mapping[str, Any], ui.Groups("machine")],
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Find out what your data should be fine-tuned with.

    Compares methods with plain fine-tuning, and with baselines that need no fine-tuning, on the same rows over several
    seeds. Says what to use, how certain that is, and keeps the model in OUTPUT_DIR/best. When run again, it resumes.
    """
    train_file = ui.one_file(file, "--train-file", data.get("train_file"))
    run = {"model": "minilm", "method": REFERENCE, "output_dir": "", **data, **training, **machine}
    named = names(compared.get("methods", ""))
    points = _points(settings or [], named[-1] if named else "METHOD")
    search = {name: checked(Comparison, name, value) for name, value in search.items()}
    run = with_evaluation(run | {"train_file": train_file})
    config = RunConfig(**run, on_data=partial(announce_files, quiet=quiet))
    named = named or tuple(default_methods())
    if absent := next((name for name in points if name not in named), None):
        raise AttendropError(f"--set {absent}: method '{absent}' is not compared; add it to --methods.")
    methods = [MethodSetting(name, options) for name in named for options in points.get(name, [{}])]
    comparison = Comparison(config=config, methods=methods, **search, **output)

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.compare import run_comparison

    with ui.messages(quiet=quiet) as console, closing(StudyProgress(console, quiet=quiet)) as progress:
        backend = LOCAL if ray is None else f"{RAY}{ray}"
        outcome = run_comparison(
            comparison, workers=workers, backend=backend, on_event=progress, on_plan=partial(setattr, progress, "runs")
        )
    ui.show(outcome.as_dict(), "\n".join(outcome.lines()), quiet=quiet, as_json=as_json)


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


@ui.app.command()
def study(
    file: Annotated[str, ui.path_argument("YAML file of data, methods and seeds.", "FILE")],
    output_dir: Annotated[str | None, typer.Option(help="Folder of the study.", show_default="runs/FILE")] = None,
    workers: ui.Workers = None,
    ray: ui.Ray = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Run a grid of methods, data and seeds, and compare; finished runs are not repeated."""
    from attendrop.studies.study import default_folder, read_study, run_study

    found = read_study(file, on_data=None if dry_run else partial(announce_files, quiet=True))

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.answer import method_label

    if dry_run:
        listed = [
            {"setting": name, "method": method_label(spec.described()), "seed": spec.config.seed}
            for name, specs in found.settings.items()
            for spec in specs
        ]
        lines = [f"{run['setting']}: {run['method']}, seed {run['seed']}" for run in listed]
        ui.show(listed, "\n".join([*lines, f"{len(found.specs)} runs"]), quiet=quiet, as_json=as_json)
        return
    folder, runs = Path(output_dir or default_folder(file)), len(found.specs)
    with ui.messages(quiet=quiet) as console, closing(StudyProgress(console, runs, quiet=quiet)) as progress:
        backend = LOCAL if ray is None else f"{RAY}{ray}"
        report = run_study(found, folder, file=file, workers=workers, backend=backend, on_event=progress)
    text = "\n".join([*report.lines(), f"Tables: {', '.join(str(folder / name) for name in REPORTS)}"])
    ui.show(report.as_dict(), text, quiet=quiet, as_json=as_json)
    if report.failed:
        raise typer.Exit(1)
