"""The dropout patterns that AttendOut learnt, as a plot (Figure 3 of its paper) and as a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendrop.errors import AttendropError
from attendrop.methods.attend_out import AttendOut
from attendrop.methods.random_dropout import HIGHEST, Scheduler
from attendrop.reports.figures import Figure, by_layer, chart_of, layer_curves
from attendrop.runs.run_folder import read_finished
from attendrop.wording import counted

_DECIMALS = 6
# A fit with a larger deviation than this at any point gets more pieces, up to this maximum.
FAR, _MOST_PIECES = 0.1, 12
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Patterns:
    """The dropout steps of a run of AttendOut, ``T`` periods.

    ``steps`` are the optimizer steps taken by the end of each, and ``period_shares`` its length as a share of a whole
    one: less than 1 where training ended within it. ``probabilities``, ``(T, layers)``, are the means of dropping in
    it; NaN for a layer that was skipped in all of it.
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


@dataclass(frozen=True)
class Fit:
    """Piecewise linear curves through the patterns.

    ``values``, ``(N + 1, layers)``, are the probabilities at the ``knots``, ``(N + 1,)`` shares of the planned steps;
    ``rms`` and ``largest``, ``(layers,)``, the root mean square, weighted as the fit was, and the largest difference.
    """

    knots: Numbers
    values: Numbers
    rms: Numbers
    largest: Numbers


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


def fit(patterns: Patterns, pieces: int, most: int = _MOST_PIECES) -> Fit:
    """Fit a continuous curve of equal linear pieces in the training progress to each layer, by least squares.

    There are ``pieces``, or as many more, up to ``most``, as are needed so that no curve is off by more than 0.1; if
    that takes too many, or more than the dropout steps determine, this is the closest of the fits. A period counts by
    its length, so that a partial one weighs less. The curve's values at the knots are then clamped to [0, 0.95], the
    range of :class:`attendrop.Scheduler`.

    Raises:
        AttendropError: There are too few dropout steps, or a piece has too few.
    """
    if pieces < 1:
        raise AttendropError(f"fit={pieces} must be at least 1: it is the number of pieces.")
    progress, fits = patterns.steps / max(patterns.planned_steps, 1), list[Fit]()
    for count in range(pieces, max(pieces, most) + 1):
        knots = np.linspace(0, 1, count + 1).round(_DECIMALS)
        # The weight of each knot at each point of a piecewise linear curve, (T, knots).
        hats = np.stack([np.interp(progress, knots, hat) for hat in np.eye(len(knots))], axis=1)
        values, root = np.empty((count + 1, len(patterns.layers))), np.sqrt(patterns.period_shares)
        ranks = []
        for layer, curve in enumerate(patterns.probabilities.T):
            known = np.isfinite(curve)
            weighted, wanted = (hats * root[:, None])[known], (curve * root)[known]
            values[:, layer], _, rank, _ = np.linalg.lstsq(weighted, wanted, rcond=None)
            ranks.append(rank)
        if min(ranks) < count + 1:
            break
        values = values.clip(0, HIGHEST).round(_DECIMALS)
        errors = np.ma.masked_invalid(hats @ values - patterns.probabilities)
        rms = np.sqrt(np.ma.average(errors**2, axis=0, weights=patterns.period_shares).data)
        fits.append(Fit(knots, values, rms, np.abs(errors).max(axis=0).data))
        if fits[-1].largest.max() <= FAR:
            break
    if not fits:
        steps, covered = counted(len(progress), "dropout step"), f"{progress[0]:.0%} to {progress[-1]:.0%}"
        raise AttendropError(
            f"fit={pieces}: {steps}, from {covered} of the planned steps, do not determine the "
            f"{counted(pieces + 1, 'knot')}; fit fewer pieces, or train with a lower dropout_step."
        )
    return min(fits, key=lambda found: float(found.largest.max()))


def scheduler(patterns: Patterns, fitted: Fit) -> Scheduler:
    """Make the method that follows the fitted curves, in the layers where AttendOut acted."""
    options = patterns.config["options"]
    layers = options.get(AttendOut.info.name, options).get("layers", "all")
    knots, curves = tuple(fitted.knots.tolist()), tuple(map(tuple, fitted.values.T.tolist()))
    return Scheduler(progress=knots, probabilities=curves, layers=layers)


def figure(patterns: Patterns, fitted: Fit | None = None) -> Figure:
    """Draw each layer's drop probability over the steps, and its fit as a dashed line."""
    points = [
        (layer, step, p)
        for layer, curve in zip(patterns.layers, patterns.probabilities.T.tolist(), strict=True)
        for step, p in zip(patterns.steps.tolist(), curve, strict=True)
        if np.isfinite(p)
    ]
    (chart, values), caption = layer_curves(points), "A line for each attention layer."
    if fitted is not None:
        knots = [
            {"layer": layer, "fit": f"{p:.4f}", "_x": knot * patterns.planned_steps, "_y": p}
            for layer, curve in zip(patterns.layers, fitted.values.T.tolist(), strict=True)
            for knot, p in zip(fitted.knots.tolist(), curve, strict=True)
        ]
        chart += chart_of(knots)[0].mark_line(strokeDash=[6, 3]).encode(x="_x:Q", y="_y:Q", color="_0:N")
        caption += " Dashed: the fit."
    chart = chart.properties(width=480, height=300)
    return Figure("patterns", patterns.run, "AttendOut: learnt drop probability of each layer", caption, chart, values)
