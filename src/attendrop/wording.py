"""Words of messages."""

from collections.abc import Mapping
from itertools import islice

# Number of names that a message lists.
_LISTED = 10


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted_rows(rows: int, what: str, windows: int) -> str:
    """Return a number of rows with what they are, such as "16 rows, 40 windows"; of whole rows without windows."""
    return f"{rows} {what}" if windows == rows else f"{rows} {what}, {counted(windows, 'window')}"


def counts_of(counts: Mapping[str, int]) -> str:
    """List names with their counts, such as "'B-LOC' (3), 'I-LOC' (1)", the first ten."""
    shown = ", ".join(f"{name!r} ({count})" for name, count in islice(counts.items(), _LISTED))
    return shown + (f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else "")


def interval_of(difference: Mapping[str, float | None] | None) -> str:
    """Format the ends, ``low`` and ``high``, of the 95 % interval of a difference; empty if nothing was changed."""
    if difference is None:
        return ""
    low, high = difference["low"], difference["high"]
    return "too few rows to tell" if low is None or high is None else f"{low:+.4f} to {high:+.4f}"
