"""Typer application, and options shared by several commands."""

from __future__ import annotations

import importlib
import json
from functools import cache
from typing import Annotated, Any

import typer
from rich.table import Table

from attendrop.cli.console import PlainConsole
from attendrop.cli.run_options import path_argument, run_option
from attendrop.errors import printable
from attendrop.runs.config import Source
from attendrop.runs.run_folder import is_main_process

# In the order of the help; `listings` has methods, tasks and doctor.
_MODULES = (
    *("inspect", "compare", "train", "study", "report", "evaluate", "predict", "patterns", "attend", "prune", "export"),
    *("push", "listings", "demo"),
)

app = typer.Typer(
    help="Fine-tune pre-trained transformers on small data without overfitting, by regularising attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
DataDir = Annotated[str | None, run_option("data_dir")]
Device = Annotated[str, run_option("device")]
Overwrite = Annotated[bool, run_option("overwrite", of=Source)]
TextPair = Annotated[list[str] | None, typer.Option(help="Second text of a pair; give one for each text.")]
MethodSettings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the method.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of processes; 0: only this one.", show_default="one per GPU, or per core up to 8"),
]
Ray = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster; local starts one here.")]
RunFolder = Annotated[str, path_argument("Folder of a finished run.", "RUN")]
# Width, in characters, of a table that is not printed to a terminal.
_NO_LIMIT = 10_000


def _version(wanted: bool) -> None:
    if wanted:
        from attendrop import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def show(found: Any, shown: str | Table, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print a result in the main process: plain values as JSON, or else in readable form unless ``quiet``."""
    if not is_main_process():
        return
    if as_json:
        print(json.dumps(found, indent=2))
    elif isinstance(shown, str) and not quiet:
        print(printable(shown))
    elif not quiet:
        console = PlainConsole()
        if not console.is_terminal:  # programs that read the output need each name on one line
            console.width = _NO_LIMIT
        console.print(shown)


@cache
def command() -> Any:
    """Return the application with all commands, built once: tests and notebooks call the command line often."""
    for module in _MODULES:
        importlib.import_module(f"attendrop.cli.{module}")
    return typer.main.get_command(app)
