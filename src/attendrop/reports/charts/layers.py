"""Probability of dropping of each layer over training steps, of methods that learn it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attendrop.reports.charts.chart import (
    DASHES,
    MUTED,
    SERIES,
    Chart,
    Mark,
    add_legend,
    label_axes,
    new_figure,
    styled,
)
from attendrop.reports.finished_runs import FinishedRun, Setting

# Of what a method reports by epoch, these are probabilities of layers: "SOURCE/probability/LAYER".
_PROBABILITY = "/probability/"


@dataclass(frozen=True)
class _Curves:
    """Probabilities of one run.

    Attributes:
        run: The run.
        layers: Points (step, probability) by layer.
        steps, band: Steps, and the lower and upper bound at each, in which learners on noise stay; may be empty.
    """

    run: FinishedRun
    layers: Mapping[str, Sequence[tuple[float, float]]]
    steps: Sequence[float] = ()
    band: Sequence[Sequence[float]] = ()


def drop_probabilities(setting: Setting) -> list[Chart] | str:
    """Draw the probability of dropping of each layer over the steps: for each method its run with the lowest seed."""
    charts: list[Chart] = []
    for runs in setting.by_label.values():
        curves = _by_period(runs[0]) or _by_epoch(runs[0])
        if curves is not None:
            charts.append(_chart(setting, curves))
    return charts or "no method here learns a probability for each layer"


def _by_period(run: FinishedRun) -> _Curves | None:
    """Read what a method reports at the end of each of its periods."""
    found = run.metrics.get("dropout_steps") or ()
    layers: dict[str, list[tuple[float, float]]] = {}
    for entry in found:
        for layer, probability in entry["drop_probability"].items():
            layers.setdefault(layer, []).append((entry["step"], probability))
    if not layers:
        return None
    band = run.metrics.get("noise_band") or ()
    return _Curves(run, layers, [entry["step"] for entry in found] if band else (), band)


def _by_epoch(run: FinishedRun) -> _Curves | None:
    """Read what a method reports of each epoch."""
    layers: dict[str, list[tuple[float, float]]] = {}
    for entry in run.history:
        for name, value in entry["figures"].items():
            if _PROBABILITY in name:
                layer = name.partition(_PROBABILITY)[2]
                layers.setdefault(layer, []).append((entry.get("step", entry["epoch"]), value))
    return _Curves(run, layers) if layers else None


def _chart(setting: Setting, curves: _Curves) -> Chart:
    label, seed = curves.run.label, curves.run.seed
    names = sorted(curves.layers, key=_place)
    marks: list[Mark] = []
    rows: list[list[str]] = []
    with styled():
        figure, (axes,) = new_figure(2.9, [*names, *([""] if len(curves.band) else [])])
        entries: dict[str, Any] = {}
        for index, name in enumerate(names):
            steps, values = zip(*curves.layers[name], strict=True)
            color, dashes = SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]
            (entries[name],) = axes.plot(steps, values, color=color, linestyle=dashes, marker="o", markersize=2.5)
            marks += [
                Mark(axes, step, value, f"{name}, step {step:g}: {value:.3f}") for step, value in curves.layers[name]
            ]
            rows += [[name, f"{step:g}", f"{value:.4f}"] for step, value in curves.layers[name]]
        if len(curves.band):
            low, high = zip(*curves.band, strict=True)
            entries["95 % of learners on noise"] = axes.fill_between(
                curves.steps, low, high, color=MUTED, alpha=0.15, linewidth=0
            )
        axes.set_ylim(bottom=0)
        label_axes(axes, "training step", "probability of dropping")
        add_legend(figure, entries)
    caption = f"Run of seed {seed}: a line for each attention layer."
    caption += " What stays in the grey band cannot be told from noise." if len(curves.band) else ""
    title = f"Drop probability of each layer, {label}"
    header = ("layer", "step", "probability")
    return Chart("drop_probability", setting.name, title, caption, figure, header, rows, marks, label)


def _place(layer: str) -> tuple[str, int]:
    kind, _, index = layer.rpartition(".")
    return (kind, int(index)) if index.isdigit() else (layer, 0)
