"""Patterns of what a run's method drops: by layer, head, distance between positions, and type of the tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendrop.model_support.batches import Batch
from attendrop.reports.drops import LayerDrops, PassDrops
from attendrop.reports.figures import picture_file, wrapped
from attendrop.reports.token_types import TOKEN_TYPES, TokenTypes
from attendrop.text_tables import csv_table

# Lower ends of the groups of distances, in tokens.
_DISTANCES = (0, 1, 2, 3, 5, 9, 17, 33)
ALL = "all"
Numbers = NDArray[np.float64]


def distance_names() -> tuple[str, ...]:
    """Return the names of the groups of distances: ``0``, the token itself, ``1``, ``2``, ``3-4`` ... ``33+``."""
    ranges = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(_DISTANCES)]
    return (*ranges, f"{_DISTANCES[-1]}+")


@dataclass(frozen=True)
class Share:
    """Share of a number of positions that are dropped.

    Attributes:
        low, high: Ends of its 95 % interval, from the differences between batches; NaN for a single one.
    """

    positions: int
    share: float
    low: float
    high: float


@dataclass
class DropPatterns:
    """Counts of positions and of dropped ones, for each batch.

    Groupings: ``"layer"`` (all positions), ``"head"``, ``"distance"`` (of self-attention), ``"from"`` and ``"to"``, the
    types of the token that attends and of the one that is attended to.

    Attributes:
        layers: Keys of the layers, in the order of execution.
        counts: By grouping, layer and group, the positions and the dropped ones of each batch.
    """

    layers: list[str] = field(default_factory=list)
    counts: dict[tuple[str, str, str], list[tuple[int, int]]] = field(default_factory=dict)
    batches: int = 0

    def add(self, passes: Iterable[PassDrops], types: TokenTypes) -> None:
        """Count a batch: the passes of one training step.

        Batches are the units of the intervals: some methods decide once for all rows of a step.
        """
        positions_of, dropped_of = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        for drops in passes:
            kinds = _token_types(drops.batch, types)
            encodes = any(layer.layer.kind == "encoder" for layer in drops.layers.values())
            for key, layer in drops.layers.items():
                # The tokens that the decoder of an encoder-decoder model reads are others.
                own = None if encodes and layer.layer.kind == "decoder" else kinds
                if key not in self.layers:
                    self.layers.append(key)
                for (grouping, group), (positions, dropped) in _grouped(layer, own).items():
                    positions_of[grouping, key, group] += positions
                    dropped_of[grouping, key, group] += dropped
        for entry in positions_of.keys() - self.counts.keys():
            self.counts[entry] = [(0, 0)] * self.batches
        for entry, each in self.counts.items():
            each.append((positions_of[entry], dropped_of[entry]))
        self.batches += 1

    @property
    def any(self) -> bool:
        """Whether a position was dropped."""
        return bool(self.active_layers)

    @property
    def active_layers(self) -> list[str]:
        """The layers in which a position was dropped."""
        return [layer for layer in self.layers if any(dropped for _, dropped in self.counts["layer", layer, ALL])]

    def groups(self, grouping: str) -> list[str]:
        """Return the groups of a grouping that have positions, in their order."""
        known = {group for kind, _, group in self.counts if kind == grouping}
        if grouping == "head":
            return sorted(known, key=int)
        order = {"distance": distance_names(), "layer": (ALL,)}.get(grouping, TOKEN_TYPES)
        return [group for group in order if group in known]

    def share(self, grouping: str, group: str, layer: str | None = None) -> Share | None:
        """Return the share that is dropped in a group, in one layer or in all that are active; None: no positions."""
        layers = self.active_layers if layer is None else [layer]
        entries = [(grouping, key, group) for key in layers]
        found = [self.counts[entry] for entry in entries if entry in self.counts]
        if not found:
            return None
        positions, dropped = np.array(found, dtype=np.float64).sum(0).T
        return None if positions.sum() == 0 else _share(positions, dropped)

    def csv(self) -> str:
        """Write all shares as CSV: ``grouping, layer, group, positions, dropped_share, low, high``."""
        rows: list[tuple[object, ...]] = []
        for grouping in ("layer", "head", "distance", "from", "to"):
            for layer in (None, *self.layers):
                for group in self.groups(grouping):
                    share = self.share(grouping, group, layer)
                    if share is not None:
                        numbers = ("" if math.isnan(x) else f"{x:.6f}" for x in (share.share, share.low, share.high))
                        rows.append((grouping, layer or ALL, group, share.positions, *numbers))
        return csv_table(("grouping", "layer", "group", "positions", "dropped_share", "low", "high"), rows)


def _share(positions: Numbers, dropped: Numbers) -> Share:
    """Estimate a ratio of sums over batches, with the interval of Student's t for the linearised ratio."""
    from scipy.stats import t

    total, count = positions.sum(), len(positions)
    ratio = float(dropped.sum() / total)
    if count < 2:
        return Share(int(total), ratio, math.nan, math.nan)
    squares = ((dropped - ratio * positions) ** 2).sum()
    width = float(t.ppf(0.975, count - 1) * math.sqrt(count / (count - 1) * squares) / total)
    return Share(int(total), ratio, max(0.0, ratio - width), min(1.0, ratio + width))


