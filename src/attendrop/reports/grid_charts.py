"""Scores over a grid of two numeric options of a method, such as p and q."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from attendrop.methods.core.registry import flat_options
from attendrop.reports.figures import MARKERS, MUTED, SERIES, Chart, drawing, label_axes
from attendrop.reports.results import ReportedSetting
from attendrop.reports.tables import score_scale
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.words import number, signed
from attendrop.wording import counted

_NONE = "no method was run on a grid of two numeric options"
# Within a column of the grid, points are spread over this share of the distance to the next.
_SPREAD = 0.6
# Cells that are darker than this share of the largest difference have white text.
_DARK = 0.6
# Maximum number of characters across all cells.
_MOST_CHARACTERS = 60


class _Grid(NamedTuple):
    """Rows of the answer by the values of two options, of a method with other options that vary elsewhere."""

    method: str
    first: str
    second: str
    cells: Mapping[tuple[float, float], MethodRow]


def heat_maps(setting: ReportedSetting) -> list[Chart] | str:
    """Draw the difference from the reference at each point of each grid."""
    grids = [grid for each in _by_method(setting) for grid in each]
    if not grids:
        return _NONE
    reference = _reference(setting)
    if reference is None:
        return "the method to compare with has no score"
    gains = [_gains(setting, grid, reference) for grid in grids]
    limit = max((abs(value) for each in gains for value in each.values()), default=0.0)
    return [_heat_map(setting, *each, reference, limit, len(grids)) for each in zip(grids, gains, strict=True)]


def grid_spread(setting: ReportedSetting) -> list[Chart] | str:
    """Draw the scores at all points of a grid, with and without what else varies."""
    found = [grids for grids in _by_method(setting) if len(grids) > 1]
    return [_spread(setting, grids) for grids in found] or f"{_NONE}, with and without another"


def _by_method(setting: ReportedSetting) -> Iterator[list[_Grid]]:
    """Yield the grids of each method, one for each combination of its other options, in the order of their names."""
    rows = sorted((row for row in setting.answer.rows if not row.is_baseline), key=lambda row: row.method)
    for method, group in groupby(rows, key=lambda row: row.method):
        options = {row.label: flat_options(row.options) for row in group}
        of_method = [row for row in setting.answer.rows if row.label in options]
        names = list(dict.fromkeys(name for found in options.values() for name in found))
        varied = [name for name in names if len({repr(found[name]) for found in options.values() if name in found}) > 1]
        numeric = [name for name in varied if all(_is_number(found.get(name)) for found in options.values())]
        if len(numeric) < 2:
            continue
        first, second = numeric[:2]
        others = [name for name in varied if name not in (first, second)]
        grids: dict[str, dict[tuple[float, float], MethodRow]] = {}
        for row in of_method:
            found = options[row.label]
            name = " ".join([method, *(f"{other}={found.get(other)}" for other in others)])
            grids.setdefault(name, {})[float(found[first]), float(found[second])] = row
        complete = [
            _Grid(name, first, second, cells)
            for name, cells in sorted(grids.items())
            if all(len(set(side)) > 1 for side in zip(*cells, strict=True))
        ]
        if complete:
            yield complete


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reference(setting: ReportedSetting) -> MethodRow | None:
    return next((row for row in setting.answer.rows if row.is_reference), None)


def _gains(setting: ReportedSetting, grid: _Grid, reference: MethodRow) -> dict[tuple[float, float], float]:
    """Compute the differences: in points, hundredths of a score, or of errors as they are."""
    scale = score_scale(setting.answer.metric)
    paired = {point: row.versus(reference) for point, row in grid.cells.items()}
    return {point: scale * found.mean.value for point, found in paired.items() if found is not None}


def _heat_map(
    setting: ReportedSetting,
    grid: _Grid,
    gains: Mapping[tuple[float, float], float],
    reference: MethodRow,
    limit: float,
    maps: int,
) -> Chart:
    """Draw a heat map; ``limit`` is the largest difference in all maps of the setting, which have the same colours."""
    metric = setting.answer.metric
    in_points, digits = score_scale(metric) != 1, setting.answer.decimals
    texts = {point: f"{value:+z.1f}" if in_points else signed(value, digits) for point, value in gains.items()}
    firsts, seconds = (sorted({point[side] for point in grid.cells}) for side in (0, 1))
    longest = max(map(len, texts.values()), default=0)
    with drawing(min(4.6, 0.9 + 0.42 * len(firsts))) as drawn:
        from matplotlib import colormaps
        from matplotlib.patches import Rectangle

        axes, colors, unit = drawn.axes, colormaps["RdBu_r"], " points" if in_points else ""
        for (first, second), value in gains.items():
            row, x, y = grid.cells[first, second], seconds.index(second), firsts.index(first)
            gain, share = texts[first, second], value / (limit or 1.0)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colors(0.5 + share / 2), linewidth=0))
            if len(seconds) * (longest + 1) <= _MOST_CHARACTERS:
                color = "white" if abs(share) > _DARK else "black"
                axes.text(x, y, gain, ha="center", va="center", color=color, fontsize="small")
            point, mean = f"{grid.first}={first:g}, {grid.second}={second:g}", number(row.mean, digits)
            text = f"{point}: {gain}{unit}, {mean} of {counted(row.n, 'seed')}"
            drawn.tell(x, y, text, f"{first:g}", f"{second:g}", mean, gain, str(row.n))
        axes.set(xlim=(-0.5, len(seconds) - 0.5), ylim=(len(firsts) - 0.5, -0.5))
        axes.set_xticks(range(len(seconds)), [f"{value:g}" for value in seconds])
        axes.set_yticks(range(len(firsts)), [f"{value:g}" for value in firsts])
        label_axes(axes, grid.second, grid.first)
        axes.grid(visible=False)
    largest = max(map(abs, gains.values()), default=0.0)
    caption = (
        f"Red: above {reference.label}; blue: below. The largest difference is {_size(largest, in_points, digits)}."
    )
    if maps > 1:
        caption += f" All heat maps of the setting have the same colours, up to {_size(limit, in_points, digits)}."
    header = (grid.first, grid.second, metric, "difference in points" if in_points else "difference", "seeds")
    of = f"points of {metric}" if in_points else metric
    title = f"Difference from {reference.label} in {of} over {grid.first} and {grid.second}, {grid.method}"
    return drawn.chart("heat_map", setting.name, title, caption, header, grid.method)


def _spread(setting: ReportedSetting, grids: Sequence[_Grid]) -> Chart:
    method = next(iter(grids[0].cells.values())).method
    reference = _reference(setting)
    first, second = grids[0].first, grids[0].second
    columns = sorted({point[0] for grid in grids for point in grid.cells})
    places = sorted({point[1] for grid in grids for point in grid.cells})
    with drawing(2.9, [*(grid.method for grid in grids), ""]) as drawn:
        axes = drawn.axes
        for grid, color, marker in zip(grids, SERIES * len(grids), MARKERS * len(grids), strict=False):
            xs, ys = [], []
            for (one, other), row in sorted(grid.cells.items()):
                x = columns.index(one) + _SPREAD * (places.index(other) / (len(places) - 1) - 0.5)
                xs.append(x)
                ys.append(row.mean)
                mean = number(row.mean, setting.answer.decimals)
                text = f"{grid.method}, {first}={one:g}, {second}={other:g}: {mean}"
                drawn.tell(x, row.mean, text, grid.method, f"{one:g}", f"{other:g}", mean, str(row.n))
            (drawn.entries[grid.method],) = axes.plot(xs, ys, linestyle="", marker=marker, color=color, alpha=0.85)
        if reference is not None:
            line = axes.axhline(reference.mean, color=MUTED, linestyle=":", linewidth=1)
            drawn.entries[reference.label] = line
        axes.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        label_axes(axes, f"{first}; within each, {second} from {places[0]:g} to {places[-1]:g}", setting.answer.metric)
    caption = f"Each point is the mean over seeds of one pair of {first} and {second}."
    header = ("method", first, second, setting.answer.metric, "seeds")
    return drawn.chart("grid", setting.name, f"Scores over all {first} and {second}, {method}", caption, header, method)


def _size(value: float, in_points: bool, digits: int) -> str:
    return f"{value:.1f} points" if in_points else number(value, digits)
