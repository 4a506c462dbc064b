"""The page's section on what the recommended model gets wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attendrop.reports.page import Section, render
from attendrop.reports.results import ReportedSetting, Results
from attendrop.tasks.error_analysis import suspicious_labels
from attendrop.wording import counted

# Classes, confusions and errors of a setting that are shown; metrics.json has more.
_CLASSES, _CONFUSIONS, _ERRORS = 12, 8, 5
# Characters of a text that are shown.
_LENGTH = 300


class ErrorPart(NamedTuple):
    """What a model gets wrong in a setting, as texts: tables of classes and confusions, sentences, and errors.

    ``hidden`` is the number of classes that are not in their table.
    """

    title: str
    classes: list[tuple[str, ...]]
    hidden: int
    confusions: list[tuple[str, ...]]
    sentences: list[str]
    errors: Sequence[Mapping[str, Any]]


def error_section(results: Results) -> Section | None:
    """Show the errors of the first run of each setting's recommended method; None if none are known."""
    parts = list(_parts(results))
    return Section("errors", "What goes wrong", render("errors.html", parts=parts)) if parts else None


def _parts(results: Results) -> Iterator[ErrorPart]:
    for setting in results.settings:
        found = _shown_run(setting)
        if found is None:
            continue
        label, seed, report = found
        title = f"{label}, seed {seed}" + (f", {setting.name}" if len(results.settings) > 1 else "")
        worst = sorted((each for each in report["classes"] if each["rows"]), key=lambda each: each["f1"])
        classes = [
            (
                *(each["class"], str(each["rows"]), str(each["predicted"])),
                *(f"{each[name]:.2f}" for name in ("precision", "recall", "f1")),
            )
            for each in worst[:_CLASSES]
        ]
        confused: list[tuple[str, ...]] = [
            (e["class"], e["predicted"], str(e["rows"])) for e in report.get("confusions", ())[:_CONFUSIONS]
        ]
        hidden = len(worst) - len(classes)
        errors: list[Mapping[str, Any]] = [_short(error) for error in list(report.get("errors", ()))[:_ERRORS]]
        yield ErrorPart(title, classes, hidden, confused, _sentences(report), errors)


def _shown_run(setting: ReportedSetting) -> tuple[str, int, Mapping[str, Any]] | None:
    """Pick the first run of the method to use, otherwise of the best one that says what it gets wrong."""
    scores = {row.label: row.mean for row in setting.answer.rows if row.n}
    best = sorted(setting.by_label, key=lambda label: -scores.get(label, -math.inf))
    labels = [setting.answer.use, *best]
    for label in labels:
        for run in setting.by_label.get(label or "", ()):
            if run.metrics.get("report"):
                return run.label, run.seed, run.metrics["report"]
    return None


def _sentences(report: Mapping[str, Any]) -> list[str]:
    found = []
    if calibration := report.get("calibration"):
        sure = [part for part in calibration["bins"] if part["probability"] > 0.9]
        if sure:
            count = counted(sure[-1]["rows"], "prediction")
            found.append(
                f"Of {count} with a probability above 0.9, {sure[-1]['accuracy']:.1%} are right; "
                f"probabilities are off by {calibration['error']:.3f} on average."
            )
    if doubtful := suspicious_labels(report):
        found.append(
            f"The text of {counted(len(doubtful), 'error')} is that of a training row with another label: one of the "
            "two labels is wrong."
        )
    return found


def _short(error: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the texts of an error."""
    nearest = error.get("nearest")
    return {**error, "text": _cut(error["text"]), "nearest": nearest and {**nearest, "text": _cut(nearest["text"])}}


def _cut(text: str) -> str:
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…"
