"""Options on the command line, made from their declaration in :mod:`attendrop.runs.config`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from attendrop.errors import AttendropError
from attendrop.methods.core.options import option_types
from attendrop.runs.config import RunConfig, declared

DATA = ("task", "files", "held_out", "columns", "data_dir", "rows", "model")


def read_settings(pairs: Sequence[str], option: str = "--set", example: str = "p=0.3") -> dict[str, str]:
    """Read the values of ``--set`` or of a similar option, ``NAME=VALUE``.

    Raises:
        AttendropError: One is not of this form, or a name is given twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
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
        changed: Help, shown default and flag of options that mean something else in this command.
    """

    def __init__(self, *groups: str, of: Any = RunConfig, **changed: tuple[str | None, ...]) -> None:
        self.declared = declared(of)
        self.parameters: list[inspect.Parameter] = []
        for name in (name for group in groups for name, about in self.declared.items() if about["group"] == group):
            about = self.declared[name]
            kind: Any = list[str]
            if not about["example"]:
                (of_value,) = option_types(of)[name] - {NoneType}
                kind = of_value if of_value in (int, float, bool) and not about["listed"] else str
            # All are optional, since files and presets may set them.
            annotation = Annotated[kind | None, run_option(name, *changed.get(name, ()), of=of)]
            place = inspect.Parameter.KEYWORD_ONLY
            self.parameters.append(inspect.Parameter(name, place, default=None, annotation=annotation))

    def taken(self, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the options of the groups from those of a command; return those that are given, and read mappings."""
        found = {each.name: given.pop(each.name) for each in self.parameters}
        for name, value in found.items():
            if value is not None and (example := self.declared[name]["example"]):
                found[name] = read_settings(value, next(iter(self.declared[name]["flags"]), f"--{name}"), example)
        return {name: value for name, value in found.items() if value is not None}


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters of a command that are annotated with :class:`Groups` by the options of these groups.

    For each such parameter, the command gets the values of the options that are given.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Groups] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        extra = get_args(hints[name])[-1:]
        if extra and isinstance(extra[0], Groups):
            groups[name] = extra[0]
            parameters += extra[0].parameters
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def run(**given: Any) -> None:
        of_groups = {name: group.taken(given) for name, group in groups.items()}
        command(**given, **of_groups)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    return run


def path_argument(help: str, metavar: str | None = None) -> Any:
    """Declare an argument of a command that is a path, in which ``~`` is replaced, as where no shell does."""
    return typer.Argument(metavar=metavar, help=help, callback=os.path.expanduser)


def file_argument(option: str) -> Any:
    """Declare the argument FILE of a command, which stands for one of its options."""
    return typer.Argument(metavar="FILE", help=f"The same as {option}.", show_default=False)


def one_file(file: str | None, option: str, given: str | None) -> str | None:
    """Return the FILE of a command, or its option; None if there is neither.

    Raises:
        AttendropError: There are both.
    """
    if file is not None and given is not None:
        raise AttendropError(f"'{file}' and {option} '{given}' are the same option; give one.")
    return given if file is None else file
