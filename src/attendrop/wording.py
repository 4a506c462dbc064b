"""Words of messages."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice

# Number of names that a message lists, with counts and without.
_LISTED, MOST_NAMES = 10, 50
# Smaller numbers are zero, but for rounding: 1 % of the least score.
_ROUNDING = 1e-16


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


def names_of(names: Sequence[str], separator: str = ", ", most: int = MOST_NAMES) -> str:
    """List names, such as "'text', 'label'", the first fifty."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return separator.join([*map(repr, names[:most]), *more])


def decimals(smallest: float, usual: int) -> int:
    """Return with how many decimals numbers are shown that differ by as little as ``smallest``: ``usual`` or more."""
    return max(usual, -math.floor(math.log10(smallest))) if _ROUNDING < smallest < 1 else usual


def score_text(value: float, like: float | None = None, sign: str = "") -> str:
    """Format a score, or a difference of scores ``like`` the given one, with more than four decimals if it is small."""
    return f"{value:{sign or 'z'}.{decimals(abs(value if like is None else like) / 100, 4)}f}"


def interval_of(difference: Mapping[str, float | None] | None, like: float) -> str:
    """Format the ends, ``low`` and ``high``, of the 95 % interval of a difference of scores ``like`` the given one.

    It is empty if nothing was changed.
    """
    if difference is None:
        return ""
    low, high = difference["low"], difference["high"]
    if low is None or high is None:
        return "too few rows to tell"
    return f"{score_text(low, like, '+')} to {score_text(high, like, '+')}"
