"""Declaration of method options: ranges, checks, and parsing from text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from attendrop.attention.layers import checked_layers
from attendrop.errors import AttendropError, check_choice, check_count, check_switch, suggestion


@dataclass(frozen=True)
class Range:
    """Allowed values of an option.

    Attributes:
        text: Description, for lists of options.
        check: Called with the option's name and value; returns the value to keep, or raises AttendropError.
    """

    text: str
    check: Callable[[str, Any], Any]


def option(default: Any, allowed: Range, search: Sequence[Any] = ()) -> Any:
    """Declare an option of a method, as a dataclass field that is checked when the method is created.

    ``search`` holds other values that are worth trying; an option without any is not searched.
    """
    return dataclasses.field(default=default, metadata={"range": allowed, "search": tuple(search)})


def unit_interval(*, one: bool = False, zero: bool = False) -> Range:
    """Return the range of numbers between 0 and 1; ``one`` and ``zero`` include the bounds."""
    text = f"{'at least' if zero else 'above'} 0 and {'at most' if one else 'below'} 1"
    return _number(text, lambda value: 0 < value < 1 or (one and value == 1) or (zero and value == 0))


def positive(*, zero: bool = False) -> Range:
    """Return the range of finite numbers above 0; ``zero`` includes 0."""
    text = "0 or more" if zero else "above 0"
    return _number(text, lambda value: 0 < value < math.inf or (zero and value == 0), ", a finite number")


def count(least: int = 1) -> Range:
    """Return the range of integers of at least ``least``."""
    return Range(f"{least} or more", lambda name, value: check_count(name, value, least))


def choice(*choices: str) -> Range:
    """Return the range of the given strings."""
    return Range(", ".join(each or "''" for each in choices), lambda name, value: check_choice(name, value, choices))


def optional(allowed: Range) -> Range:
    """Return the range with None, which stands for a default that depends on other options."""
    return Range(allowed.text, lambda name, value: value if value is None else allowed.check(name, value))


def _number(text: str, inside: Callable[[float], bool], more: str = "") -> Range:
    """Return the range of the numbers that are ``inside``, as ``text`` says; errors also say ``more``."""

    def kept(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not inside(value):
            raise AttendropError(f"{name}={value!r} must be {text}{more}.")
        return value

    return Range(text, kept)


SWITCH = Range("true or false", check_switch)
LAYERS = Range(
    "all, first, numbers (0,3), encoder, decoder, cross, or both (cross:0,1)", lambda name, value: checked_layers(value)
)


def check_options(method: Any) -> None:
    """Check the options of a method against their declared ranges."""
    for field in dataclasses.fields(method):
        if (allowed := field.metadata.get("range")) is not None:
            object.__setattr__(method, field.name, allowed.check(field.name, getattr(method, field.name)))


def searched_values(method: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values that a search tries of each option of a method class, the default first."""
    return {
        field.name: (field.default, *(value for value in field.metadata["search"] if value != field.default))
        for field in dataclasses.fields(method)
        if field.metadata.get("search")
    }


def described(method: type[Any]) -> dict[str, dict[str, Any]]:
    """Return the type, default and described range (empty if none is declared) of each option of a method class."""
    return {
        field.name: {
            "type": field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type)),
            "default": None if field.default is dataclasses.MISSING else field.default,
            "range": field.metadata["range"].text if "range" in field.metadata else "",
        }
        for field in dataclasses.fields(method)
    }


def read_options(kind: type[Any], given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Convert options of ``kind``, given as text or JSON values; AttendropError says which their ``owner`` lacks."""
    names = tuple(field.name for field in dataclasses.fields(kind) if "range" in field.metadata)
    for name in given:
        if name not in names:
            raise AttendropError(f"{owner} has no option {name!r}.{suggestion(name, names) if names else ''}")
    return {name: read_option(kind, name, value) for name, value in given.items()}


_SWITCHES = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)


def read_option(method: type[Any], name: str, value: object) -> object:
    """Convert an option, text or a JSON value, to its declared type; AttendropError if it is not of that type."""
    kinds = option_types(method)[name]  # type: ignore[arg-type] # mypy takes no type for hashable
    if NoneType in kinds and (value is None or str(value).lower() == "none"):
        return None
    kinds = kinds - {NoneType}
    if kinds == {bool}:
        if str(value).lower() not in _SWITCHES:
            raise AttendropError(f"{name}={value!r} must be true or false.")
        return _SWITCHES[str(value).lower()]
    if not kinds or not kinds <= {int, float}:
        return value
    kind = float if float in kinds else int
    try:
        found = kind(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | kind):
        raise AttendropError(f"{name}={value!r} is not {'a number' if kind is float else 'a whole number'}.")
    return found


@cache
def option_types(method: type[Any]) -> dict[str, frozenset[Any]]:
    """Return the types of each option from its annotation, or from its default if that cannot be evaluated."""
    try:
        hints = get_type_hints(method)
    except NameError:  # a name imported under TYPE_CHECKING only
        hints = {field.name: type(field.default) for field in dataclasses.fields(method)}
    return {
        name: frozenset(get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])
        for name, hint in hints.items()
    }
