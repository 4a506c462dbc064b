"""The charts of a study or a comparison, each made only if the runs have its data."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendrop.reports.epoch_charts import convergence, learning_curves, losses
from attendrop.reports.figures import (
    DASHES,
    MUTED,
    SERIES,
    Chart,
    Looks,
    drawing,
    every_method,
    label_axes,
    methods_shown,
    shown,
)
from attendrop.reports.grid_charts import grid_spread, heat_maps
from attendrop.reports.results import ReportedRun, ReportedSetting, Results
from attendrop.studies.answer import best_of
from attendrop.studies.method_rows import MethodRow, scored_data
from attendrop.studies.statistics import Estimate, mean_interval
from attendrop.studies.words import cost, interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A figure, several, or why there is none.
Made = Chart | list[Chart] | str


class LeftOut(NamedTuple):
    """A figure that was not made, for a setting or for all, and why."""

    title: str
    setting: str
    reason: str


def make_charts(results: Results) -> tuple[list[Chart], list[LeftOut]]:
    """Make all figures for which the runs have data, and explain why others were not made."""
    every = every_method(results)
    attempts: list[tuple[str, str, Made]] = [
        ("Score over data size", "", score_over_data_size(results, every)),
        *((title, each.name, made) for each in results.settings for title, made in _of_setting(each, every)),
    ]
    charts: list[Chart] = []
    left_out: list[LeftOut] = []
    for title, setting, found in attempts:
        if isinstance(found, str):
            left_out.append(LeftOut(title, setting, found))
        else:
            charts += found if isinstance(found, list) else [found]
    return charts, left_out


def _of_setting(setting: ReportedSetting, every: Looks) -> Iterator[tuple[str, Made]]:
    """Make the figures of a setting, each with a title in case it cannot be made."""
    yield "Scores", scores(setting)
    yield "Cost against gain", cost_against_gain(setting, every)
    yield "Learning curves", learning_curves(setting, every)
    yield "Convergence", convergence(setting, every)
    yield "Training and validation loss", losses(setting, every)
    yield "Drop probability of each layer", drop_probabilities(setting)
    yield "Scores over a grid, with and without an option", grid_spread(setting)
    yield "Heat map of a grid", heat_maps(setting)


# Scores, and cost against gain ---------------------------------------------------------------------------------------

SCORES = "scores"
# Used as the time if it is too short to be measured.
_LEAST_COST = 1e-3
# A baseline that is this many times as far from zero as the fine-tuned models would hide how these differ.
_FAR = 4.0


def scores(setting: ReportedSetting) -> Chart | str:
    """Draw the mean score of each method, with the interval of its difference from the reference."""
    rows = setting.answer.rows
    if len(rows) < 2 or not rows[0].is_reference:
        return "there are no scores of the reference and of a method"
    reference, metric, digits = rows[0], setting.answer.metric, setting.answer.decimals
    best = best_of(metric)
    low, high = (min(best, reference.mean + end) for end in _gain_limits(rows))
    beyond = moved = False
    with drawing(0.55 + 0.36 * len(rows)) as drawn:
        axes = drawn.axes
        for place, row in enumerate(rows):
            axes.vlines(reference.mean, place - 0.15, place + 0.3, color=MUTED, linewidth=1, linestyle=":")
            found = row.difference
            mean = row.mean if found is None else reference.mean + found.mean.value  # over common seeds, as the bar is
            score = number(row.mean, digits)
            moved = moved or (found is not None and found.n < max(row.n, reference.n))
            is_used, x = row.label == setting.answer.use, min(max(mean, low), high)
            color, fill, ends = SERIES[0] if is_used else MUTED, "full", ""
            if x != mean:
                beyond, fill = True, "none"
            elif found is not None and math.isfinite(found.known.low):
                span = [min(best, reference.mean + end) for end in (found.known.low, found.known.high)]
                axes.plot(np.clip(span, low, high), [place, place], color=color, linewidth=3, alpha=0.5)
                ends = f"[{number(span[0], digits)}, {number(span[1], digits)}]"
            axes.plot([x], [place], "o", color=color, fillstyle=fill, clip_on=False)
            weight = "bold" if is_used else "normal"
            look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "bottom", "fontsize": "small"}
            axes.text(0, place - 0.22, shown(row.label), fontweight=weight, **look)
            axes.text(1, place - 0.22, score, ha="right", fontweight=weight, **look)
            text = f"{row.label}: {score}{f', interval {ends}' if ends else ''}"
            drawn.tell(x, place, text, row.label, score, ends or "-", str(row.n))
        axes.set(xlim=(low, high), ylim=(len(rows) - 0.6, -0.75), yticks=[])
        axes.locator_params(axis="x", nbins=5)  # long numbers would touch each other
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        label_axes(axes, metric, "")
    caption = (
        f"Points: mean scores. Bars: 95 % intervals {_rows_of_intervals(rows)} of the difference from "
        f"{reference.label} (dotted line). Where a bar crosses the line, the difference may be chance."
    )
    caption += " Where seeds are missing, a point is the reference's mean plus the difference." if moved else ""
    caption += " An open point at an edge marks a value beyond it." if beyond else ""
    header = ("method", metric, "95 % interval beside the reference", "seeds")
    return drawn.chart(SCORES, setting.name, "Scores", caption, header)


def cost_against_gain(setting: ReportedSetting, every: Looks) -> Chart | str:
    """Draw the difference of each method from the reference, with its interval, over its time of training."""
    rows = {row.label: row for row in setting.answer.rows if row.cost is not None}
    compared = [row for row in rows.values() if row.difference is not None and row.difference.n > 1]
    if not compared:
        return "no method has two seeds in common with the reference"
    reference = next(row.label for row in setting.answer.rows if row.is_reference)
    methods, left_out = methods_shown(setting, {reference, *(row.label for row in compared)}, every)
    low, high = _gain_limits([rows[label] for label in methods])
    beyond = False
    with drawing(2.9, methods) as drawn:
        axes = drawn.axes
        axes.axhline(0, color=MUTED, linewidth=1, linestyle=":")
        for label, method in methods.items():
            row = rows[label]
            found, x = row.difference, max(row.cost or 0.0, _LEAST_COST)
            text = "the reference" if found is None else interval(found, setting.answer.decimals)
            y = 0.0 if found is None else found.mean.value
            look: dict[str, Any] = {"mfc": "none"}  # an open marker at the edge
            if low <= y <= high:
                ends = [[0.0], [0.0]] if found is None else [[y - found.known.low], [found.known.high - y]]
                look = {"yerr": ends, "capsize": 3}
            else:
                beyond, y = True, min(max(y, low), high)
            drawn.entries[label] = axes.errorbar([x], [y], fmt=method["marker"], color=method["color"], **look)
            pairs = "-" if found is None else str(found.n)
            drawn.tell(x, y, f"{label}: {text}, {cost(row)} the time", label, cost(row), text, pairs)
        space = 0.06 * (high - low)
        axes.set_ylim(low - space, high + space)
        _scale_costs(axes)
        label_axes(axes, "time of training, relative to the reference", f"difference in {setting.answer.metric}")
    caption = f"Above the dotted line: better than {reference}. Bars: 95 % intervals {_rows_of_intervals(compared)}."
    caption += " An open marker at an edge marks a value beyond it." if beyond else ""
    header = ("method", "time", "difference [95 %]", "seeds in common")
    return drawn.chart("cost_gain", setting.name, "Cost against gain", caption + left_out, header)


def _scale_costs(axes: Axes) -> None:
    """Make the time axis logarithmic, with labels even if it covers at most one power of ten."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    least, most = axes.get_xlim()
    if most < 10 * least:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_minor_locator(NullLocator())


