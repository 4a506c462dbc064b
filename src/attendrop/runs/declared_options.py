"""Options as fields of a dataclass: their only declaration.

Command line and help (:mod:`attendrop.cli.run_options`), files (:mod:`attendrop.runs.run_file`), documentation and
checks are made from it.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_origin

from attendrop.errors import AttendropError, check_least
from attendrop.methods.core.options import SWITCH, Range, option_types, read_option

Function = TypeVar("Function", bound=Callable[..., Any])


def option(
    default: Any,
    group: str = "",
    help: str = "",
    allowed: Range | None = None,
    *,
    shown: str = "",
    flags: Sequence[str] = (),
    example: str = "",
    listed: bool = False,
) -> Any:
    """Declare an option.

    Args:
        default: The default; ``MISSING`` if there is none.
        group: Group of options on the command line; empty: commands declare it themselves.
        help: What ``--help`` says.
        allowed: Allowed values besides None; None: those of its type, numbers of at least 1.
        shown: What ``--help`` shows as the default; empty: the default itself.
        flags: Names on the command line; empty: the option's own.
        example: For a mapping, an example NAME=VALUE.
        listed: Whether the command line and files take several values: a run for each.
    """
    if not shown and isinstance(default, int | float | str) and not isinstance(default, bool):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    allowed = _mapping(example) if example else allowed
    metadata: dict[str, Any] = {"group": group, "help": help, "range": allowed, "shown": shown, "flags": tuple(flags)}
    metadata |= {"example": example, "listed": listed}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def number(text: str, inside: Callable[[float], bool]) -> Range:
    """Return the range of the numbers that are ``inside``, as ``text`` describes them."""

    def kept(name: str, value: float) -> float:
        if not inside(value):
            raise AttendropError(f"{name.replace('_', '-')} must be {text}, not {value}.")
        return value

    return Range(text, kept)


def at_least(least: int, bits: int = 31) -> Range:
    """Return the range of integers of at least ``least``, and below ``2**bits``."""

    def kept(name: str, value: int) -> int:
        check_least(name, value, least, bits)
        return value

    return Range(f"{least} or more", kept)


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Read names, which may be one text, comma-separated, of which some are quoted; an empty text has none."""
    if not isinstance(given, str):
        if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
            raise AttendropError(f"{given!r} must be names, comma-separated.")
        return tuple(given)
    return tuple(part.strip() for part in next(csv.reader([given], skipinitialspace=True))) if given else ()


def joined_names(given: Sequence[str]) -> str:
    """Write names as :func:`names` reads them."""
    return ",".join(f'"{name}"' if "," in name else name for name in given)


def _mapping(example: str) -> Range:
    def kept(name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise AttendropError(f"{name} must be a mapping such as {{{example.replace('=', ': ')}}}.")
        return value

    return Range("names with values", kept)


def _text(name: str, value: Any) -> str:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str):
        raise AttendropError(f"{name.replace('_', '-')}={value!r} is not a text.")
    return value


def _path(name: str, value: Any) -> str:
    """Replace ``~`` by the home folder, also in the second of two files, where no shell does."""
    return re.sub(r"(^|,\s*)(~[^,/]*)", lambda found: found[1] + os.path.expanduser(found[2]), _text(name, value))


PATH = Range("", _path)
FRACTION = number("at least 0 and below 1", lambda value: 0 <= value < 1)
_OF_TYPE: dict[Any, Range] = {
    int: at_least(1),
    bool: SWITCH,
    str: Range("", _text),
    tuple: Range("names, comma-separated", lambda name, value: names(value)),
}


@cache
def declared(kind: Any) -> dict[str, Mapping[str, Any]]:
    """Return what is declared of each option of a class, by name: the arguments of :func:`option`."""
    return {field.name: field.metadata for field in dataclasses.fields(kind) if "group" in field.metadata}


def allowed_values(kind: Any, name: str) -> Range:
    """Return the allowed values of an option of a class besides None: those declared, or those of its type."""
    (of_type,) = option_types(kind)[name] - {NoneType}
    return declared(kind)[name]["range"] or _OF_TYPE[get_origin(of_type) or of_type]


def checked(kind: Any, name: str, value: Any) -> Any:
    """Convert a value, which may be text, to the type of an option of a class, and check it.

    Raises:
        AttendropError: It is not of this type, or out of range.
    """
    found = read_option(kind, name, value)
    missing = found is None and NoneType in option_types(kind)[name]
    return None if missing else allowed_values(kind, name).check(name, found)


def check_fields(options: Any) -> None:
    """Convert and check all options of a frozen dataclass, as :func:`checked` does."""
    kind: Any = type(options)
    for name in declared(kind):
        object.__setattr__(options, name, checked(kind, name, getattr(options, name)))


def takes_options(*kinds: Any) -> Callable[[Function], Function]:
    """Return a decorator that lists the options of classes in a signature, for ``help`` and notebooks.

    They replace the function's ``**options``; its own parameters take precedence.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        listed = {}
        for field in (field for kind in kinds for field in dataclasses.fields(kind) if "group" in field.metadata):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            listed[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
                annotation=field.type,
            )
        listed |= {each.name: each for each in own}
        function.__signature__ = signature.replace(parameters=[*listed.values()])  # type: ignore[attr-defined]
        return function

    return decorate
