"""Cost of each method against its gain, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attendrop.reports.charts.chart import MUTED, Chart, Mark, add_legend, label_axes, new_figure, styled
from attendrop.reports.charts.methods_shown import ShownMethod, methods_shown
from attendrop.reports.finished_runs import Setting
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.verdict import cost, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where a time is too short to be measured.
_LEAST_COST = 1e-3
# A baseline that is this many times as far from zero as the fine-tuned models would hide how these differ.
_FAR = 4.0


def cost_against_gain(setting: Setting, every: Mapping[str, ShownMethod]) -> Chart | str:
    """Draw the difference of each method from the reference, with its interval, over its time of training."""
    rows = {row.label: row for row in setting.answer.rows if row.cost is not None}
    compared = [row for row in rows.values() if row.difference is not None and row.difference.n > 1]
    if not compared:
        return "no method has two seeds in common with the reference"
    reference = next(row.label for row in setting.answer.rows if row.is_reference)
    methods, left_out = methods_shown(setting, {reference, *(row.label for row in compared)}, every)
    low, high = _limits(compared)
    marks, table = [], []
    beyond = False
    with styled():
        figure, (axes,) = new_figure(2.9, [method.label for method in methods])
        axes.axhline(0, color=MUTED, linewidth=1, linestyle=":")
        entries = {}
        for method in methods:
            row = rows[method.label]
            found, x = row.difference, max(row.cost or 0.0, _LEAST_COST)
            text = "the reference" if found is None else interval(found)
            y = 0.0 if found is None else found.mean.value
            if not low <= y <= high:  # an open marker at the edge
                beyond, y = True, min(max(y, low), high)
                entries[method.label] = axes.errorbar([x], [y], fmt=method.marker, color=method.color, mfc="none")
            else:
                ends = [[0.0], [0.0]] if found is None else [[y - found.known.low], [found.known.high - y]]
                entries[method.label] = axes.errorbar(
                    [x], [y], yerr=ends, fmt=method.marker, color=method.color, capsize=3
                )
            marks.append(Mark(axes, x, y, f"{method.label}: {text}, {cost(row)} the time"))
            table.append([method.label, cost(row), text, "-" if found is None else str(found.n)])
        space = 0.06 * (high - low)
        axes.set_ylim(low - space, high + space)
        _scale_costs(axes)
        label_axes(axes, "time of training, relative to the reference", f"difference in {setting.answer.metric}")
        add_legend(figure, entries)
    caption = f"Above the dotted line: better than {reference}. Bars: 95 % intervals over seeds."
    caption += " An open marker at an edge is further away." if beyond else ""
    header = ("method", "time", "difference [95 %]", "seeds in common")
    return Chart("cost_gain", setting.name, "Cost against gain", caption + left_out, figure, header, table, marks)


def _scale_costs(axes: Axes) -> None:
    """Make the axis of times logarithmic, with labels also where it has one power of ten at most."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    least, most = axes.get_xlim()
    if most < 10 * least:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_minor_locator(NullLocator())


def _limits(rows: Sequence[MethodRow]) -> tuple[float, float]:
    """Choose the range of differences: all intervals, but of far baselines."""
    found = [row.difference.known for row in rows if row.difference is not None and not row.is_baseline]
    near = max((abs(end) for mean in found for end in (mean.low, mean.high)), default=0.0)
    found += [
        row.difference.known
        for row in rows
        if row.difference is not None
        and row.is_baseline
        and (not near or abs(row.difference.mean.value) <= _FAR * near)
    ]
    low, high = min(0.0, *(mean.low for mean in found)), max(0.0, *(mean.high for mean in found))
    space = 0.08 * (high - low) or 0.01
    return low - space, high + space
