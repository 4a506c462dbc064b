"""Figures of a study or a comparison, drawn by Altair: one function each, for the page and as files for papers."""

from __future__ import annotations

import json
import math
import re
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import numpy as np
import pandas as pd

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import flat_options, labelled_method
from attendrop.reports.tables import score_scale
from attendrop.studies.answer import MethodRow, cost, interval, number, scored_data, signed, span_of
from attendrop.studies.executor import LABEL
from attendrop.studies.results import OF_RUN, ReportedSetting, Results
from attendrop.wording import decimals

try:
    import altair as alt
    import vl_convert
except ImportError:
    raise AttendropError("Figures and pages need Altair; run `pip install 'attendrop[plots]'`.") from None

# Legible on white and on black, as pages follow the browser's colour scheme.
SERIES = ("#2f7fd6", "#d9702b", "#2e9e63", "#a05fd0", "#b08416", "#1a94a0", "#d14b8f", "#7b848f")
MUTED = "#808890"
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
SIZE = {"width": 360, "height": 220}  # pixels; texts of this width can be read on a phone
_TITLE_WIDTH, _TITLE_LINES = 62, 4  # characters; lines
# What XML cannot hold.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff￾￿]")
_CONFIG = {
    "view": {"stroke": None},
    "axis": {"gridColor": "#80808040", "domainColor": MUTED, "tickColor": MUTED, "labelLimit": 150},
    "legend": {"labelLimit": 300, "symbolOpacity": 1},
}
_BARS = "95 % CI (seeds × examples)"
_BEYOND = " What is beyond the frame stands among the values."
SCORES = "scores"
# The number of each method by its label, which chooses its colour and marker in all figures of a report.
Looks = Mapping[str, int]


