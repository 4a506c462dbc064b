"""All figures of a study or a comparison, each where the runs have its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attendrop.reports.charts.chart import Chart
from attendrop.reports.charts.data_size import score_over_data_size
from attendrop.reports.charts.epochs import convergence, learning_curves, losses
from attendrop.reports.charts.gain import cost_against_gain
from attendrop.reports.charts.grids import grid_spread, heat_maps
from attendrop.reports.charts.layers import drop_probabilities
from attendrop.reports.charts.methods_shown import ShownMethod, every_method
from attendrop.reports.finished_runs import Results, Setting

# A figure, several, or why there is none.
Made = Chart | list[Chart] | str


@dataclass(frozen=True)
class LeftOut:
    """A figure that was not made, for a setting or for all, and why."""

    title: str
    setting: str
    reason: str


def make_charts(results: Results) -> tuple[list[Chart], list[LeftOut]]:
    """Make all figures for which the runs have data; for the others say why not."""
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


def _of_setting(setting: Setting, every: Mapping[str, ShownMethod]) -> Iterator[tuple[str, Made]]:
    """Make the figures of a setting, each with the title that it has where it cannot be made."""
    yield "Cost against gain", cost_against_gain(setting, every)
    yield "Learning curves", learning_curves(setting, every)
    yield "Convergence", convergence(setting, every)
    yield "Training and validation loss", losses(setting, every)
    yield "Drop probability of each layer", drop_probabilities(setting)
    yield "Scores over a grid, with and without an option", grid_spread(setting)
    yield "Heat map of a grid", heat_maps(setting)
