"""`attendrop patterns`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import (
    Json,
    Overwrite,
    app,
    show,
)


@app.command()
def patterns(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run of method attendout.")],
    fit: Annotated[
        int | None, typer.Option(help="Least number of linear pieces of a schedule to fit.", show_default="none")
    ] = None,
    output: Annotated[str | None, typer.Option(help="The picture, PNG.", show_default="RUN/patterns.png")] = None,
    options: Annotated[
        str | None, typer.Option(help="Where to write the fit, JSON.", show_default="RUN/scheduler.json")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Plot the dropout patterns learnt by AttendOut, and fit a schedule for the method scheduler."""
    from attendrop.cli.patterns_output import show_patterns

    found, shown = show_patterns(run, fit, output, options, overwrite=overwrite)
    show(found, shown, as_json=as_json)
