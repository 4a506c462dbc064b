"""The dropout patterns that AttendOut learnt, as a plot (Figure 3 of its paper) and as a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendrop.errors import AttendropError
from attendrop.methods.attend_out.method import AttendOut
from attendrop.methods.random_dropout import HIGHEST, Scheduler
from attendrop.reports.figures import picture_file, run_title
from attendrop.runs.model_source import read_finished
from attendrop.wording import counted

_DECIMALS = 6
# Yellow lines are hard to see on white.
_LIGHTEST = 0.88
# A fit with a larger deviation than this at any point gets more pieces, up to this maximum.
_FAR, _MOST_PIECES = 0.1, 12
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Patterns:
    """The dropout steps of a run of AttendOut.

    Attributes:
        run: What was trained on what, for a title.
        layers: Keys of the attention layers, such as ``encoder.0``.
        steps: ``(T,)``, the optimizer steps taken by the end of each period.
        period_shares: ``(T,)``, the length of each period as a share of a whole one: less than 1 where training ended
            within it.
        probabilities: ``(T, layers)``, the mean probability of dropping in a period; NaN for a layer that was skipped
            in all of it.
        rewards: ``(T,)``.
        attacker_survived: Whether the attacker survived each period.
    """

    run: str
    planned_steps: int
    layers: tuple[str, ...]
    steps: Numbers
    period_shares: Numbers
    probabilities: Numbers
    rewards: Numbers
    attacker_survived: tuple[bool, ...]
    config: Mapping[str, Any]

    @property
    def progress(self) -> Numbers:
        """``(T,)``, the fraction of the planned steps that were taken."""
        return self.steps / max(self.planned_steps, 1)


@dataclass(frozen=True)
class Fit:
    """Piecewise linear curves through the patterns.

    Attributes:
        knots: ``(N + 1,)``, shares of the planned steps.
        values: ``(N + 1, layers)``, the probability at each knot.
        rms: ``(layers,)``, root mean square of the differences from the patterns, weighted as the fit was.
        largest: ``(layers,)``, the largest of these differences.
    """

    knots: Numbers
    values: Numbers
    rms: Numbers
    largest: Numbers

    @property
    def far_off(self) -> bool:
        """Whether a curve is off its pattern by more than 0.1 anywhere."""
        return bool(self.largest.max() > _FAR)

    def at(self, progress: Numbers) -> Numbers:
        """Evaluate the curves: probabilities, ``(T, layers)``."""
        return _hats(progress, self.knots) @ self.values


def read(folder: Path) -> Patterns:
    """Read the patterns of a finished run of AttendOut.

    Raises:
        AttendropError: There is no such run, it trained with another method, or it took no dropout step.
    """
    _, metrics = read_finished(str(folder))
    if AttendOut.name not in metrics["method"].split("+"):
        raise AttendropError(
            f"The run in '{folder}' trained with {metrics['method']}, which learns no dropout patterns; name one of "
            "method attendout."
        )
    found = metrics["dropout_steps"]
    if not found:
        raise AttendropError(f"The run in '{folder}' took no dropout step; train for longer, or lower dropout_step.")
    names = {layer for entry in found for layer in entry["drop_probability"]}
    layers = sorted(names, key=lambda key: (key.split(".")[0], int(key.split(".")[1])))
    return Patterns(
        run=run_title(metrics),
        planned_steps=metrics["planned_steps"],
        layers=tuple(layers),
        steps=np.array([entry["step"] for entry in found], dtype=np.float64),
        period_shares=np.array([entry.get("period_share", 1.0) for entry in found], dtype=np.float64),
        probabilities=np.array([[entry["drop_probability"].get(key, np.nan) for key in layers] for entry in found]),
        rewards=np.array([entry["reward"] for entry in found], dtype=np.float64),
        attacker_survived=tuple(entry["attacker_survived"] for entry in found),
        config=metrics["config"],
    )


def fit(patterns: Patterns, pieces: int) -> Fit:
    """Fit a continuous curve of equal linear pieces in the training progress to each layer, by least squares.

    A period counts by its length, so that a partial one weighs less. The curve's values at the knots are then clamped
    to [0, 0.95], the range of :class:`attendrop.Scheduler`.

    Raises:
        AttendropError: There are too few dropout steps, or a piece has too few.
    """
    count = len(patterns.steps)
    if pieces < 1:
        raise AttendropError(f"fit={pieces} must be at least 1: it is the number of pieces.")
    if count < pieces + 1:
        raise AttendropError(
            f"fit={pieces}: {counted(pieces, 'piece')} with {pieces + 1} knots, but the run took "
            f"{counted(count, 'dropout step')}; fit fewer pieces, or train with a lower dropout_step."
        )
    knots = np.round(np.linspace(0, 1, pieces + 1), _DECIMALS)
    hats = _hats(patterns.progress, knots)
    fits = [_least_squares(hats, curve, patterns.period_shares) for curve in patterns.probabilities.T]
    if any(rank < pieces + 1 for _, rank in fits):
        raise AttendropError(
            f"fit={pieces}: the dropout steps, from {patterns.progress[0]:.0%} to {patterns.progress[-1]:.0%} of the "
            "planned steps, do not determine every piece; fit fewer."
        )
    values = np.stack([found for found, _ in fits], axis=1).clip(0, HIGHEST).astype(np.float64).round(_DECIMALS)
    errors = np.ma.masked_invalid(hats @ values - patterns.probabilities)
    rms = np.sqrt(np.ma.average(errors**2, axis=0, weights=patterns.period_shares).data)
    return Fit(knots, values, rms, np.abs(errors).max(axis=0).data)


def close_fit(patterns: Patterns, pieces: int) -> Fit:
    """Fit as many pieces as needed, at least ``pieces``, so that no curve is off by more than 0.1.

    If that takes more than 12, or more than the dropout steps determine, this is the closest of the fits.

    Raises:
        AttendropError: As for :func:`fit`.
    """
    best = fit(patterns, pieces)
    for more in range(pieces + 1, _MOST_PIECES + 1):
        if not best.far_off:
            break
        try:
            found = fit(patterns, more)
        except AttendropError:  # too few dropout steps
            break
        if found.largest.max() < best.largest.max():
            best = found
    return best


def scheduler(patterns: Patterns, fitted: Fit) -> Scheduler:
    """Make the method that follows the fitted curves, in the layers where AttendOut acted."""
    options = patterns.config["options"]
    layers = options.get(AttendOut.name, options).get("layers", "all")
    knots, curves = tuple(fitted.knots.tolist()), tuple(map(tuple, fitted.values.T.tolist()))
    return Scheduler(progress=knots, probabilities=curves, layers=layers)


def plot(patterns: Patterns, path: Path, fitted: Fit | None = None) -> None:
    """Plot each layer's drop probability over the steps, and its fit as a dashed line, as a PNG file."""
    with picture_file(path, (8, 4.5)) as axes:
        _plot(axes, patterns, fitted)


