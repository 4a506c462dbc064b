"""Options of methods: what each may be, in words and as a check, and how they are read from text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from attendrop.argument_checks import check_choice, check_count, check_positive, check_probability, check_switch
from attendrop.attention.layers import checked_layers
from attendrop.errors import AttendropError


@dataclass(frozen=True)
class Range:
    """What an option may be.

    Attributes:
        text: In words, for lists of options.
        check: Called with the option's name and value; returns the value to keep, or raises AttendropError.
    """

    text: str
    check: Callable[[str, Any], Any]


def option(default: Any, allowed: Range) -> Any:
    """Declare an option of a method: the default of a dataclass field, which is checked when the method is made."""
    return dataclasses.field(default=default, metadata={"range": allowed})


def unit_interval(*, one: bool = False, zero: bool = False) -> Range:
    """A number between 0 and 1; whether it may be either of these."""
    text = f"{'at least' if zero else 'above'} 0 and {'at most' if one else 'below'} 1"
    return _checked(text, lambda name, value: check_probability(name, value, one_allowed=one, zero_allowed=zero))


def positive(*, zero: bool = False) -> Range:
    """A finite number above 0; whether it may be 0."""
    return _checked(
        "0 or more" if zero else "above 0", lambda name, value: check_positive(name, value, zero_allowed=zero)
    )


def count(least: int = 1) -> Range:
    """A whole number, and the least that it may be."""
    return _checked(f"{least} or more", lambda name, value: check_count(name, value, least))


def choice(*choices: str) -> Range:
    """One of several words."""
    return _checked(", ".join(each or "''" for each in choices), lambda name, value: check_choice(name, value, choices))


def _checked(text: str, check: Callable[[str, Any], None]) -> Range:
    def kept(name: str, value: Any) -> Any:
        check(name, value)
        return value

    return Range(text, kept)


SWITCH = _checked("true or false", check_switch)
LAYERS = Range(
    "all, first, numbers (0,3), encoder, decoder, cross, or both (cross:0,1)",
    lambda name, value: checked_layers(value),
)


def check_options(method: Any) -> None:
    """Check the options of a method by the ranges that they were declared with."""
    for field in dataclasses.fields(method):
        if (allowed := field.metadata.get("range")) is not None:
            object.__setattr__(method, field.name, allowed.check(field.name, getattr(method, field.name)))


def described(method: type[Any]) -> dict[str, dict[str, Any]]:
    """Type, default and range in words (empty where none was declared) of each option of a method's class."""
    return {
        field.name: {
            "type": field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type)),
            "default": None if field.default is dataclasses.MISSING else field.default,
            "range": field.metadata["range"].text if "range" in field.metadata else "",
        }
        for field in dataclasses.fields(method)
    }


_SWITCHES = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)
_NUMBERS = {int: "a whole number", float: "a number"}


def read_option(method: type[Any], name: str, value: object) -> object:
    """Read an option, text or a value from JSON, as the type that the method declares.

    Raises:
        AttendropError: The value is not of that type.
    """
    kinds = _kinds(method, name)
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
    if isinstance(value, bool) or not isinstance(value, str | int | kind):
        raise AttendropError(f"{name}={value!r} is not {_NUMBERS[kind]}.")
    try:
        return kind(value) if isinstance(value, str) else value
    except ValueError:
        raise AttendropError(f"{name}={value!r} is not {_NUMBERS[kind]}.") from None


def _kinds(method: type[Any], name: str) -> set[Any]:
    """The types that an option may have, of its annotation; of its default where that cannot be evaluated."""
    try:
        hint = get_type_hints(method)[name]
    except NameError:  # a name that only type checkers import
        return {type(next(field.default for field in dataclasses.fields(method) if field.name == name))}
    return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
