"""What `attendrop evaluate --report` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.tasks.error_analysis import suspicious_labels
from attendrop.text_tables import aligned
from attendrop.wording import counted

# Classes, confusions and errors that are printed; JSON has all.
_CLASSES, _CONFUSIONS, _ERRORS = 30, 10, 5
_WIDTH = 100


def error_report(report: Mapping[str, Any]) -> str:
    """Word an :func:`attendrop.tasks.error_analysis.error_analysis`: classes, the worst ones first, then its parts."""
    parts = [_classes(report["classes"])]
    if report.get("confusions"):
        confused = [(c["class"], "->", c["predicted"], str(c["rows"])) for c in report["confusions"][:_CONFUSIONS]]
        parts.append(["most confused", *(f"  {line}" for line in aligned(confused, "lllr"))])
    if "calibration" in report:
        parts.append(_calibration(report["calibration"]))
    if report.get("errors"):
        parts.append(_errors(report["errors"]))
    if doubtful := suspicious_labels(report):
        have = f"{counted(len(doubtful), 'row')} of these {'has' if len(doubtful) == 1 else 'have'}"
        parts.append([f"{have} the text of a training row with another label: one of the two labels is wrong."])
    return "\n\n".join("\n".join(part) for part in parts)


def _classes(classes: list[dict[str, Any]]) -> list[str]:
    worst = sorted((each for each in classes if each["rows"] or each["predicted"]), key=lambda each: each["f1"])
    shown = worst[:_CLASSES]
    rows = [("class", "rows", "predicted", "precision", "recall", "F1")] + [
        (c["class"], str(c["rows"]), str(c["predicted"]), *(f"{c[name]:.3f}" for name in ("precision", "recall", "f1")))
        for c in shown
    ]
    more = len(worst) - len(shown)
    return [*aligned(rows, "lr"), *([f"and {more} classes with a higher F1; --json has all"] if more else [])]


def _calibration(found: Mapping[str, Any]) -> list[str]:
    sure = [part for part in found["bins"] if part["probability"] > 0.9]
    lines = [f"calibration: probabilities are off by {found['error']:.3f} on average (expected calibration error)"]
    if sure:
        rows, right = counted(sure[-1]["rows"], "prediction"), f"{sure[-1]['accuracy']:.1%}"
        lines.append(f"  of {rows} with a probability above 0.9, {right} are right")
    side = "less" if found["temperature"] > 1 else "more"
    best = f"a temperature of {found['temperature']:.2f} would fit these rows best"
    return [*lines, f"  {best}: the model should be {side} sure"]


def _errors(errors: list[dict[str, Any]]) -> list[str]:
    lines = ["wrong, and sure of it"]
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