def _plot(axes: Any, patterns: Patterns, fitted: Fit | None) -> None:
    import matplotlib

    colors = matplotlib.colormaps["viridis"](np.linspace(0, _LIGHTEST, len(patterns.layers)))
    marker = "o" if len(patterns.steps) <= 40 else None
    # What the fit goes through steps back behind it.
    measured: dict[str, Any] = {"linewidth": 1.5, "alpha": 1.0} if fitted is None else {"linewidth": 1.0, "alpha": 0.5}
    curve = np.linspace(0, patterns.progress[-1], 200)
    for i, (layer, color) in enumerate(zip(patterns.layers, colors, strict=True)):
        probabilities = patterns.probabilities[:, i]
        axes.plot(patterns.steps, probabilities, color=color, label=layer, marker=marker, markersize=3, **measured)
        if fitted is not None:
            axes.plot(curve * patterns.planned_steps, fitted.at(curve)[:, i], color=color, linestyle="--")
        partial = patterns.period_shares < 1
        axes.plot(patterns.steps[partial], probabilities[partial], "o", markerfacecolor="white", color=color)
    if fitted is not None:
        axes.plot([], [], color="gray", linestyle="--", label="fit")
    if (patterns.period_shares < 1).any():
        axes.plot([], [], "o", markerfacecolor="white", color="gray", label="partial period")
    axes.set_xlim(0, 1.01 * max(patterns.planned_steps, patterns.steps[-1]))
    axes.set_ylim(*_range(patterns.probabilities))
    axes.set_xlabel("training step")
    axes.set_ylabel("mean probability of dropping")
    axes.set_title(f"AttendOut: {patterns.run}", fontsize="medium")
    axes.grid(alpha=0.3)
    columns = 1 + len(patterns.layers) // 17
    legend = axes.figure.legend(loc="outside right upper", title="attention layer", fontsize="small", ncols=columns)
    for line in legend.get_lines():
        line.set(alpha=1.0, linewidth=1.5)


def _least_squares(hats: Numbers, curve: Numbers, weights: Numbers) -> tuple[Numbers, int]:
    """Fit the values at the knots to one layer's curve, where it is known; returns also the rank of the problem."""
    known, root = np.isfinite(curve), np.sqrt(weights)
    values, _, rank, _ = np.linalg.lstsq((hats * root[:, None])[known], (curve * root)[known], rcond=None)
    return values.astype(np.float64), int(rank)


def _range(values: Numbers) -> tuple[float, float]:
    """Choose the limits of an axis: all values, but never so close that noise looks like a pattern."""
    values = values[np.isfinite(values)]
    middle, half = (values.max() + values.min()) / 2, max((values.max() - values.min()) / 2 * 1.1, 0.05)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _hats(progress: Numbers, knots: Numbers) -> Numbers:
    """Evaluate hat functions, ``(T, knots)``: the weight of each knot at each point of a piecewise linear curve."""
    return np.stack([np.interp(progress, knots, hat) for hat in np.eye(len(knots))], axis=1)
