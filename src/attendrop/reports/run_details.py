"""What the page tells of each run: its options, its scores, and its curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attendrop.methods.core.registry import flat_options
from attendrop.reports.finished_runs import FinishedRun, Results
from attendrop.studies.verdict import number

# The area of a curve, in the units of its SVG.
_WIDTH, _HEIGHT, _MARGIN = 200.0, 60.0, 4.0
# Told elsewhere: in the title of the run, or as the options of the method.
_NOT_SHOWN = ("method", "options", "seed", "output_dir")


@dataclass(frozen=True)
class Curve:
    """Curve of a run: the points of an SVG polyline, and what it shows in words."""

    points: str
    text: str


@dataclass(frozen=True)
class RunDetails:
    """A run in the page.

    Attributes:
        identifier: Its id in the page.
        label, setting, seed: What was run.
        group: Title of the runs of the same method and setting.
        title: Its seed and score.
        score, selection_score, steps, seconds: Of its ``metrics.json``; None if not known. A run whose epoch was chosen
            on the rows of its score has no selection score.
        values: Names and texts: its folder, all scores, and the options that not all runs have in common.
        curves: Its curves over epochs.
    """

    identifier: str
    label: str
    setting: str
    seed: int
    group: str
    title: str
    score: float | None
    selection_score: float | None
    steps: int | None
    seconds: float | None
    values: Sequence[tuple[str, str]]
    curves: Sequence[Curve]


def run_details(results: Results) -> list[RunDetails]:
    """Describe all runs, in the order of the settings, the methods and the seeds."""
    common = dict(common_options(results))
    runs = [(each.name, run) for each in results.settings for own in each.by_label.values() for run in own]
    several = len(results.settings) > 1
    return [
        _details(f"run-{count}", setting, run, common, several=several) for count, (setting, run) in enumerate(runs, 1)
    ]


def common_options(results: Results) -> list[tuple[str, str]]:
    """List the options that all runs have, with the same value."""
    options = [_options(run.metrics) for each in results.settings for run in each.runs]
    return [
        (name, value)
        for name, value in (options[0].items() if options else ())
        if all(found.get(name) == value for found in options)
    ]


def _options(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a run as texts: those that were given, replaced by what they resolved to."""
    given = {name: value for name, value in metrics["config"].items() if name not in _NOT_SHOWN}
    resolved = {"model": metrics["model"], **given, **(metrics.get("training") or {})}
    return {name: _text(value) for name, value in resolved.items() if value is not None}


def _details(
    identifier: str, setting: str, run: FinishedRun, common: Mapping[str, str], *, several: bool
) -> RunDetails:
    metrics = run.metrics
    score = _finite(metrics.get("score"))
    group = run.label + (f", {setting}" if several else "")
    title = f"Seed {run.seed}" + ("" if score is None else f": {metrics['metric']} {number(score)}")
    values = [("folder", run.folder)]
    for part, scores in metrics["all_scores"].items():
        values += [(f"{part} {name}", _text(value)) for name, value in scores.items()]
    if fit := metrics.get("train_fit"):
        values.append((f"{fit['metric']} on {fit['rows']} training rows", _text(fit["score"])))
    values += [(name, _text(value)) for name, value in flat_options(metrics["options"]).items()]
    values += [(name, value) for name, value in _options(metrics).items() if common.get(name) != value]
    return RunDetails(
        identifier,
        run.label,
        setting,
        run.seed,
        group,
        title,
        score,
        None if run.selects_on_reported else _finite(metrics.get("selection_score")),
        metrics.get("steps"),
        _finite(metrics.get("train_seconds")),
        values,
        _curves(run),
    )


def _curves(run: FinishedRun) -> list[Curve]:
    metric = str(run.metrics["metric"])
    scored, rows = run.selection_history, "evaluation" if run.selects_on_reported else "held-out"
    found = [
        ("training loss", [entry["train_loss"] for entry in run.history]),
        ("validation loss", [entry.get("selection_loss") for entry in scored]),
        (f"{metric} on {rows} rows", [entry["selection"].get(metric) for entry in scored]),
    ]
    return [curve for name, values in found if (curve := _curve(name, values)) is not None]


def _curve(name: str, values: Sequence[float | None]) -> Curve | None:
    known = [value for value in map(_finite, values) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    across = (_WIDTH - 2 * _MARGIN) / (len(known) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    points = " ".join(
        f"{_MARGIN + across * index:.1f},{_HEIGHT - _MARGIN - up * (value - low):.1f}"
        for index, value in enumerate(known)
    )
    between = f", between {number(low)} and {number(high)}"
    return Curve(points, f"{name}: {number(known[0])} to {number(known[-1])} in {len(known)} epochs{between}")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
