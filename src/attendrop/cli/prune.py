"""`attendrop prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import DataDir, Device, Json, Quiet, RunFolder, app, show
from attendrop.cli.console import messages


@app.command()
def prune(
    run: RunFolder,
    output_dir: Annotated[str, typer.Option(help="A new folder for the pruned model.")],
    layers: Annotated[
        str, typer.Option(help="auto; a count (4); a list (0,3,5, or 4, for one); a threshold on pi ('>=0.8').")
    ] = "auto",
    select_by: Annotated[
        str,
        typer.Option(
            help="importance (loss without a layer); method (what it learnt to drop); auto: importance, unless what "
            "the method learnt can be told from noise."
        ),
    ] = "auto",
    tolerance: Annotated[float, typer.Option(help="With auto: allowed loss of selection score.")] = 0.0,
    recover_epochs: Annotated[int, typer.Option(help="Number of epochs of fine-tuning afterwards.")] = 0,
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Replace attention by constants in some layers, for a smaller and faster model."""
    from attendrop.cli.progress import TrainingProgress
    from attendrop.cli.pruning_summary import prune_summary
    from attendrop.runs.prune import prune_run

    with messages(quiet=quiet) as console:
        progress = TrainingProgress(console)
        on_pass, callbacks = (None, []) if quiet else (progress.show, [progress])
        try:
            found = prune_run(
                run, output_dir, layers=layers, select_by=select_by, tolerance=tolerance, recover_epochs=recover_epochs,
                data_dir=data_dir, device=device or "auto", on_pass=on_pass, callbacks=callbacks,
            )  # fmt: skip
        finally:
            progress.close()
    show(found, prune_summary(found), quiet=quiet, as_json=as_json)
