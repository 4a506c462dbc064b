"""The methods of a setting that a figure shows, with their colours and markers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from attendrop.reports.charts.chart import DASHES, MARKERS, SERIES
from attendrop.reports.finished_runs import Results, Setting


@dataclass(frozen=True)
class ShownMethod:
    """A method in a figure: its label and how it is drawn."""

    label: str
    color: str
    marker: str
    dashes: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``Axes.plot``."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes}


def every_method(results: Results) -> dict[str, ShownMethod]:
    """Choose how each method is drawn in all figures of a report, by its label.

    More methods than there are colours share them, with other markers and dashes. Methods without a score come last.
    """
    labels = dict.fromkeys([*results.labels, *(label for each in results.settings for label in each.by_label)])
    return {label: _drawn(label, *divmod(index, len(SERIES))) for index, label in enumerate(labels)}


def _drawn(label: str, turn: int, index: int) -> ShownMethod:
    return ShownMethod(label, SERIES[index], MARKERS[(index + turn) % len(MARKERS)], DASHES[turn % len(DASHES)])


def methods_shown(
    setting: Setting, labels: Collection[str], every: Mapping[str, ShownMethod]
) -> tuple[list[ShownMethod], str]:
    """Choose the methods of a figure: the reference, and those with the highest scores, as many as there are colours.

    Methods without a score come last.

    Args:
        setting: The setting.
        labels: Labels of the methods that have what the figure shows.
        every: From :func:`every_method`.

    Returns:
        The methods, in the order of ``every``, and a sentence that says how many are left out, or nothing.
    """
    ranks = {row.label: (not row.is_reference, -row.mean if row.n else 0) for row in setting.answer.rows}
    found = [label for label in every if label in labels]
    kept = set(sorted(found, key=lambda label: ranks.get(label, (True, math.inf)))[: len(SERIES)])
    methods = [every[label] for label in found if label in kept]
    few = len(kept) < len(found)
    sentence = f" Of {len(found)} methods, the {len(kept)} with the best scores are shown." if few else ""
    return methods, sentence
