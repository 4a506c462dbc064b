"""`attendrop methods NAME`: what a method does, its options with their ranges, and its source."""

from __future__ import annotations

import inspect

from attendrop.methods.core.base import Method
from attendrop.methods.core.options import described


def explanation(method: type[Method]) -> str:
    """Format a method's documentation, with its options in a table."""
    rows = [["option", "type", "default", "range"]]
    for name, found in described(method).items():
        kind = "list" if "Sequence" in found["type"] else found["type"]
        rows.append([name, kind, _text(found["default"]), found["range"]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    options = "\n".join(lines) if len(rows) > 1 else "No options."
    measured = f"Measured: {method.info.evidence}\n\n" if method.info.evidence else ""
    return (
        f"{method.info.name}: {method.info.summary}\n\n{measured}{options}\n\n{inspect.cleandoc(method.__doc__ or '')}"
    )


def _text(default: object) -> str:
    """Format a default as it is written on the command line."""
    match default:
        case bool():
            return str(default).lower()
        case "":
            return "''"
        case tuple() if any(isinstance(item, tuple) for item in default):
            return ";".join(_text(item) for item in default)
        case tuple():
            return ",".join(map(str, default))
        case _:
            return str(default)
