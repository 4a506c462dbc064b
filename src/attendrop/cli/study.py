"""`attendrop study`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from attendrop.cli.app import Json, Quiet, Ray, Workers, app, show
from attendrop.cli.console import messages
from attendrop.cli.run_options import path_argument


@app.command()
def study(
    file: Annotated[str, path_argument("YAML file of data, methods and seeds.", "FILE")],
    output_dir: Annotated[str | None, typer.Option(help="Folder of the study.", show_default="runs/FILE")] = None,
    workers: Workers = None,
    ray: Ray = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a grid of methods, data and seeds, and compare; finished runs are not repeated."""
    from attendrop.studies.study_file import read_study
    from attendrop.studies.units import REPORTS, check_workers

    if ray is None:
        check_workers(workers)
    found = read_study(file, check_data=not dry_run)
    from attendrop.studies.method_rows import method_label  # loads NumPy, as all that follows

    if dry_run:
        runs = [(each, unit) for each in found.settings for unit in each.units]
        listed = [
            {
                "setting": each.name,
                "method": each.labels.get(unit.key()) or method_label(unit.described()),
                "seed": unit.config.seed,
            }
            for each, unit in runs
        ]
        lines = [f"{run['setting']}: {run['method']}, seed {run['seed']}" for run in listed]
        show(listed, "\n".join([*lines, f"{len(found.units)} runs"]), quiet=quiet, as_json=as_json)
        return

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.executor import LOCAL
    from attendrop.studies.study import default_folder, run_study

    folder = Path(output_dir or default_folder(file))
    with (
        messages(quiet=quiet) as console,
        closing(StudyProgress(console, len(found.units), quiet=quiet)) as progress,
    ):
        backend = LOCAL if ray is None else f"ray:{ray}"
        report = run_study(found, folder, file=file, workers=workers, backend=backend, on_event=progress)
    text = "\n".join([*report.lines(), f"Tables: {', '.join(str(folder / name) for name in REPORTS)}"])
    show(report.as_dict(), text, quiet=quiet, as_json=as_json)
    if report.failed:
        raise typer.Exit(1)
