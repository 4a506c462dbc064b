"""`attendrop patterns`: what AttendOut learnt, as a plot, a table and a schedule."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.files.output_files import write_json
from attendrop.reports import learned_patterns as patterns
from attendrop.reports.learned_patterns import Fit, Patterns
from attendrop.runs.run_file import RUN_FILE
from attendrop.runs.run_folder import adding, writable
from attendrop.text_tables import RIGHT, aligned
from attendrop.wording import counted

_ROWS = 12


def show_patterns(
    run: str, pieces: int | None, output: str | None, options: str | None, *, overwrite: bool
) -> tuple[dict[str, Any], str]:
    """Plot the patterns of a run in ``output``, and fit a schedule to them, in the file ``options``.

    Without ``pieces``, the minimum number of linear pieces (see ``close_fit``), no schedule is fitted. Returns what was
    found, as plain values and as text.
    """
    if options is not None and pieces is None:
        raise AttendropError(
            "--options names the file of a fit, but --fit is missing; give the number of pieces with --fit."
        )
    found = patterns.read(Path(run))
    fitted = None if pieces is None else patterns.close_fit(found, pieces)
    picture = writable(run, output or f"{run}/patterns.png", overwrite=overwrite)
    schedule = writable(run, options or f"{run}/scheduler.json", overwrite=overwrite or fitted is None)
    with adding(run, picture):
        patterns.plot(found, picture, fitted)
    values: dict[str, Any] = {"run": run, "picture": str(picture), "dropout_steps": len(found.steps)}
    values |= {"drop_probability": _by_layer(found, found.probabilities), "steps": found.steps.astype(int).tolist()}
    values["period_shares"] = found.period_shares.tolist()
    text = [f"AttendOut: {found.run}", "", _table(found), "", f"Wrote {picture}."]
    if pieces is not None and fitted is not None:
        method = patterns.scheduler(found, fitted)
        with adding(run, schedule):
            write_json(schedule, {"method": method.name, "options": method.options()})  # for train --options
        again = ["--config", f"{run}/{RUN_FILE}", "--method", method.name, "--options", str(schedule)]
        command = shlex.join(["attendrop", "train", *again])
        rms = dict(zip(found.layers, fitted.rms.tolist(), strict=True))
        largest = dict(zip(found.layers, fitted.largest.tolist(), strict=True))
        values["fit"] = {"file": str(schedule), "rms": rms, "largest_deviation": largest, "command": command}
        values["fit"] |= method.options()
        text += ["", *_reading(found, fitted, pieces), f"Wrote {schedule}. To train with it:", command]
    return values, "\n".join(text)


def _by_layer(found: Patterns, values: Any) -> dict[str, list[float | None]]:
    curves = [[None if np.isnan(value) else value for value in curve] for curve in values.T.tolist()]
    return dict(zip(found.layers, curves, strict=True))


def _table(found: Patterns) -> str:
    """Format some dropout steps, with the first and the last: probabilities by layer, reward, survivor."""
    count = len(found.steps)
    shown = np.unique(np.linspace(0, count - 1, min(count, _ROWS)).round().astype(int))
    kinds = {layer.split(".")[0] for layer in found.layers}
    names = [layer.split(".")[1] for layer in found.layers] if len(kinds) == 1 else found.layers
    rows = [["step", *names, "reward", "kept"]]
    for i in shown:
        kept = "A" if found.attacker_survived[i] else "D"
        cells = ["–" if np.isnan(p) else f"{p:.3f}" for p in found.probabilities[i]]
        partial = "" if found.period_shares[i] == 1 else "*"
        rows.append([f"{found.steps[i]:.0f}{partial}", *cells, f"{found.rewards[i]:+.3f}", kept])
    survived = sum(found.attacker_survived)
    lines = [
        f"Mean probability of dropping, by layer of {' and '.join(sorted(kinds))} attention:",
        *aligned(rows, RIGHT, " "),
        f"{len(shown)} of {count} dropout steps. Kept: the attacker (A) or the defender (D); A {survived} times.",
    ]
    if (found.period_shares < 1).any():
        lines.append("* a partial period, since training ended; it weighs less in a fit.")
    return "\n".join(lines)


def _reading(found: Patterns, fitted: Fit, pieces: int) -> list[str]:
    rows = [["progress", *(f"{knot:.2f}" for knot in fitted.knots), "RMS error", "largest"]]
    for layer, values, *errors in zip(found.layers, fitted.values.T, fitted.rms, fitted.largest, strict=True):
        rows.append([layer, *(f"{value:.3f}" for value in values), *(f"{error:.4f}" for error in errors)])
    lines = [f"Least squares fit, linear pieces between {len(fitted.knots)} knots:", *aligned(rows, RIGHT, " ")]
    taken = len(fitted.knots) - 1
    if taken > pieces:
        lines.append(f"A fit of {counted(pieces, 'piece')} is far off the curves; {taken} were taken.")
    if fitted.far_off:
        lines.append(f"The fit is still far off the curves: by up to {fitted.largest.max():.2f}.")
    return lines
