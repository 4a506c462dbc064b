"""Figure of what a method drops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.reports.drop_patterns import DropPatterns
from attendrop.reports.figure_file import save_figure

_HEADINGS = {"distance": "distance between positions", "to": "token attended to", "from": "token that attends"}
# More layers or groups than this are not labelled one by one.
_MOST_LABELS = 16


def plot_drops(patterns: DropPatterns, title: str, path: Path) -> None:
    """Draw the dropped share by layer, by layer and distance, and by type of the tokens, as a PNG file.

    Error bars are 95 % intervals.

    Args:
        patterns: What to draw.
        title: Title.
        path: The file.

    Raises:
        AttendropError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise AttendropError("A picture needs matplotlib; run `pip install attendrop[plots]`.") from None
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    grid = figure.subplots(2, 2)
    _by_layer(grid[0, 0], patterns)
    _by_layer_and_distance(figure, grid[0, 1], patterns)
    top = 0.0
    for axes, grouping in ((grid[1, 0], "to"), (grid[1, 1], "from")):
        top = max(top, _bars(axes, patterns, grouping))
    for axes in grid[1]:
        axes.set_ylim(0, min(1.0, 1.15 * top) or 1.0)
    save_figure(figure, path, format="png", dpi=150)


def _by_layer(axes: Any, patterns: DropPatterns) -> None:
    shares = [patterns.share("layer", "all", layer) for layer in patterns.layers]
    known = [(i, share) for i, share in enumerate(shares) if share is not None]
    axes.errorbar(
        [i for i, _ in known],
        [share.share for _, share in known],
        yerr=_errors([share for _, share in known]),
        fmt="o",
        capsize=3,
        color="tab:blue",
    )
    _label_layers(axes.xaxis, patterns)
    axes.set_ylim(0, 1.15 * np.nanmax([[share.share, share.high] for _, share in known]) or 1.0)
    axes.set_xlabel("attention layer")
    axes.set_ylabel("dropped share")
    axes.grid(alpha=0.3)


def _by_layer_and_distance(figure: Any, axes: Any, patterns: DropPatterns) -> None:
    groups = patterns.groups("distance")
    if not groups:
        axes.set_axis_off()
        return
    rows = [[patterns.share("distance", group, layer) for group in groups] for layer in patterns.layers]
    values = np.array([[np.nan if share is None else share.share for share in row] for row in rows])
    image = axes.imshow(values, aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(range(len(groups)), groups)
    _label_layers(axes.yaxis, patterns)
    axes.set_xlabel(f"{_HEADINGS['distance']}, in tokens")
    axes.set_ylabel("attention layer")
    figure.colorbar(image, ax=axes, label="dropped share")


def _bars(axes: Any, patterns: DropPatterns, grouping: str) -> float:
    """Draw the shares of the groups; return the highest end of an interval."""
    groups = patterns.groups(grouping)
    if not groups:
        axes.set_axis_off()
        return 0.0
    shares = [share for group in groups if (share := patterns.share(grouping, group)) is not None]
    heights = [share.share for share in shares]
    axes.bar(groups, heights, yerr=_errors(shares), capsize=4, color="tab:blue", alpha=0.75)
    axes.set_xlabel(_HEADINGS[grouping])
    axes.set_ylabel("dropped share")
    axes.grid(alpha=0.3, axis="y")
    return float(np.nanmax([*heights, *(share.high for share in shares)]))


def _errors(shares: list[Any]) -> Any:
    ends = np.array([[share.share - share.low, share.high - share.share] for share in shares]).T
    return np.nan_to_num(ends) if len(shares) else None


def _label_layers(axis: Any, patterns: DropPatterns) -> None:
    kinds = {layer.split(".")[0] for layer in patterns.layers}
    names = [layer.split(".")[1] if len(kinds) == 1 else layer for layer in patterns.layers]
    step = -(-len(names) // _MOST_LABELS)
    axis.set_ticks(range(0, len(names), step), names[::step])
