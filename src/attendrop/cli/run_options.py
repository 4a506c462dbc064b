"""Options on the command line, made from their declaration: :mod:`attendrop.runs.declared_options`."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from attendrop.errors import AttendropError
from attendrop.methods.core.options import option_types
from attendrop.runs.config import RunConfig
from attendrop.runs.declared_options import declared


def read_options_file(file: str, method: str) -> dict[str, Any]:
    """Read a JSON file of options: ``{"p": 0.3}``, or ``{"method": ..., "options": {...}}`` as `patterns --fit` writes.

    Raises:
        AttendropError: There is no such file, it does not have this form, or its options are for another method.
    """
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise AttendropError(f"There is no options file '{file}'; name a JSON file of the method's options.") from None
    except IsADirectoryError:
        raise AttendropError(f"The options file '{file}' is a folder; name a JSON file.") from None
    except (ValueError, RecursionError) as error:
        raise AttendropError(f"The options file '{file}' is not valid JSON ({error}); correct it.") from None
    if isinstance(found, dict) and found.keys() == {"method", "options"}:
        if found["method"] != method:
            raise AttendropError(
                f"The options file '{file}' is for method {found['method']!r}; add --method {found['method']}, or name "
                "another file."
            )
        found = found["options"]
    if not isinstance(found, dict):
        raise AttendropError(f"The options file '{file}' must hold an object such as {{\"p\": 0.3}}.")
    return {name.replace("-", "_"): value for name, value in found.items()}


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


DATA = ("task", "files", "held_out", "columns", "data_dir", "rows", "model")


class Groups:
    """Annotation of a parameter that stands for all options of some groups.

    Args:
        groups: Names of the groups, in the order of the help.
        of: The class that declares the options.
        changed: Help, shown default and flag of options that mean something else in this command.
    """

    def __init__(self, *groups: str, of: Any = RunConfig, **changed: tuple[str | None, ...]) -> None:
        self.kind = of
        self.options = {
            name: Annotated[_type(of, name), run_option(name, *changed.get(name, ()), of=of)]
            for group in groups
            for name, about in declared(of).items()
            if about["group"] == group
        }


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters of a command that are annotated with :class:`Groups` by the options of these groups.

    For each such parameter, the command gets the values of the options that are given, with mappings converted from
    text.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Groups] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        extra = get_args(hints[name])[-1:]
        if extra and isinstance(extra[0], Groups):
            groups[name] = extra[0]
            parameters += [
                inspect.Parameter(option, parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for option, annotation in extra[0].options.items()
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def run(**given: Any) -> None:
        of_groups = {
            name: {
                option: _read_pairs(group.kind, option, value)
                for option in group.options
                if (value := given.pop(option)) is not None
            }
            for name, group in groups.items()
        }
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


def _read_pairs(kind: Any, name: str, value: Any) -> Any:
    """Read an option that is given as NAME=VALUE, once or several times, such as ``lora``; others stay as they are."""
    about = declared(kind)[name]
    if not about["example"]:
        return value
    return read_settings(value, next(iter(about["flags"]), f"--{name}"), about["example"])


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


def _type(kind: Any, name: str) -> Any:
    """Return the type of an option on the command line; all are optional, since files and presets may set them."""
    about = declared(kind)[name]
    if about["example"]:
        return list[str] | None
    (of_value,) = option_types(kind)[name] - {NoneType}
    return (of_value if of_value in (int, float, bool) and not about["listed"] else str) | None
