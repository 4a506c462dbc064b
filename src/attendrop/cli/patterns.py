"""`attendrop patterns`."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from attendrop.cli.app import DataDir, Device, Json, Overwrite, Quiet, RunFolder, app, show
from attendrop.cli.console import messages
from attendrop.cli.run_options import run_option
from attendrop.errors import AttendropError
from attendrop.runs.declared_options import names
from attendrop.runs.model_source import Source

_RATES = "0.1,0.3,0.5,0.7,0.9"
logger = logging.getLogger(__name__)


@app.command()
def patterns(
    run: RunFolder,
    rows: Annotated[int, typer.Option(help="Number of rows to look at.")] = 128,
    file: Annotated[
        str | None, typer.Option(help="A file of texts to look at.", show_default="the run's training rows")
    ] = None,
    text_columns: Annotated[str | None, run_option("text_columns", of=Source)] = None,
    table: Annotated[
        str | None,
        typer.Option("--csv", help="The table; its PNG figure is written beside it.", show_default="RUN/drops.csv"),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Measure loss and score without positions of high, low or random attribution instead."
        ),
    ] = False,
    rates: Annotated[str, typer.Option(help="With --probe: fractions to drop.")] = _RATES,
    fit: Annotated[
        int | None,
        typer.Option(help="For attendout: least number of linear pieces of a fitted schedule.", show_default="none"),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="For attendout: PNG figure of what it learnt.", show_default="RUN/patterns.png")
    ] = None,
    options: Annotated[
        str | None, typer.Option(help="For attendout: JSON file of the fit.", show_default="RUN/scheduler.json")
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a run's method drops in attention, and what AttendOut learnt; or probe the model by dropping."""
    of_learnt = {"--fit": fit, "--output": output, "--options": options}
    if probe and (given := next((name for name, value in of_learnt.items() if value is not None), None)):
        raise AttendropError(f"{given} is for what AttendOut learnt, which --probe does not show; omit it, or --probe.")
    if not probe and rates != _RATES:
        raise AttendropError("--rates is for --probe, which is missing; add it, or omit --rates.")
    if text_columns is not None and file is None:
        raise AttendropError("--text-columns is for --file, which is missing; add it, or omit --text-columns.")
    from attendrop.cli.drops_output import show_drops
    from attendrop.cli.patterns_output import learns_patterns, show_patterns
    from attendrop.cli.probe_output import parse_rates, show_probe
    from attendrop.cli.progress import row_progress
    from attendrop.reports.run_drops import RowSource
    from attendrop.runs.run_folder import keeps_model

    source = RowSource(rows, file, names(text_columns or ""), data_dir, device)
    with (
        messages(quiet=quiet) as console,
        row_progress(console, quiet=quiet, what="passes" if probe else "steps") as on_step,
    ):
        if probe:
            found, *texts = show_probe(run, parse_rates(rates), source, table, overwrite=overwrite, on_pass=on_step)
        elif not learns_patterns(run) and (fit, output, options) == (None, None, None):
            found, *texts = show_drops(run, source, table, overwrite=overwrite, on_batch=on_step)
        else:
            found, *texts = show_patterns(run, fit, output, options, overwrite=overwrite)
            if keeps_model(run):
                try:
                    found["drops"], text = show_drops(run, source, table, overwrite=overwrite, on_batch=on_step)
                    texts.append(text)
                except AttendropError as error:  # what was learnt is shown nevertheless
                    logger.warning("What the run drops is not shown: %s", error)
    show(found, "\n\n".join(texts), quiet=quiet, as_json=as_json)
