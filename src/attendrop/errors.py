"""The one exception class of the library, checks of arguments that raise it, and failures of the machine.

Only the standard library is imported.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

# A longer message loses its middle: what was wrong stands at its beginning, what to do at its end.
_MOST, _BEGINNING, _END = 2000, 1300, 600
# A terminal acts on control characters, and on those that write a line from right to left.
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

# Of the disk: full, beyond a quota, or a file beyond the limit of the process.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# PyTorch's and Arrow's words for an allocation that failed, and the loader's for a library that it cannot map.
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "bad_alloc", "failed to map")


def printable(text: str) -> str:
    r"""Write control characters as escapes, such as ``\x1b``; tabs and line feeds stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return a message as one printable line of at most 2,000 characters, whatever values of the user it holds."""
    text = printable(" ".join(text.split("\n")))
    if len(text) <= _MOST:
        return text
    return f"{text[:_BEGINNING]} [… {len(text) - _BEGINNING - _END:,} characters …] {text[-_END:]}"


class AttendropError(ValueError):
    """A request that cannot be carried out.

    The message is one sentence or two: what was wrong, with the offending value, and what to do about it. It is
    shortened by :func:`one_line`. The command line prints it without a traceback and exits with code 2.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RunsFailed(AttendropError):
    """All runs failed that others are compared with: the exit code is 1, as where others fail."""

    exit_code = 1


def machine_failure(error: BaseException, again: str = "start again") -> str | None:
    """Say in a sentence that the machine's memory or disk ended, or what it refused; None for any other error.

    Args:
        error: What was raised; libraries raise different types for the same cause.
        again: What to do once there is room.
    """
    if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, which is not loaded for every command
        return "the GPU's memory is full; lower --batch-size and raise --gradient-accumulation by the same factor."
    is_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if is_memory or (isinstance(error, RuntimeError | ImportError) and any(part in str(error) for part in _NO_MEMORY)):
        return (
            "the memory of this machine is full, or its limit is reached; lower --max-length, or --batch-size (and "
            "raise --gradient-accumulation by the same factor), or give smaller files."
        )
    if not isinstance(error, OSError):
        return None
    told = (error.strerror or str(error)) + (f": {error.filename}" if error.filename else "")
    if error.errno == errno.EFBIG:
        return f"{told}, above the limit on the size of files. Raise it (`ulimit -f`), then {again}."
    return f"{told}. Free some space, then {again}." if error.errno in DISK_FULL else told


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> object:
    """Return ``value``; raise unless it is one of ``choices``."""
    if value not in choices:
        raise AttendropError(f"{name}={value!r} is not known.{suggestion(str(value), choices)}")
    return value


def check_least(name: str, value: int, least: int = 1, bits: int = 31) -> None:
    """Raise unless an option is at least ``least``, and below ``2**bits``, so that it fits into a C integer."""
    if value < least:
        raise AttendropError(f"{name.replace('_', '-')} must be at least {least}, not {value}.")
    if value >= 2**bits:
        raise AttendropError(f"{name.replace('_', '-')} must be below 2**{bits}, not {value}.")


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return ``value``; raise unless it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AttendropError(f"{name}={value!r} must be a whole number, and at least {least}.")
    check_least(name, value, least)
    return value


def check_switch(name: str, value: bool) -> bool:
    """Return ``value``; raise unless it is True or False."""
    if not isinstance(value, bool):
        raise AttendropError(f"{name}={value!r} must be true or false.")
    return value


def suggestion(value: str, choices: tuple[str, ...]) -> str:
    """Suggest the closest choice to ``value``, and list all choices."""
    close = get_close_matches(value.lower().replace("_", "-"), [c.replace("_", "-") for c in choices], n=1, cutoff=0.5)
    nearest = next((c for c in choices if close and c.replace("_", "-") == close[0]), None)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"{hint} Choose from: {', '.join(each or repr(each) for each in choices)}."


def check_known(name: str, known: Collection[str], problem: str, listed: str) -> None:
    """Raise ``problem`` unless ``name`` is known: with the closest known name, or ``listed`` where none is close."""
    if name not in known:
        raise AttendropError(problem + (did_you_mean(name, known) or f"; {listed}."))


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" if a choice is close to ``name``, otherwise an empty text."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower().strip(), by_lower, n=1, cutoff=0.65)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
