"""`attendrop demo`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from attendrop.cli.app import Json, Quiet, app, show
from attendrop.cli.console import messages
from attendrop.errors import AttendropError


@app.command()
def demo(
    output_dir: Annotated[
        str, typer.Option(help="Folder for the runs; finished ones are not run again.")
    ] = "attendrop-demo",
    model: Annotated[str, typer.Option(help="minilm, a folder, or a hub id.")] = "minilm",
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare plain fine-tuning with AD-DROP on a small generated grammar: a few minutes on two cores."""
    if seeds < 1:
        raise AttendropError(f"seeds must be at least 1, not {seeds}.")

    from attendrop.cli.demo_runs import demo_reading, demo_table, run_demo
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
