"""`attendrop runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Column, Table

from attendrop.cli.app import Json, app, show
from attendrop.cli.run_options import path_argument
from attendrop.wording import score_text


@app.command()
def runs(
    folder: Annotated[str, path_argument("The folder to look in, and below.")] = "runs",
    as_json: Json = False,
) -> None:
    """List the runs in a folder with their scores."""
    from attendrop.runs.finished_run import list_runs

    found = list_runs(folder)
    table = Table(Column("run", overflow="fold"), "model", "task", "method", "seed", "metric", "selection", "dev")
    for run in found:
        scores = ("-" if run[name] is None else score_text(run[name]) for name in ("selection_score", "score"))
        state = "" if run["finished"] else " (unfinished)"
        method = f"{run['label']}, pruned" if run["pruned"] else run["label"]
        model = Path(run["model"]).name
        table.add_row(
            run["folder"] + state, model, run["task"], method, str(run["seed"]), run["metric"] or "-", *scores
        )
    show(found, table if found else f"There is no run in {folder}.", as_json=as_json)