def _token_types(batch: Batch, types: TokenTypes) -> Tensor | None:
    """Find the type of each token of a batch, ``(rows, tokens)``, as its number in ``TOKEN_TYPES``."""
    ids = batch.get("input_ids")
    if ids is None:
        return None
    rows = ids.reshape(-1, ids.shape[-1])
    numbers = [[TOKEN_TYPES.index(kind) for kind in types.of(row)] for row in rows.tolist()]
    return torch.tensor(numbers, device=ids.device)


def _grouped(drops: LayerDrops, kinds: Tensor | None) -> dict[tuple[str, str], tuple[int, int]]:
    """Count positions and dropped ones of a layer by grouping and group."""
    heads = drops.dropped.shape[1]
    # By batch, query and key: dropped in how many heads.
    dropped, possible = drops.dropped.sum(1), drops.possible[:, 0]
    found = {("layer", ALL): (int(possible.sum()) * heads, int(dropped.sum()))}
    for head, count in enumerate(drops.dropped.sum((0, 2, 3)).tolist()):
        found["head", str(head)] = int(possible.sum()), count

    def group(grouping: str, names: Sequence[str], numbers: Tensor) -> None:
        of = numbers.expand(possible.shape)[possible]
        positions = torch.bincount(of, minlength=len(names)).tolist()
        counts = torch.bincount(of, weights=dropped[possible].double(), minlength=len(names)).tolist()
        for name, number, count in zip(names, positions, counts, strict=True):
            if number:
                found[grouping, name] = number * heads, int(count)

    queries, keys = possible.shape[1:]
    if drops.layer.kind != "cross" and queries == keys:
        places = torch.arange(queries, device=possible.device)
        steps = torch.tensor(_DISTANCES[1:], device=possible.device)
        group("distance", distance_names(), torch.bucketize((places[:, None] - places).abs(), steps, right=True)[None])
    if kinds is not None and kinds.shape == (len(possible), keys):
        group("to", TOKEN_TYPES, kinds[:, None, :])
        if drops.layer.kind != "cross":
            group("from", TOKEN_TYPES, kinds[:, :, None])
    return found


_HEADINGS = {"distance": "distance between positions", "to": "token attended to", "from": "token that attends"}
# More layers or groups than this are not labelled one by one.
_MOST_LABELS = 16


def plot_drops(patterns: DropPatterns, title: str, path: Path) -> None:
    """Draw dropped shares, with 95 % intervals, by layer, layer and distance, and type of the tokens, as a PNG file."""
    with picture_file(path, (10, 7.5), 2, 2) as grid:
        grid[0, 0].figure.suptitle("\n".join(wrapped(title, 10)), fontsize="medium")
        _by_layer(grid[0, 0], patterns)
        _by_layer_and_distance(grid[0, 1], patterns)
        top = max(_bars(axes, patterns, grouping) for axes, grouping in zip(grid[1], ("to", "from"), strict=True))
        for axes in grid[1]:
            axes.set_ylim(0, min(1.0, 1.15 * top) or 1.0)


def _by_layer(axes: Any, patterns: DropPatterns) -> None:
    layers = enumerate(patterns.layers)
    shares = {place: share for place, layer in layers if (share := patterns.share("layer", ALL, layer)) is not None}
    heights, errors, top = _heights(shares.values())
    axes.errorbar([*shares], heights, yerr=errors, fmt="o", capsize=3, color="tab:blue")
    _label_layers(axes.xaxis, patterns)
    axes.set_ylim(0, 1.15 * top or 1.0)
    axes.set(xlabel="attention layer", ylabel="dropped share")
    axes.grid(alpha=0.3)


def _by_layer_and_distance(axes: Any, patterns: DropPatterns) -> None:
    groups = patterns.groups("distance")
    if not groups:
        axes.set_axis_off()
        return
    rows = [[patterns.share("distance", group, layer) for group in groups] for layer in patterns.layers]
    values = np.array([[np.nan if share is None else share.share for share in row] for row in rows])
    image = axes.imshow(values, aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(range(len(groups)), groups)
    _label_layers(axes.yaxis, patterns)
    axes.set(xlabel=f"{_HEADINGS['distance']}, in tokens", ylabel="attention layer")
    axes.figure.colorbar(image, ax=axes, label="dropped share")


def _bars(axes: Any, patterns: DropPatterns, grouping: str) -> float:
    """Draw the shares of the groups; return the highest end of an interval."""
    groups = patterns.groups(grouping)
    shares = {group: share for group in groups if (share := patterns.share(grouping, group)) is not None}
    if not shares:
        axes.set_axis_off()
        return 0.0
    heights, errors, top = _heights(shares.values())
    axes.bar([*shares], heights, yerr=errors, capsize=4, color="tab:blue", alpha=0.75)
    axes.set(xlabel=_HEADINGS[grouping], ylabel="dropped share")
    axes.grid(alpha=0.3, axis="y")
    return top


def _heights(shares: Collection[Share]) -> tuple[list[float], Numbers, float]:
    """Return the shares, the lengths of their error bars below and above, and the highest end of one."""
    heights = [share.share for share in shares]
    errors = np.nan_to_num([(share.share - share.low, share.high - share.share) for share in shares]).T
    return heights, errors, float(np.nanmax([*heights, *(share.high for share in shares)]))


def _label_layers(axis: Any, patterns: DropPatterns) -> None:
    kinds = {layer.split(".")[0] for layer in patterns.layers}
    names = [layer.split(".")[1] if len(kinds) == 1 else layer for layer in patterns.layers]
    step = -(-len(names) // _MOST_LABELS)
    axis.set_ticks(range(0, len(names), step), names[::step])
