"""`attendrop doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import Json, app, show
from attendrop.cli.console import lines_of, messages
from attendrop.cli.run_options import path_argument
from attendrop.wording import counted


@app.command()
def doctor(
    model: Annotated[str, path_argument("minilm, a folder, or a hub id; weights are not loaded.")],
    as_json: Json = False,
) -> None:
    """Check whether a model is supported, and list its attention layers."""
    from attendrop.cli.model_report import examine

    with messages(quiet=True):
        found = examine(model)
    untrainable = "not by `attendrop train`: it has no classification head"
    lines = {
        "model": f"{model} ({found['architecture']})",
        "supported": "yes" if found["supported"] else f"no: {found['reason']}",
        "to train": "`attendrop train` can" if found["trainable"] else untrainable,
    }
    for kind in dict.fromkeys(layer["kind"] for layer in found["sites"]):
        names = [layer["name"] for layer in found["sites"] if layer["kind"] == kind]
        lines[f"{kind} attention"] = f"{counted(len(names), 'layer')}: {_ends(names)}"
    if names := found["not_run"]:
        lines["not tried"] = f"{counted(len(names), 'layer')}, which the example input does not reach: {_ends(names)}"
    show(found, lines_of(lines), as_json=as_json)
    raise typer.Exit(0 if found["supported"] else 2)


def _ends(names: list[str]) -> str:
    """Return the first and the last of some names, or the only one."""
    return " ... ".join(dict.fromkeys((names[0], names[-1])))
