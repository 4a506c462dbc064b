"""`attendrop patterns`: what AttendOut learnt, as a plot, a table and a schedule."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.files.output_files import check_output
from attendrop.methods.attend_out.effects import learnt
from attendrop.methods.attend_out.method import AttendOut
from attendrop.reports import learned_patterns as patterns
from attendrop.reports.figures import run_title
from attendrop.reports.learned_patterns import Fit, Patterns
from attendrop.runs.config import RunConfig
from attendrop.runs.run_folder import add_files, hold_run_folders, own_files, read_metrics, was_added
from attendrop.text_tables import RIGHT, aligned
from attendrop.wording import counted

_ROWS = 12


def learns_patterns(run: str) -> bool:
    """Tell whether the run in a folder is one of a method that learns dropout patterns."""
    metrics = read_metrics(Path(run))
    return metrics is not None and AttendOut.name in metrics["method"].split("+")


def show_patterns(
    run: str, pieces: int | None, output: str | None, options: str | None, *, overwrite: bool = False
) -> tuple[dict[str, Any], str]:
    """Plot the patterns of a run, and fit a schedule to them if ``pieces`` is given.

    Args:
        run: Folder of a run.
        pieces: Least number of linear pieces of the schedule, see ``close_fit``; None fits none.
        output: File of the plot. None: ``patterns.png`` in the folder.
        options: File of the schedule. None: ``scheduler.json`` in the folder.
        overwrite: Replace existing files. Earlier outputs of this function in the run's folder are always replaced, the
            run's own files never.

    Returns:
        What was found, as plain values and as text.

    Raises:
        AttendropError: The run has no patterns, the fit is not possible, or a file cannot be written.
    """
    if options is not None and pieces is None:
        raise AttendropError(
            "--options names the file of a fit, but --fit is missing; give the number of pieces with --fit."
        )
    metrics = read_metrics(Path(run)) or {}
    if metrics.get("layer_effects"):
        return _show_effects(run, metrics, pieces, output, overwrite=overwrite)
    found = patterns.read(Path(run))
    fitted = None if pieces is None else patterns.close_fit(found, pieces)
    picture = writable(run, output or f"{run}/patterns.png", overwrite=overwrite)
    schedule = writable(run, options or f"{run}/scheduler.json", overwrite=overwrite or fitted is None)
    with hold_run_folders([picture]):
        patterns.plot(found, picture, fitted)
        add_files(Path(run), [picture])
    values: dict[str, Any] = {"run": run, "picture": str(picture), "dropout_steps": len(found.steps)}
    values |= {"drop_probability": _by_layer(found, found.probabilities), "steps": found.steps.astype(int).tolist()}
    values["period_shares"] = found.period_shares.tolist()
    text = [f"AttendOut: {found.run}", "", _table(found), "", f"Wrote {picture}."]
    if pieces is not None and fitted is not None:
        method = patterns.scheduler(found, fitted)
        with hold_run_folders([schedule]):
            patterns.write_options(schedule, method)
            add_files(Path(run), [schedule])
        command = _command(found.config, schedule)
        rms = dict(zip(found.layers, fitted.rms.tolist(), strict=True))
        largest = dict(zip(found.layers, fitted.largest.tolist(), strict=True))
        values["fit"] = {"file": str(schedule), "rms": rms, "largest_deviation": largest, "command": command}
        values["fit"] |= method.options()
        text += ["", *_reading(found, fitted, pieces), f"Wrote {schedule}. To train with it:", command]
    return values, "\n".join(text)


def writable(run: str, file: str, *, overwrite: bool) -> Path:
    """Check that a file can be written: it is new, or an earlier output in the run's folder, or is to be replaced."""
    path, folder = Path(file), Path(run)
    if path.is_dir() or not path.parent.is_dir():
        raise AttendropError(f"'{file}' cannot be written; name a file in a folder that exists.")
    check_output(path, own_files(folder), overwrite=overwrite or was_added(folder, path))
    return path


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


def _show_effects(
    run: str, metrics: Mapping[str, Any], pieces: int | None, output: str | None, *, overwrite: bool
) -> tuple[dict[str, Any], str]:
    """Plot the effect of each layer, and tell what was learnt."""
    if pieces is not None:
        raise AttendropError(
            "The run learnt effects of whole layers, not probabilities that a schedule could follow; leave --fit out, "
            "or train with --set learner=policy_gradient."
        )
    effects, title = metrics["layer_effects"], run_title(metrics)
    picture = writable(run, output or f"{run}/patterns.png", overwrite=overwrite)
    with hold_run_folders([picture]):
        patterns.plot_effects(title, effects, picture)
        add_files(Path(run), [picture])
    rows = [["layer", "effect", "95 % interval", "p", "told from noise"]]
    for layer, seen in effects.items():
        known = seen["effect"] is not None
        interval = "{:+.4g} to {:+.4g}".format(*seen["effect_interval"]) if known else "–"
        effect = f"{seen['effect']:+.4g}" if known else "–"
        rows.append([layer, effect, interval, f"{seen['p']:.2g}", "yes" if seen["told_from_noise"] else "no"])
    count = len(metrics["dropout_steps"])
    text = [
        f"AttendOut: {title}",
        "",
        f"Effect on the reward of dropping each layer for a period, of {counted(count, 'period')}:",
        *aligned(rows, "lr"),
        f"Learnt: {learnt(effects)}.",
        "",
        f"Wrote {picture}.",
    ]
    values = {"run": run, "picture": str(picture), "dropout_steps": count, "layer_effects": dict(effects)}
    return values, "\n".join(text)


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


# Options of a run whose names on the command line differ.
_FLAGS = {"task_options": "--task-set"}


def _command(config: Mapping[str, Any], schedule: Path) -> str:
    """Write the training command of a run with the schedule in place of its method."""
    words = ["attendrop", "train"]
    for field in dataclasses.fields(RunConfig):
        default = field.default_factory() if callable(field.default_factory) else field.default
        value = config.get(field.name, default)
        if field.name in ("output_dir", "method", "options") or value in (default, [], ()):
            continue
        flag = next(iter(field.metadata["flags"]), f"--{field.name.replace('_', '-')}")
        if isinstance(value, Mapping):
            given = [f"{name}={each}" for name, each in value.items() if each is not None]
            words += [word for each in given for word in (flag, each)]
            continue
        text = ",".join(value) if isinstance(value, list | tuple) else str(value)
        words += [flag] if value is True else [flag, text]
    return shlex.join([*words, "--method", "scheduler", "--options", str(schedule)])
