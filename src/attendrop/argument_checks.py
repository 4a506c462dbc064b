"""Argument checks that import only the standard library."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from attendrop.errors import AttendropError


def defines(thing: object, base: type, name: str) -> bool:
    """Return whether ``thing``, or its class, overrides a function of ``base``."""
    function = getattr(thing, name)
    return getattr(function, "__func__", function) is not getattr(base, name)


def check_declared(owner: str, function: str, declaration: str, *, defined: bool, declared: bool) -> None:
    """Raise unless a function is defined if and only if it is declared."""
    if defined and not declared:
        raise AttendropError(f"{owner} defines {function} but does not declare it; declare {declaration}.")
    if declared and not defined:
        raise AttendropError(f"{owner} declares {declaration} but does not define {function}; define it.")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise AttendropError(f"{name}={value!r} is not known.{suggestion(str(value), choices)}")


def check_least(name: str, value: int, least: int = 1, bits: int = 31) -> None:
    """Raise unless an option is at least ``least``, and below ``2**bits``, so that it fits into a C integer."""
    if value < least:
        raise AttendropError(f"{name.replace('_', '-')} must be at least {least}, not {value}.")
    if value >= 2**bits:
        raise AttendropError(f"{name.replace('_', '-')} must be below 2**{bits}, not {value}.")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AttendropError(f"{name}={value!r} must be a whole number, and at least {least}.")
    check_least(name, value, least)


def check_switch(name: str, value: bool) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise AttendropError(f"{name}={value!r} must be true or false.")


def suggestion(value: str, choices: tuple[str, ...]) -> str:
    """Suggest the closest choice to ``value``, and list all choices."""
    close = get_close_matches(value.lower().replace("_", "-"), [c.replace("_", "-") for c in choices], n=1, cutoff=0.5)
    nearest = next((c for c in choices if close and c.replace("_", "-") == close[0]), None)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"{hint} Choose from: {', '.join(choices)}."


def check_known(name: str, known: Collection[str], problem: str, listed: str) -> None:
    """Raise ``problem`` unless ``name`` is known: with the closest known name, or ``listed`` where none is close."""
    if name not in known:
        raise AttendropError(problem + (did_you_mean(name, known) or f"; {listed}."))


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" if a choice is close to ``name``, otherwise an empty text."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower().strip(), by_lower, n=1, cutoff=0.65)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
