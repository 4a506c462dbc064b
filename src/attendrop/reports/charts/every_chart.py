"""All figures of a study or a comparison, each where the runs have its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attendrop.reports.charts.chart import Chart
from attendrop.reports.charts.data_size import score_over_data_size
from attendrop.reports.charts.epochs import convergence, learning_curves, losses
from attendrop.reports.charts.gain import cost_against_gain
from attendrop.reports.charts.grids import grid_spread, heat_maps
from attendrop.reports.charts.layers import drop_probabilities
from attendrop.reports.finished_runs import Results, Setting

# Title for a figure that cannot be made, and what makes it for a setting.
_OF_SETTING: tuple[tuple[str, Callable[[Setting], Chart | list[Chart] | str]], ...] = (
    ("Cost against gain", cost_against_gain),
    ("Learning curves", learning_curves),
    ("Convergence", convergence),
    ("Training and validation loss", losses),
    ("Drop probability of each layer", drop_probabilities),
    ("Scores over a grid, with and without an option", grid_spread),
    ("Heat map of a grid", heat_maps),
)


@dataclass(frozen=True)
class LeftOut:
    """A figure that was not made, for a setting or for all, and why."""

    title: str
    setting: str
    reason: str


def make_charts(results: Results) -> tuple[list[Chart], list[LeftOut]]:
    """Make all figures for which the runs have data; for the others say why not."""
    attempts: list[tuple[str, str, Chart | list[Chart] | str]] = [
        ("Score over data size", "", score_over_data_size(results)),
        *((title, each.name, make(each)) for each in results.settings for title, make in _OF_SETTING),
    ]
    charts: list[Chart] = []
    left_out: list[LeftOut] = []
    for title, setting, found in attempts:
        if isinstance(found, str):
            left_out.append(LeftOut(title, setting, found))
        else:
            charts += found if isinstance(found, list) else [found]
    return charts, left_out
