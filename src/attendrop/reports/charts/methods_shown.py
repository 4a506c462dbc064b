"""The methods of a setting that a figure shows, with their colours and markers."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from attendrop.reports.charts.chart import MARKERS, SERIES
from attendrop.reports.finished_runs import Setting


@dataclass(frozen=True)
class ShownMethod:
    """A method in a figure."""

    label: str
    color: str
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``Axes.plot``."""
        return {"color": self.color, "marker": self.marker}


def methods_shown(setting: Setting, labels: Collection[str]) -> tuple[list[ShownMethod], str]:
    """Choose the methods of a figure: the reference, and those with the highest scores, as many as there are colours.

    Methods without a score come last.

    Args:
        setting: The setting.
        labels: Labels of the methods that have what the figure shows.

    Returns:
        The methods, in the order of the answer, and a sentence that says how many are left out, or nothing.
    """
    ranks = {row.label: (not row.is_reference, -row.mean if row.n else 0) for row in setting.answer.rows}
    every = [label for label in dict.fromkeys([*ranks, *setting.by_label]) if label in labels]
    kept = set(sorted(every, key=lambda label: ranks.get(label, (True, math.inf)))[: len(SERIES)])
    ordered = [label for label in every if label in kept]
    methods = [ShownMethod(*found) for found in zip(ordered, SERIES, MARKERS, strict=False)]
    left_out = len(every) - len(kept)
    sentence = f" Of {len(every)} methods, the {len(kept)} with the best scores are shown." if left_out else ""
    return methods, sentence
