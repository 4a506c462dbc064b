"""Score over the number of training rows, of settings that differ in nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attendrop.reports.charts.chart import Chart, Mark, add_legend, label_axes, new_figure, styled
from attendrop.reports.charts.methods_shown import ShownMethod, methods_shown
from attendrop.reports.finished_runs import Results, Setting
from attendrop.studies.method_rows import MethodRow, scored_data
from attendrop.studies.statistics import mean_interval
from attendrop.studies.verdict import number

# Options that only choose the number of rows.
_LIMITS = ("max_train_samples", "shots")
_OF_RUN = ("method", "options", "seed", "output_dir")


def score_over_data_size(results: Results, every: Mapping[str, ShownMethod]) -> list[Chart] | str:
    """Draw the score of each method over the number of training rows, for each task that was run with several."""
    groups: dict[str, list[Setting]] = {}
    for setting in results.settings:
        if setting.runs and setting.answer.rows:
            groups.setdefault(_key(setting), []).append(setting)
    found = [sorted(group, key=_rows) for group in groups.values() if len({_rows(each) for each in group}) > 1]
    charts = [_chart(group, every) for group in found]
    return charts or "no two settings differ only in the number of training rows"


def _key(setting: Setting) -> str:
    metrics = setting.runs[0].metrics
    options = {name: value for name, value in metrics["config"].items() if name not in (*_LIMITS, *_OF_RUN)}
    return json.dumps([metrics["task"], metrics["model"], metrics["metric"], options], sort_keys=True)


def _rows(setting: Setting) -> int:
    """Median number of training rows of the runs."""
    return int(statistics.median(run.metrics["data"]["rows"]["train"] for run in setting.runs))


def _chart(settings: Sequence[Setting], every: Mapping[str, ShownMethod]) -> Chart:
    labels = set.intersection(*({row.label for row in setting.answer.rows if row.n} for setting in settings))
    methods, left_out = methods_shown(settings[-1], labels, every)
    metric = settings[0].answer.metric
    marks: list[Mark] = []
    table: list[list[str]] = []
    with styled():
        figure, (axes,) = new_figure(2.9, [method.label for method in methods])
        entries: dict[str, Any] = {}
        for method in methods:
            rows = [next(row for row in each.answer.rows if row.label == method.label) for each in settings]
            sizes, means = [_rows(each) for each in settings], [row.mean for row in rows]
            (entries[method.label],) = axes.plot(sizes, means, **method.line)
            for size, row in zip(sizes, rows, strict=True):
                low, high = "-", "-"
                if row.n > 1:
                    found = mean_interval(list(row.scores.values()))
                    axes.vlines(size, found.low, found.high, color=method.color, alpha=0.5)
                    low, high = number(found.low), number(found.high)
                interval = "" if row.n == 1 else f" [{low}, {high}]"
                marks.append(Mark(axes, size, row.mean, f"{method.label}, {size} rows: {number(row.mean)}{interval}"))
                table.append([method.label, str(size), number(row.mean), low, high, str(row.n)])
        axes.set_ylim(*_limits([row for each in settings for row in each.answer.rows if row.label in entries]))
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        label_axes(axes, "training rows", metric)
        add_legend(figure, entries)
    caption = f"Mean over seeds; bars: 95 % intervals of the mean, which may leave the frame.{left_out}"
    header = ("method", "training rows", metric, "low", "high", "seeds")
    data = _common_name(settings)
    title = f"Score over data size, {data}"
    return Chart("data_size", "", title, caption, figure, header, table, marks, data)


def _common_name(settings: Sequence[Setting]) -> str:
    """Name what the settings have in common: the data, and options in which others differ."""
    first, *others = (setting.name.split(", ") for setting in settings)
    common = ", ".join(part for part in first if all(part in other for other in others))
    return common or scored_data(settings[0].runs[0].metrics)


def _limits(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Choose the range of scores: those of all seeds. Intervals of two seeds would leave nothing else to see."""
    scores = [score for row in rows for score in row.scores.values()]
    space = 0.2 * (max(scores) - min(scores)) or 0.01
    return min(scores) - space, max(scores) + space
