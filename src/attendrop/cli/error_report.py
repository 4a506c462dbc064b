"""What `attendrop evaluate --report` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.tasks.error_analysis import remarks, worst_classes
from attendrop.wording import aligned

# Classes, confusions and errors that are printed; JSON has all.
_CLASSES, _CONFUSIONS, _ERRORS = 30, 10, 5
_WIDTH = 100


def error_report(report: Mapping[str, Any]) -> str:
    """Format an :func:`attendrop.tasks.error_analysis.error_analysis`: worst classes first, then its parts."""
    parts = [_classes(report)]
    if report.get("confusions"):
        confused = [(c["class"], "->", c["predicted"], str(c["rows"])) for c in report["confusions"][:_CONFUSIONS]]
        parts.append(["most confused", *(f"  {line}" for line in aligned(confused, "lllr"))])
    parts += [found] if (found := remarks(report)) else []
    if report.get("errors"):
        parts.append(_errors(report["errors"]))
    return "\n\n".join("\n".join(part) for part in parts)


def _classes(report: Mapping[str, Any]) -> list[str]:
    worst = worst_classes(report)
    shown = worst[:_CLASSES]
    rows = [("class", "rows", "predicted", "precision", "recall", "F1")] + [
        (c["class"], str(c["rows"]), str(c["predicted"]), *(f"{c[name]:.3f}" for name in ("precision", "recall", "f1")))
        for c in shown
    ]
    more = len(worst) - len(shown)
    return [*aligned(rows, "lr"), *([f"and {more} with an F1 no lower; --json has all"] if more else [])]


def _errors(errors: list[dict[str, Any]]) -> list[str]:
    lines = ["most confident errors"]
    for error in errors[:_ERRORS]:
        lines.append(f"  row {error['row'] + 1}: {_short(error['text'])}")
        lines.append(f"    is {error['class']}, predicted {error['predicted']} ({error['probability']:.2f})")
        if nearest := error.get("nearest"):
            lines.append(
                f"    nearest training row ({nearest['likeness']:.2f}), {nearest['class']}: {_short(nearest['text'])}"
            )
    return lines


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
