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
from attendrop.reports.figures import Figure, by_layer, chart_of, layer_curves
from attendrop.runs.run_folder import read_finished
from attendrop.wording import counted

_DECIMALS = 6
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


def read(folder: Path) -> Patterns:
    """Read the patterns of a finished run of AttendOut.

    Raises:
        AttendropError: There is no such run, it trained with another method, or it took no dropout step.
    """
    _, metrics = read_finished(str(folder))
    if AttendOut.info.name not in metrics["method"].split("+"):
        raise AttendropError(
            f"The run in '{folder}' trained with {metrics['method']}, which learns no dropout patterns; name one of "
            "method attendout."
        )
    found = metrics["dropout_steps"]
    if not found:
        raise AttendropError(f"The run in '{folder}' took no dropout step; train for longer, or lower dropout_step.")
    layers = sorted({layer for entry in found for layer in entry["drop_probability"]}, key=by_layer)
    return Patterns(
        run=f"{Path(metrics['model']).name} on {metrics['task']}, seed {metrics['seed']}",
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
    # The weight of each knot at each point of a piecewise linear curve, (T, knots).
    hats = np.stack([np.interp(patterns.progress, knots, hat) for hat in np.eye(len(knots))], axis=1)
    values, root = np.empty((pieces + 1, len(patterns.layers))), np.sqrt(patterns.period_shares)
    for layer, curve in enumerate(patterns.probabilities.T):
        known = np.isfinite(curve)
        values[:, layer], _, rank, _ = np.linalg.lstsq((hats * root[:, None])[known], (curve * root)[known], rcond=None)
        if rank < pieces + 1:
            raise AttendropError(
                f"fit={pieces}: the dropout steps, from {patterns.progress[0]:.0%} to {patterns.progress[-1]:.0%} of "
                "the planned steps, do not determine every piece; fit fewer."
            )
    values = values.clip(0, HIGHEST).round(_DECIMALS)
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
    layers = options.get(AttendOut.info.name, options).get("layers", "all")
    knots, curves = tuple(fitted.knots.tolist()), tuple(map(tuple, fitted.values.T.tolist()))
    return Scheduler(progress=knots, probabilities=curves, layers=layers)


def figure(patterns: Patterns, fitted: Fit | None = None) -> Figure:
    """Draw each layer's drop probability over the steps, and its fit as a dashed line.

    Points of partial periods are open.
    """
    records = [
        {"layer": layer, "step": f"{step:g}", "probability": f"{p:.4f}", "_x": step, "_y": p, "_share": share}
        for layer, curve in zip(patterns.layers, patterns.probabilities.T.tolist(), strict=True)
        for step, p, share in zip(patterns.steps.tolist(), curve, patterns.period_shares.tolist(), strict=True)
        if np.isfinite(p)
    ]
    (base, values), caption = chart_of(records), "A line for each attention layer."
    chart = layer_curves(base, records)
    if (patterns.period_shares < 1).any():
        partial = base.transform_filter("datum._share < 1").mark_point(size=40, fill="white", opacity=1)
        chart += partial.encode(x="_x:Q", y="_y:Q", color="_0:N")
        caption += " Open points: partial periods."
    if fitted is not None:
        knots = [
            {"layer": layer, "fit": f"{p:.4f}", "_x": knot * patterns.planned_steps, "_y": p}
            for layer, curve in zip(patterns.layers, fitted.values.T.tolist(), strict=True)
            for knot, p in zip(fitted.knots.tolist(), curve, strict=True)
        ]
        fits, _ = chart_of(knots)
        chart += fits.mark_line(strokeDash=[6, 3]).encode(x="_x:Q", y="_y:Q", color="_0:N")
        caption += " Dashed: the fit."
    chart = chart.properties(width=480, height=300)
    return Figure("patterns", patterns.run, "AttendOut: learnt drop probability of each layer", caption, chart, values)
