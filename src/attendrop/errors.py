"""The one exception class of the library, what may stand in a message, and failures of the machine."""

from __future__ import annotations

import errno
import re

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

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


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