def _gain_limits(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Choose the range of differences: all intervals, except those of far baselines."""
    found = [(each, row.is_baseline) for row in rows if (each := row.difference) is not None]
    spans = [(each.mean.value, *_finite_ends(each.known), is_baseline) for each, is_baseline in found]
    near = max((max(-low, high) for _, low, high, is_baseline in spans if not is_baseline), default=0.0)
    kept = [span for span in spans if not span[-1] or not near or abs(span[0]) <= _FAR * near]
    low, high = min([0.0, *(span[1] for span in kept)]), max([0.0, *(span[2] for span in kept)])
    space = 0.08 * (high - low) or 0.01
    return low - space, high + space


def _rows_of_intervals(rows: Sequence[MethodRow]) -> str:
    """Say of which rows the intervals of differences hold."""
    known = {row.difference.components is not None for row in rows if row.difference and row.difference.n > 1}
    if len(known) == 2:
        return "on new rows (on these rows, of runs without scores by row)"
    return "on new rows" if True in known else "on these rows"


def _finite_ends(known: Estimate) -> tuple[float, float]:
    return (known.low, known.high) if math.isfinite(known.low) else (known.value, known.value)


# Score over data size -----------------------------------------------------------------------------------------------

# Options that only choose the number of rows.
_SIZES = ("max_train_samples", "shots")


def score_over_data_size(results: Results, every: Looks) -> list[Chart] | str:
    """Draw the score of each method over the number of training rows, for each task that was run with several."""
    groups: dict[str, list[ReportedSetting]] = {}
    for setting in results.settings:
        if setting.answer.rows:
            of, given = setting.runs[0].metrics, setting.runs[0].options
            options = {name: value for name, value in given.items() if name not in _SIZES}
            key = json.dumps([of["task"], of["model"], of["metric"], options], sort_keys=True)
            groups.setdefault(key, []).append(setting)
    found = [sorted(group, key=_rows) for group in groups.values() if len({_rows(each) for each in group}) > 1]
    return [
        _over_sizes(group, every) for group in found if _common_labels(group)
    ] or "no two settings with a method in common differ only in the number of training rows"


def _common_labels(settings: Sequence[ReportedSetting]) -> set[str]:
    """Return the labels of the methods that have scores in all settings."""
    return set.intersection(*({row.label for row in setting.answer.rows if row.n} for setting in settings))


def _rows(setting: ReportedSetting) -> int:
    """Median number of training rows of the runs."""
    return int(statistics.median(run.metrics["data"]["rows"]["train"] for run in setting.runs))


def _over_sizes(settings: Sequence[ReportedSetting], every: Looks) -> Chart:
    methods, left_out = methods_shown(settings[-1], _common_labels(settings), every)
    metric, digits = settings[0].answer.metric, max(each.answer.decimals for each in settings)
    with drawing(2.9, methods) as drawn:
        axes = drawn.axes
        for label, method in methods.items():
            rows = [next(row for row in each.answer.rows if row.label == label) for each in settings]
            sizes, means = [_rows(each) for each in settings], [row.mean for row in rows]
            (drawn.entries[label],) = axes.plot(sizes, means, **method)
            for size, row in zip(sizes, rows, strict=True):
                low, high, ends = "-", "-", ""
                if row.n > 1:
                    found = mean_interval(list(row.scores.values()))
                    most = min(best_of(metric), found.high)
                    axes.vlines(size, found.low, most, color=method["color"], alpha=0.5)
                    low, high = number(found.low, digits), number(most, digits)
                    ends = f" [{low}, {high}]"
                mean = number(row.mean, digits)
                text = f"{label}, {size} rows: {mean}{ends}"
                drawn.tell(size, row.mean, text, label, str(size), mean, low, high, str(row.n))
        drawn_rows = [row for each in settings for row in each.answer.rows if row.label in drawn.entries]
        axes.set_ylim(*_score_limits(drawn_rows))
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        label_axes(axes, "training rows", metric)
    caption = f"Mean over seeds; bars: 95 % intervals of the mean, which may leave the frame.{left_out}"
    header = ("method", "training rows", metric, "low", "high", "seeds")
    data = _common_name(settings)
    return drawn.chart("data_size", "", f"Score over data size, {data}", caption, header, data)


def _common_name(settings: Sequence[ReportedSetting]) -> str:
    """Name what the settings have in common: the data, and options that differ from other settings."""
    first, *others = (setting.name.split(", ") for setting in settings)
    common = ", ".join(part for part in first if all(part in other for other in others))
    return common or scored_data(settings[0].runs[0].metrics)


def _score_limits(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Choose the range of scores: those of all seeds. Intervals of two seeds would dominate the plot."""
    scores = [score for row in rows for score in row.scores.values()]
    space = 0.2 * (max(scores) - min(scores)) or 0.01
    return min(scores) - space, max(scores) + space


# Drop probability of each layer -------------------------------------------------------------------------------------

# What a method reports by epoch under such a name is the probability of a layer: "SOURCE/probability/LAYER".
_PROBABILITY = "/probability/"


def drop_probabilities(setting: ReportedSetting) -> list[Chart] | str:
    """Draw the probability of dropping of each layer over the steps: for each method its run with the lowest seed."""
    charts = []
    for run, *_ in setting.by_label.values():
        layers = _layers(run)
        if not layers:
            continue
        names = sorted(layers, key=_place)
        with drawing(2.9, names) as drawn:
            for index, name in enumerate(names):
                steps, values = zip(*layers[name], strict=True)
                color, dashes = SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]
                line = drawn.axes.plot(steps, values, color=color, linestyle=dashes, marker="o", markersize=2.5)
                (drawn.entries[name],) = line
                for step, value in layers[name]:
                    drawn.tell(step, value, f"{name}, step {step:g}: {value:.3f}", name, f"{step:g}", f"{value:.4f}")
            drawn.axes.set_ylim(bottom=0)
            label_axes(drawn.axes, "training step", "probability of dropping")
        caption = f"Run of seed {run.seed}: a line for each attention layer."
        title, header = f"Drop probability of each layer, {run.label}", ("layer", "step", "probability")
        charts.append(drawn.chart("drop_probability", setting.name, title, caption, header, run.label))
    return charts or "no method here learns a probability for each layer"


def _layers(run: ReportedRun) -> dict[str, list[tuple[float, float]]]:
    """Read points (step, probability) by layer: of each of the method's periods, or else of each epoch."""
    reports = [(entry["step"], entry["drop_probability"]) for entry in run.metrics.get("dropout_steps") or ()]
    for entry in () if reports else run.history:
        figures = ((name.partition(_PROBABILITY), value) for name, value in entry["figures"].items())
        of_layers = {layer: value for (_, is_layer, layer), value in figures if is_layer}
        reports.append((entry.get("step", entry["epoch"]), of_layers))
    layers: dict[str, list[tuple[float, float]]] = {}
    for step, probabilities in reports:
        for layer, probability in probabilities.items():
            layers.setdefault(layer, []).append((step, probability))
    return layers


def _place(layer: str) -> tuple[str, int]:
    kind, _, index = layer.rpartition(".")
    return (kind, int(index)) if index.isdigit() else (layer, 0)
