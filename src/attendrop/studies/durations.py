"""Durations in words."""


def duration(seconds: float) -> str:
    """Format seconds, such as "40 s", "3 min" or "2.5 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
