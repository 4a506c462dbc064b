"""`attendrop push`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import Json, Quiet, RunFolder, app, show
from attendrop.cli.console import messages
from attendrop.wording import counted


@app.command()
def push(
    run: RunFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Repository on the hub, such as user/model.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Upload a model, its tokenizer and its card, on which its scores are, to the Hugging Face hub; nothing else."""
    from attendrop.runs.export import push_run

    with messages(quiet=quiet):
        found = push_run(run, name, public=public)
    show(found, f"{found['url']}: {counted(len(found['files']), 'file')}", quiet=quiet, as_json=as_json)
