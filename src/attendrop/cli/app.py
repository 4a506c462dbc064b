"""Typer application: options that commands share, made from their declaration, and output for people.

Messages and progress are on stderr, results on stdout.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attendrop.errors import AttendropError, one_line, printable
from attendrop.methods.core.options import option_types
from attendrop.runs.config import RunConfig, Source, declared
from attendrop.runs.run_folder import is_main_process
from attendrop.wording import aligned

# Groups of options of a run's data, on the command line.
DATA = ("task", "files", "held_out", "columns", "data_dir", "rows", "model")

app = typer.Typer(
    help="Fine-tune pre-trained transformers on small data without overfitting, by regularising attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


@cache
def command() -> Any:
    """Return the application with all commands, built once: tests and notebooks call the command line often."""
    for module in ("inspect", "train", "finished_runs", "listings", "demo"):  # in the order of the help
        importlib.import_module(f"attendrop.cli.{module}")
    return typer.main.get_command(app)


# Options -------------------------------------------------------------------------------------------------------------


def read_settings(pairs: Sequence[str], option: str = "--set", example: str = "p=0.3") -> dict[str, str]:
    """Read the values of ``--set`` or of a similar option, ``NAME=VALUE``.

    Raises:
        AttendropError: One is not of this form, or a name is given twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name, value = name.strip(), value.lstrip()  # a prefix of texts may end with a space
        if not (name and equals and value):
            raise AttendropError(f"{option} {pair!r} is not of the form NAME=VALUE; write, for example, {example}.")
        if name in settings:
            raise AttendropError(f"{option} gives {name} twice; give it once.")
        settings[name] = value
    return settings


def run_option(
    name: str, help: str | None = None, shown: str | None = None, flag: str | None = None, *, of: Any = RunConfig
) -> Any:
    """Declare an option of a class for typer, optionally with another help, shown default and flag."""
    about = declared(of)[name]
    return typer.Option(
        *(about["flags"] if flag is None else [flag]),
        help=(about["help"] if help is None else help) or None,
        show_default=(about["shown"] if shown is None else shown) or True,
        metavar="NAME=VALUE" if about["example"] else None,
    )


class Groups:
    """Annotation of a parameter that stands for all options of some groups.

    Args:
        groups: Names of the groups, in the order of the help.
        of: The class that declares the options.
        argument: An option, and its flag, for which the command also has an argument, FILE.
        changed: Help, shown default and flag of options that mean something else in this command.
    """

    def __init__(
        self, *groups: str, of: Any = RunConfig, argument: Sequence[str] = (), **changed: Sequence[Any]
    ) -> None:
        self.declared, self.argument = declared(of), argument
        self.parameters: list[inspect.Parameter] = []
        place = inspect.Parameter.KEYWORD_ONLY
        if argument:
            as_argument = typer.Argument(metavar="FILE", help=f"The same as {argument[1]}.", show_default=False)
            annotation: Any = Annotated[str | None, as_argument]
            self.parameters.append(inspect.Parameter("path", place, default=None, annotation=annotation))
        for name in (name for group in groups for name, about in self.declared.items() if about["group"] == group):
            about = self.declared[name]
            kind: Any = list[str]
            if not about["example"]:
                (of_value,) = option_types(of)[name] - {NoneType}
                kind = of_value if of_value in (int, float, bool) and not about["listed"] else str
            # All are optional, since files and presets may set them.
            annotation = Annotated[kind | None, run_option(name, *changed.get(name, ()), of=of)]
            self.parameters.append(inspect.Parameter(name, place, default=None, annotation=annotation))

    def taken(self, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the options of the groups from those of a command; return those that are given, and read mappings."""
        found = {each.name: given.pop(each.name) for each in self.parameters}
        if self.argument and (path := found.pop("path")) is not None:
            name, flag = self.argument
            if found[name] is not None:
                raise AttendropError(f"'{path}' and {flag} '{found[name]}' are the same option; give one.")
            found[name] = path
        for name, value in found.items():
            if value is not None and (example := self.declared[name]["example"]):
                found[name] = read_settings(value, next(iter(self.declared[name]["flags"]), f"--{name}"), example)
        return {name: value for name, value in found.items() if value is not None}


def register(command: Callable[..., None]) -> Callable[..., None]:
    """Add a command to the application.

    A parameter that is annotated with a text is an option with this help, and with a second text, which is shown as its
    default. One that is annotated with :class:`Groups` stands for the options of these groups: the command gets the
    values of those that are given.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Groups] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *about = get_args(hints[name])
        if isinstance(about[0], Groups):
            groups[name] = about[0]
            parameters += about[0].parameters
            continue
        if isinstance(about[0], str):
            flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
            about = [typer.Option(*flags, help=about[0], show_default=about[1] if about[1:] else True)]
        parameters.append(parameter.replace(annotation=Annotated[kind, about[0]]))

    def run(**given: Any) -> None:
        of_groups = {name: group.taken(given) for name, group in groups.items()}
        command(**given, **of_groups)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    return app.command()(run)


def path_argument(help: str, metavar: str | None = None) -> Any:
    """Declare an argument of a command that is a path, in which ``~`` is replaced, as where no shell does."""
    return typer.Argument(metavar=metavar, help=help, callback=os.path.expanduser)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
DataDir = Annotated[str | None, run_option("data_dir")]
Device = Annotated[str, run_option("device")]
Overwrite = Annotated[bool, run_option("overwrite", of=Source)]
MethodSettings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the method.")]
Workers = Annotated[int | None, "Number of processes; 0: only this one.", "one per GPU, or per core up to 8"]
Ray = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster; local starts one here.")]
RunFolder = Annotated[str, path_argument("Folder of a finished run.", "RUN")]

# Output --------------------------------------------------------------------------------------------------------------


class PlainConsole(Console):
    """Console that prints texts as they are: names and labels of users are neither markup nor control sequences.

    It remembers the warnings of files, and of the runs of a study, so that each is shown once.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        self.warned: set[str] = set()

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, which may be the cell of a table."""
        return super().render_str(printable(text), **options)


@contextmanager
def messages(*, quiet: bool) -> Iterator[PlainConsole]:
    """Show the library's messages and all warnings on stderr, only warnings if ``quiet``; yield the console.

    Only the main process of a distributed run prints.
    """
    import datasets
    import transformers

    def emit(record: logging.LogRecord) -> None:
        message = record.getMessage()
        is_warning = record.levelno >= logging.WARNING
        console.print(Text.assemble(("Warning: ", "yellow"), one_line(message)) if is_warning else message)

    def warn_once(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in console.warned:  # a command may read the same file more than once
            console.warned.add(str(message))
            root.warning("%s", message)

    console = PlainConsole(stderr=True, soft_wrap=True, quiet=not is_main_process())
    root, handler = logging.getLogger("attendrop"), logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    level, show = root.level, warnings.showwarning
    root.addHandler(handler)
    root.setLevel(logging.WARNING if quiet else logging.INFO)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()
    warnings.showwarning = warn_once
    try:
        yield console
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        warnings.showwarning = show


def lines_of(values: Mapping[str, str]) -> str:
    """Format captions and values in two aligned columns."""
    return "\n".join(aligned(list(values.items())))


def size(count: int) -> str:
    """Format a number of bytes with its unit."""
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


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
            console.width = 10_000
        console.print(shown)