@dataclass(frozen=True)
class Figure:
    """Figure with its values, as texts.

    ``kind`` names its files, with what differs in others of its kind: the ``setting``, empty for several, and the
    ``detail``, such as a method, which is also in the title.
    """

    kind: str
    setting: str
    title: str
    caption: str
    chart: alt.TopLevelMixin
    values: pd.DataFrame
    detail: str = ""

    def spec(self) -> dict[str, Any]:
        """Return it in Vega-Lite without its title, for a page."""
        found: dict[str, Any] = _clean(self.chart.to_dict())
        return found | {"config": _CONFIG, "description": f"{self.title}. {self.caption}"}

    def files(self) -> dict[str, bytes]:
        """Return it with title and setting, on white, as files for papers by their suffix: PDF, PNG and SVG."""
        lines: list[str] = []
        for text in (self.title, self.setting):
            wide = 1 if text.isascii() else 2  # letters of Chinese, Japanese or Korean are wide
            lines += textwrap.wrap(text, _TITLE_WIDTH // wide, max_lines=_TITLE_LINES, placeholder=" …")
        title = {"text": lines, "anchor": "start", "fontWeight": "normal"}
        svg = vl_convert.vegalite_to_svg(_clean(self.spec() | {"title": title, "background": "white", "padding": 8}))
        return {"pdf": vl_convert.svg_to_pdf(svg), "png": vl_convert.svg_to_png(svg, scale=2), "svg": svg.encode()}


def _clean(value: Any) -> Any:
    """Replace what XML cannot hold in all texts: Vega draws SVG."""
    if isinstance(value, dict):
        return {_clean(name): _clean(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return _CONTROL.sub("�", value) if isinstance(value, str) else value


def make_figures(results: Results) -> tuple[list[Figure], list[str]]:
    """Make all figures for which the runs have data, and say in a line each why others were not made."""
    labels = [*results.labels, *(label for each in results.settings for label in each.by_label)]
    looks = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    figures, reasons = [], dict[tuple[str, str], list[str]]()
    for setting in (None, *results.settings):
        for title, draw in _OF_SETTING.items() if setting else _OF_ALL.items():
            found = draw(setting or results, looks)
            if isinstance(found, str):
                reasons.setdefault((title, found), []).append(setting.name if setting else "")
            else:
                figures += found
    left_out = []
    for (title, reason), names in reasons.items():
        is_of_some = names != [""] and len(names) < len(results.settings)
        left_out.append(f"{title} ({'; '.join(names)}): {reason}." if is_of_some else f"{title}: {reason}.")
    return figures, left_out


# Parts of figures ----------------------------------------------------------------------------------------------------


def chart_of(records: Sequence[Mapping[str, Any]]) -> tuple[alt.Chart, pd.DataFrame]:
    """Begin a chart of records, and return their texts as a table, which are also its tooltips.

    Keys that begin with ``_`` hold what is drawn: the fields of the chart.
    """
    texts = [name for name in records[0] if not name.startswith("_")]
    tips = [alt.Tooltip(f"_{place}:N", title=name) for place, name in enumerate(texts)]
    values = [
        {name: value for name, value in record.items() if name.startswith("_")}
        | {f"_{place}": record[name] for place, name in enumerate(texts)}  # any letter may stand in a name
        for record in records
    ]
    return alt.Chart(alt.Data(values=values)).encode(tooltip=tips), pd.DataFrame(records, columns=texts, dtype=object)


def _drawn(
    records: Sequence[Mapping[str, Any]],
    methods: Looks,
    *,
    band: bool = False,
    clip: bool = False,
    line: Mapping[str, Any] | None = None,
    **channels: Any,
) -> tuple[alt.LayerChart, pd.DataFrame]:
    """Draw a point for each record, with what it has from ``_low`` to ``_high`` as a bar or band, and lines of methods.

    Records that are ``_pale`` are; ``clip`` leaves out points beyond the frame. Also returns the texts, see
    :func:`chart_of`. Colours and markers of methods are the same in all figures of a report, with one legend for both.
    """
    legend = alt.Legend(title=None, orient="bottom", columns=2 if max(map(len, methods)) <= 20 else 1)
    colors = [SERIES[place % len(SERIES)] for place in methods.values()]
    shapes = [_SHAPES[(place + place // len(SERIES)) % len(_SHAPES)] for place in methods.values()]
    shape = alt.Shape("_0:N", scale=alt.Scale(domain=list(methods), range=shapes), legend=legend)
    base, values = chart_of(records)
    base = base.encode(
        color=alt.Color("_0:N", scale=alt.Scale(domain=list(methods), range=colors), legend=legend), **channels
    )
    spread = base.mark_area(opacity=0.15) if band else base.mark_rule(opacity=0.5, strokeWidth=1.5, clip=True)
    chart = alt.layer(spread.encode(y="_low:Q", y2="_high:Q"))
    if line is not None:
        chart += base.mark_line(**line)
    opacity = alt.condition("datum._pale", alt.value(0.4), alt.value(1))
    return chart + base.mark_point(filled=True, size=50, clip=clip).encode(shape=shape, opacity=opacity), values


def _shown_methods(setting: ReportedSetting, labels: Collection[str], looks: Looks) -> tuple[Looks, str]:
    """Choose the methods of a figure: the reference, and those with the highest scores, as many as there are colours.

    The ``labels`` are of methods that have what the figure shows. A sentence says how many are left out.
    """
    ranks = {row.label: (not row.is_reference, -row.mean) for row in setting.answer.rows}
    found = [label for label in looks if label in labels]
    kept = sorted(found, key=lambda label: ranks.get(label, (True, math.inf)))[: len(SERIES)]
    is_first = bool(kept) and not ranks.get(kept[0], (True,))[0]
    which = f"{'the reference and ' if is_first else ''}the {len(kept) - is_first} with the best scores"
    sentence = f" Of {len(found)} methods, {which} are shown." if len(kept) < len(found) else ""
    return {label: looks[label] for label in found if label in kept}, sentence


def _rule(**place: float) -> alt.Chart:
    """Draw a dotted line at a place of an axis."""
    return alt.Chart(alt.Data(values=[place])).mark_rule(color=MUTED, strokeDash=[2, 2])


def _gain_limits(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Choose the range of differences: all intervals, except those of far baselines.

    One that is four times as far from zero as the fine-tuned models would hide how these differ.
    """
    spans = []
    for row in rows:
        if row.difference is not None:
            found, value = row.difference.mean, row.difference.mean.value
            ends = (found.low, found.high) if math.isfinite(found.low) else (value, value)
            spans.append((value, *ends, row.is_baseline))
    near = max((max(-low, high) for _, low, high, is_baseline in spans if not is_baseline), default=0.0)
    kept = [span for span in spans if not span[-1] or not near or abs(span[0]) <= 4 * near]
    low, high = min([0.0, *(span[1] for span in kept)]), max([0.0, *(span[2] for span in kept)])
    space = 0.08 * (high - low) or 0.01
    return low - space, high + space


# Scores, and cost against gain ---------------------------------------------------------------------------------------


def scores(setting: ReportedSetting, _: Looks) -> list[Figure] | str:
    """Draw the mean score of each method, with the interval of its difference from the reference."""
    rows, metric, digits = setting.answer.rows, setting.answer.metric, setting.answer.decimals
    if len(rows) < 2 or not rows[0].is_reference:
        return "there are no scores of the reference and of a method"
    reference, best = rows[0], 0.0 if metric.startswith("neg_") else 1.0
    worst = best - span_of(metric)
    low, high = (min(best, reference.mean + end) for end in _gain_limits(rows))
    records: list[dict[str, Any]] = []
    for row in rows:
        found, ends = row.difference, list[float]()
        if found is not None and math.isfinite(found.mean.low):
            ends = [max(worst, min(best, reference.mean + end)) for end in (found.mean.low, found.mean.high)]
        shown = f"[{', '.join(number(end, digits) for end in ends)}]" if ends else "-"
        record: dict[str, Any] = {"method": row.label, metric: number(row.mean, digits)}
        record["95 % interval beside the reference"] = shown
        record |= {"seeds": str(row.n), "_color": SERIES[0] if row.label == setting.answer.use else MUTED}
        # A point is over common seeds, as its bar is.
        record["_x"] = row.mean if found is None else reference.mean + found.mean.value
        records.append(record | dict(zip(("_low", "_high"), ends, strict=False)))
    base, values = chart_of(records)
    names = alt.Axis(title=None, domain=False, ticks=False, labelLimit=250)
    scale = alt.Scale(domain=[low, high], nice=False)
    x = {"title": metric, "scale": scale, "axis": alt.Axis(tickCount=4)}
    base = base.encode(
        y=alt.Y("_0:N", sort=[row.label for row in rows], axis=names),
        x=alt.X("_x:Q", **x),
        color=alt.Color("_color:N", scale=None),
    )
    bars = base.mark_rule(strokeWidth=4, opacity=0.5, clip=True).encode(x=alt.X("_low:Q", **x), x2="_high:Q")
    told = base.mark_text(align="left").encode(x=alt.value(SIZE["width"] - 50), text="_1:N", color=alt.value(MUTED))
    chart = _rule(_x=reference.mean).encode(x=alt.X("_x:Q", **x)) + bars
    chart = chart + base.mark_circle(size=60, opacity=1, clip=True) + told
    caption = (
        f"Points: mean scores. Bars: {_BARS} of the difference from {reference.label} (dotted line). Where a bar "
        "crosses the line, the difference may be chance."
    )
    if any(row.difference is not None and row.difference.n < max(row.n, reference.n) for row in rows):
        caption += " Where seeds are missing, a point is the reference's mean plus the difference."
    caption += _BEYOND * any(not low <= record["_x"] <= high for record in records)
    return [Figure(SCORES, setting.name, "Scores", caption, chart.properties(width=SIZE["width"] - 60), values)]


def cost_against_gain(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the difference of each method from the reference, with its interval, over its time of training."""
    rows = {row.label: row for row in setting.answer.rows if math.isfinite(row.cost)}
    compared = [label for label, row in rows.items() if row.pairs > 1]
    if not compared:
        return "no method has two seeds in common with the reference"
    reference = next(row.label for row in setting.answer.rows if row.is_reference)
    methods, left_out = _shown_methods(setting, {reference, *compared}, looks)
    low, high = _gain_limits([rows[label] for label in methods])
    records: list[dict[str, Any]] = []
    for row in map(rows.__getitem__, methods):
        found = row.difference
        text = "the reference" if found is None else interval(found, setting.answer.decimals)
        record: dict[str, Any] = {"method": row.label, "time": cost(row), "difference [95 %]": text}
        record["seeds in common"] = "-" if found is None else str(found.n)
        # A time that is too short to be measured has no place on a logarithmic axis.
        record |= {"_x": max(row.cost, 1e-3), "_y": 0.0 if found is None else found.mean.value}
        known = found is not None and math.isfinite(found.mean.low)
        records.append(record | ({"_low": found.mean.low, "_high": found.mean.high} if found and known else {}))
    times = [record["_x"] for record in records]
    ticks = {"labelExpr": "datum.label && datum.label + 'x'", "format": "~g", "tickCount": 5, "labelOverlap": "greedy"}
    scale = alt.Scale(type="log", domain=[0.8 * min(times), 1.25 * max(times)], nice=False)
    title, axis = "time of training, relative to the reference", alt.Axis(grid=False, **ticks)
    gains = alt.Scale(domain=[low, high], nice=False)
    y = alt.Y("_y:Q", title=f"difference in {setting.answer.metric}", scale=gains)
    chart, values = _drawn(records, methods, clip=True, x=alt.X("_x:Q", title=title, axis=axis, scale=scale), y=y)
    caption = f"Above the dotted line: better than {reference}. Bars: {_BARS}."
    caption += _BEYOND * any(not low <= record["_y"] <= high for record in records) + left_out
    chart = (_rule(_y=0).encode(y="_y:Q") + chart).properties(**SIZE)
    return [Figure("cost_gain", setting.name, "Cost against gain", caption, chart, values)]


# Score over data size ------------------------------------------------------------------------------------------------


def score_over_data_size(results: Results, looks: Looks) -> list[Figure] | str:
    """Draw the score of each method over the number of training rows, for each task that was run with several."""
    groups: dict[str, list[ReportedSetting]] = {}
    sizes: dict[str, int] = {}
    for setting in (setting for setting in results.settings if setting.answer.rows):
        of = setting.runs[0]
        sizes[setting.name] = int(statistics.median(run["data"]["rows"]["train"] for run in setting.runs))
        # The last two options only choose the number of rows.
        no_others = (*OF_RUN, "max_train_samples", "shots")
        options = {name: value for name, value in of["config"].items() if name not in no_others}
        key = json.dumps([of["task"], of["model"], of["metric"], options], sort_keys=True)
        groups.setdefault(key, []).append(setting)
    figures = []
    for group in (sorted(group, key=lambda setting: sizes[setting.name]) for group in groups.values()):
        common = set.intersection(*({row.label for row in setting.answer.rows} for setting in group))
        counts = sorted({sizes[setting.name] for setting in group})
        if len(counts) < 2 or not common:
            continue
        methods, left_out = _shown_methods(group[-1], common, looks)
        metric, digits = group[0].answer.metric, max(each.answer.decimals for each in group)
        records: list[dict[str, Any]] = []
        for label, setting in product(methods, group):
            row = next(row for row in setting.answer.rows if row.label == label)
            record: dict[str, Any] = {"method": label, "training rows": str(sizes[setting.name])}
            record |= {metric: number(row.mean, digits), "seeds": str(row.n)}
            records.append(record | {"_x": sizes[setting.name], "_y": row.mean})
        every = [record["_y"] for record in records]
        space = 0.2 * (max(every) - min(every)) or 0.01
        x = alt.X("_x:Q", title="training rows", axis=alt.Axis(values=counts), scale=alt.Scale(type="log"))
        limits = alt.Scale(domain=[min(every) - space, max(every) + space], nice=False)
        chart, values = _drawn(records, methods, line={}, x=x, y=alt.Y("_y:Q", title=metric, scale=limits))
        first, *others = (setting.name.split(", ") for setting in group)
        data = ", ".join(part for part in first if all(part in other for other in others))
        data = data or scored_data(group[0].runs[0])
        caption = f"Mean over seeds.{left_out}"
        title = f"Score over data size, {data}"
        figures.append(Figure("data_size", "", title, caption, chart.properties(**SIZE), values, data))
    return figures or "no two settings with a method in common differ only in the number of training rows"


def more_rows(results: Results, looks: Looks) -> list[Figure] | str:
    """Draw what ``compare --curve`` measured on fewer rows, and predicts for more, if it was asked for."""
    curves = [each for each in results.curves if each.sizes]
    records: list[dict[str, Any]] = []
    for curve in curves:
        points: list[tuple[float, float, dict[str, Any]]] = []
        for size, score in zip(curve.sizes, curve.scores, strict=True):
            points.append((size, score, {"90 % interval": "measured"}))
        for factor, gain in curve.gains.items():
            low, value, high = (curve.scores[-1] + each for each in (gain.low, gain.value, gain.high))
            shown = {"90 % interval": f"[{number(low, curve.decimals)}, {number(high, curve.decimals)}]"}
            points.append((factor * curve.sizes[-1], value, shown | {"_low": low, "_high": high, "_pale": True}))
        for size, score, more in points:
            record = {
                "method": curve.label,
                "training rows": f"{size:.0f}",
                curve.metric: number(score, curve.decimals),
            }
            records.append(record | {"_x": size, "_y": score} | more)
    if not records:
        return []
    methods = {label: looks.get(label, 0) for label in dict.fromkeys(each.label for each in curves)}
    axis = alt.Axis(values=sorted({record["_x"] for record in records}), format=".0f", labelOverlap="greedy")
    x = alt.X("_x:Q", title="training rows", axis=axis, scale=alt.Scale(type="log", nice=False))
    y = alt.Y("_y:Q", title=curves[0].metric, scale=alt.Scale(zero=False))
    chart, values = _drawn(records, methods, line={"strokeDash": [4, 3], "strokeWidth": 1}, x=x, y=y)
    caption = " ".join(each.sentence for each in curves)
    caption += " Full points: measured, mean over seeds. Pale points: predicted by a power law, with 90 % intervals."
    return [Figure("more_rows", "", "Score with more rows", caption, chart.properties(**SIZE), values)]


# Curves over epochs and steps ----------------------------------------------------------------------------------------


def scored_epochs(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the epochs that were scored: of the training before, if the model was trained again on all rows."""
    before = run.get("selection")
    found = before["history"] if before else run.get("history") or ()
    return [entry for entry in found if entry["selection"]]


def learning_curves(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the training loss over epochs of each method, and the validation loss where rows were held out."""
    entries = [(run[LABEL], entry) for run in setting.runs for entry in scored_epochs(run)]
    validation = [(label, entry["epoch"], entry.get("selection_loss")) for label, entry in entries]
    caption = "Training loss: with what the method adds to it or drops. "
    if any(loss is not None for *_, loss in validation):
        caption += (
            "Validation loss: on {rows}. A training loss that falls while the validation loss rises is overfitting. "
        )
    else:
        entries = [(run[LABEL], entry) for run in setting.runs for entry in run.get("history") or ()]
    training = [(label, entry["epoch"], entry["train_loss"]) for label, entry in entries]
    panels = {"training loss": training, "validation loss": validation}
    found = _over_epochs("learning_curves", "Learning curves", setting, looks, panels, caption)
    return found or "no run has a training loss of each epoch"


def convergence(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the score of each epoch of each method."""
    metric = setting.answer.metric
    entries = [(run[LABEL], entry) for run in setting.runs for entry in scored_epochs(run)]
    points = [(label, entry["epoch"], entry["selection"].get(metric)) for label, entry in entries]
    caption = "Score after each epoch on {rows}. "
    found = _over_epochs("convergence", "Convergence", setting, looks, {metric: points}, caption)
    return found or "no run has scores on held-out rows; train with --selection-fraction 0.1"


def coverage(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the accuracy of the answers to the most confident rows over the percentage of these, of each method."""
    reports = [(run[LABEL], run.get("report") or {}) for run in setting.runs]
    points = [
        (label, round(100 * each["coverage"]), each["accuracy"])
        for label, report in reports
        for each in report.get("coverage", ())
    ]
    caption = "Accuracy if only the most confident answers are accepted, on the rows of the score. "
    over, panels = "rows accepted, %", {"accuracy": points}
    found = _over_epochs("coverage", "Accuracy at coverage", setting, looks, panels, caption, over)
    return found or "no run is of classes with one class a row"


def _over_epochs(
    kind: str,
    title: str,
    setting: ReportedSetting,
    looks: Looks,
    panels: Mapping[str, Sequence[tuple[str, int, float | None]]],
    caption: str,
    over: str = "epoch",
) -> list[Figure]:
    """Draw panels by their name, one above the other, of ``(label, epoch, value)``; values that are none are left out.

    Instead of epochs, the values may be ``over`` other whole numbers. In the caption, ``{rows}`` are those that epochs
    are scored on. Returns one figure, or none if there is no value.
    """
    points = [(name, *point) for name, own in panels.items() for point in own]
    frame = pd.DataFrame(points, columns=["panel", "method", "epoch", "value"]).astype({"epoch": int, "value": float})
    frame = frame[np.isfinite(frame["value"])]
    if frame.empty:
        return []
    methods, left_out = _shown_methods(setting, {*frame["method"]}, looks)
    charts, tables = [], []
    has_bands = len(methods) <= 4  # those of more cover each other
    for name, own in frame.groupby("panel", sort=False):
        digits = decimals(own["value"].abs().max() / 100, 3)
        by_epoch = own.groupby(["method", "epoch"])["value"].agg(["mean", "min", "max", "size"])
        records: list[dict[str, Any]] = []
        for label in (label for label in methods if label in by_epoch.index):
            for epoch, *drawn, seeds in by_epoch.loc[label].itertuples(name=None):
                record: dict[str, Any] = {"method": label, over: str(epoch), "value of": name}
                texts = (number(value, digits) for value in drawn)
                record |= dict(zip(("mean", "lowest", "highest"), texts, strict=True)) | {"seeds": str(seeds)}
                shown = dict(zip(("_y", "_low", "_high"), drawn, strict=False)) if has_bands else {"_y": drawn[0]}
                records.append(record | {"_x": epoch} | shown)
        epochs = sorted({record["_x"] for record in records})
        axis = alt.Axis(values=epochs[:: -(-len(epochs) // 12)], format="d", grid=False)
        x = alt.X("_x:Q", title=over, axis=axis, scale=alt.Scale(zero=False))
        y = alt.Y("_y:Q", title=name, scale=alt.Scale(zero=False))
        chart, values = _drawn(records, methods, band=has_bands, line={}, x=x, y=y)
        charts.append(chart.properties(**SIZE))
        tables.append(values)
    of_paper = (run for run in setting.runs if run.get("protocol") == "paper")
    flattered = dict.fromkeys(run[LABEL] for run in of_paper if scored_epochs(run))
    told = "rows held out of the training data, which are never those of the final score"
    if flattered:
        told += f"; with protocol paper ({', '.join(flattered)}), on those of the final score, which is optimistic"
    bands_told = "; bands: from the lowest to the highest seed" if has_bands else ""
    sizes = frame.groupby(["panel", "method", "epoch"]).size()
    fewer = over == "epoch" and (sizes.groupby(level=[0, 1]).nunique() > 1).any()
    ended = ", where some runs ended, of those that are left" if fewer else ""
    caption = f"{caption.replace('{rows}', told)}Lines: mean over seeds{ended}{bands_told}.{left_out}"
    chart = charts[0] if len(charts) == 1 else alt.vconcat(*charts)
    return [Figure(kind, setting.name, title, caption, chart, pd.concat(tables, ignore_index=True))]


def drop_probabilities(setting: ReportedSetting, _: Looks) -> list[Figure] | str:
    """Draw the learnt probability of dropping of each layer by period: for each method its run with the lowest seed."""
    figures = []
    for run, *_others in setting.by_label.values():
        periods = run.get("dropout_steps") or ()
        points = [(layer, each["step"], p) for each in periods for layer, p in each["drop_probability"].items()]
        if points:
            chart, values = layer_curves(sorted(points, key=lambda point: by_layer(point[0])))
            caption = f"Run of seed {run['seed']}: a line for each attention layer."
            title = f"Drop probability of each layer, {run[LABEL]}"
            figures.append(
                Figure("drop_probability", setting.name, title, caption, chart.properties(**SIZE), values, run[LABEL])
            )
    return figures or "no method here learns a probability for each layer"


def layer_curves(points: Sequence[tuple[str, float, float]]) -> tuple[alt.LayerChart, pd.DataFrame]:
    """Draw a line with points for each attention layer over training steps, from ``(layer, step, probability)``."""
    records = [
        {"layer": layer, "step": f"{step:g}", "probability": f"{p:.4f}", "_x": step, "_y": p}
        for layer, step, p in points
    ]
    base, values = chart_of(records)
    layers, heights = list(dict.fromkeys(layer for layer, *_ in points)), [p for *_, p in points]
    colors = {"range": list(SERIES)} if len(layers) <= len(SERIES) else {"scheme": "viridis"}
    # Never so close that noise looks like a pattern.
    near = alt.Scale(domain=[max(0, min(heights) - 0.05), min(1, max(heights) + 0.05)], nice=False)
    legend = alt.Legend(title=None, orient="right", symbolLimit=100)
    base = base.encode(
        x=alt.X("_x:Q", title="training step", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("_y:Q", title="probability of dropping", scale=near),
        color=alt.Color("_0:N", scale=alt.Scale(domain=layers, **colors), legend=legend),
    )
    return base.mark_line() + base.mark_point(filled=True, size=25, opacity=1), values


def by_layer(layer: str) -> tuple[str, int]:
    """Order layers such as "encoder.10" by their kind and number."""
    kind, _, index = layer.rpartition(".")
    return (kind, int(index)) if index.isdigit() else (layer, 0)


# Scores over a grid of two numeric options, such as p and q -----------------------------------------------------------

_NO_GRID = "no method was run on a grid of two numeric options"
Cells = dict[tuple[float, float], MethodRow]


def _grids(setting: ReportedSetting) -> Iterator[tuple[str, str, str, dict[str, Cells]]]:
    """Yield each method that was run on a grid, two options, and the rows by the values of these.

    There is a grid, by its name, for each combination of other options that vary.
    """
    rows = sorted((row for row in setting.answer.rows if not row.is_baseline), key=lambda row: row.method)
    for method, group in groupby(rows, key=lambda row: row.method):
        found = [(row, flat_options(row.options)) for row in group]
        names = dict.fromkeys(name for _, options in found for name in options)
        varied = [name for name in names if len({repr(options.get(name)) for _, options in found}) > 1]
        numeric = [name for name in varied if all(type(options.get(name)) in (int, float) for _, options in found)]
        if len(numeric) < 2:
            continue
        first, second = numeric[:2]
        grids: defaultdict[str, Cells] = defaultdict(dict)
        for row, options in found:
            others = [f"{other}={options.get(other)}" for other in varied if other not in (first, second)]
            if row.label.startswith(f"{(own := labelled_method(method, row.options))} "):
                others.append(row.label.removeprefix(f"{own} "))  # a learning rate of its own
            grids[" ".join([method, *others])][float(options[first]), float(options[second])] = row
        complete = {
            name: cells
            for name, cells in sorted(grids.items())
            if all(len(set(side)) > 1 for side in zip(*cells, strict=True))
        }
        if complete:
            yield method, first, second, complete


def heat_maps(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the difference from the reference at each point of each grid, all with the same colours."""
    grids = [(name, one, two, cells) for _, one, two, each in _grids(setting) for name, cells in each.items()]
    if not grids:
        return _NO_GRID
    reference = next((row for row in setting.answer.rows if row.is_reference), None)
    if reference is None:
        return "the method to compare with has no score"
    metric, digits = setting.answer.metric, setting.answer.decimals
    scale = score_scale(metric)  # in points, hundredths of a score, or of errors as they are
    unit, of = ("difference in points", f"points of {metric}") if scale != 1 else ("difference", metric)

    gains = []
    for *_, cells in grids:
        paired = {point: row.versus(reference) for point, row in cells.items()}
        gains.append({point: scale * found.mean.value for point, found in paired.items() if found is not None})
    limit = max((abs(value) for each in gains for value in each.values()), default=0.0)
    colors = alt.Scale(scheme="redblue", reverse=True, domain=[-limit or -1, limit or 1])
    dark = alt.condition(f"abs(datum._value) > {0.6 * limit}", alt.value("white"), alt.value("black"))
    figures = []
    for (name, first, second, cells), own in zip(grids, gains, strict=True):
        records: list[dict[str, Any]] = []
        for (one, other), value in sorted(own.items()):
            gain, row = f"{value:+z.1f}" if scale != 1 else signed(value, digits), cells[one, other]
            record = {first: f"{one:g}", second: f"{other:g}", metric: number(row.mean, digits)}
            records.append(record | {unit: gain, "seeds": str(row.n), "_value": value})
        if not records:
            continue
        base, values = chart_of(records)
        base = base.encode(
            x=alt.X("_1:N", title=second, sort=_rising(other for _, other in own), axis=alt.Axis(labelAngle=0)),
            y=alt.Y("_0:N", title=first, sort=_rising(one for one, _ in own)),
        )
        chart = base.mark_rect().encode(color=alt.Color("_value:Q", scale=colors, legend=None))
        columns = len({other for _one, other in own})
        chart += base.mark_text(fontSize=min(11, 130 // columns)).encode(text="_3:N", color=dark)
        caption = f"Red: above {reference.label}; blue: below. All heat maps of the setting have the same colours, "
        caption += f"up to {limit:.1f} points." if scale != 1 else f"up to {number(limit, digits)}."
        title = f"Difference from {reference.label} in {of} over {first} and {second}, {name}"
        figures.append(
            Figure("heat_map", setting.name, title, caption, chart.properties(width=SIZE["width"]), values, name)
        )
    return figures


def _rising(values: Iterable[float]) -> list[str]:
    return [f"{value:g}" for value in sorted(set(values))]


def grid_spread(setting: ReportedSetting, looks: Looks) -> list[Figure] | str:
    """Draw the scores at all points of a grid, with and without what else varies."""
    figures, metric = [], setting.answer.metric
    reference = next((row for row in setting.answer.rows if row.is_reference), None)
    for method, first, second, grids in (each for each in _grids(setting) if len(each[-1]) > 1):
        records = []
        for name, own in grids.items():
            for (one, other), row in sorted(own.items()):
                record = {"method": name, first: f"{one:g}", second: f"{other:g}"}
                record[metric] = number(row.mean, setting.answer.decimals)
                records.append(record | {"seeds": str(row.n), "_y": row.mean})
        ones, others = ([at[place] for own in grids.values() for at in own] for place in (0, 1))
        within = f"{first}; within each, {second} rises"
        x = alt.X("_1:N", title=within, sort=_rising(ones), axis=alt.Axis(labelAngle=0))
        y = alt.Y("_y:Q", title=metric, scale=alt.Scale(zero=False))
        looks_of = {name: place for place, name in enumerate(grids)}
        chart, values = _drawn(records, looks_of, x=x, xOffset=alt.XOffset("_2:N", sort=_rising(others)), y=y)
        caption = f"Each point is the mean over seeds of one pair of {first} and {second}."
        if reference is not None:
            chart += _rule(_y=reference.mean).encode(y="_y:Q")
            caption += f" Dotted line: {reference.label}."
        title = f"Scores over all {first} and {second}, {method}"
        figures.append(Figure("grid", setting.name, title, caption, chart.properties(**SIZE), values, method))
    return figures or f"{_NO_GRID}, with and without another"


# Titles in case a figure cannot be made.
_OF_ALL: dict[str, Callable[..., list[Figure] | str]] = {
    "Score with more rows": more_rows,
    "Score over data size": score_over_data_size,
}
_OF_SETTING: dict[str, Callable[..., list[Figure] | str]] = {
    "Scores": scores,
    "Cost against gain": cost_against_gain,
    "Learning curves": learning_curves,
    "Convergence": convergence,
    "Accuracy at coverage": coverage,
    "Drop probability of each layer": drop_probabilities,
    "Scores over a grid, with and without an option": grid_spread,
    "Heat map of a grid": heat_maps,
}
