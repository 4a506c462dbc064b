"""`attendrop patterns`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import Json, Overwrite, Quiet, RunFolder, app, show
from attendrop.cli.console import messages


@app.command()
def patterns(
    run: RunFolder,
    fit: Annotated[
        int | None, typer.Option(help="Least number of linear pieces of a fitted schedule.", show_default="none")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="PNG figure of what was learnt.", show_default="RUN/patterns.png")
    ] = None,
    options: Annotated[
        str | None, typer.Option(help="JSON file of the fit.", show_default="RUN/scheduler.json")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a run of AttendOut learnt, and fit a schedule to it."""
    from attendrop.cli.patterns_output import show_patterns

    with messages(quiet=quiet):
        found, text = show_patterns(run, fit, output, options, overwrite=overwrite)
    show(found, text, quiet=quiet, as_json=as_json)
