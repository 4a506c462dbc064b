"""Section of the page on the errors of the recommended model."""

from __future__ import annotations

import math

from attendrop.reports.page import Section, render
from attendrop.reports.results import ReportedRun, ReportedSetting, Results
from attendrop.tasks.error_analysis import remarks, worst_classes

# Classes, confusions and errors of a setting that are shown; metrics.json has more.
_CLASSES, _CONFUSIONS, _ERRORS = 12, 8, 5


def error_section(results: Results) -> Section | None:
    """Show the errors of the first run of each setting's recommended method; None if none are known."""
    parts = []
    for setting in results.settings:
        if (run := _shown_run(setting)) is None:
            continue
        report = run.metrics["report"]
        worst = [each for each in worst_classes(report) if each["rows"]]
        classes = [
            (
                *(each[name] for name in ("class", "rows", "predicted")),
                *(f"{each[name]:.2f}" for name in ("precision", "recall", "f1")),
            )
            for each in worst[:_CLASSES]
        ]
        confusions = report.get("confusions", ())[:_CONFUSIONS]
        parts.append(
            {
                "title": f"{run.label}, seed {run.seed}" + (f", {setting.name}" if len(results.settings) > 1 else ""),
                "classes": classes,
                "hidden": len(worst) - len(classes),
                "confusions": [(each["class"], each["predicted"], each["rows"]) for each in confusions],
                "sentences": remarks(report),
                "errors": report.get("errors", ())[:_ERRORS],
            }
        )
    return Section("errors", "What goes wrong", render("errors.html", parts=parts)) if parts else None


def _shown_run(setting: ReportedSetting) -> ReportedRun | None:
    """Pick the first run of the recommended method, otherwise of the best one with an error analysis."""
    scores = {row.label: row.mean for row in setting.answer.rows if row.n}
    runs = setting.by_label
    labels = sorted(runs, key=lambda label: (label != setting.answer.use, -scores.get(label, -math.inf)))
    return next((run for label in labels for run in runs[label] if run.metrics.get("report")), None)
