"""`attendrop patterns`: what AttendOut learnt, as a plot, a table and a schedule."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError

if TYPE_CHECKING:
    from attendrop.reports.learned_patterns import Patterns

_ROWS = 12


@ui.app.command()
def patterns(
    run: ui.RunFolder,
    fit: Annotated[
        int | None, typer.Option(help="Least number of linear pieces of a fitted schedule.", show_default="none")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="PNG figure of what was learnt.", show_default="RUN/patterns.png")
    ] = None,
    options: Annotated[
        str | None, typer.Option(help="JSON file of the fit.", show_default="RUN/scheduler.json")
    ] = None,
    overwrite: ui.Overwrite = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Show what a run of AttendOut learnt, and fit a schedule to it."""
    if options is not None and fit is None:
        raise AttendropError(
            "--options names the file of a fit, but --fit is missing; give the number of pieces with --fit."
        )
    from attendrop.reports import learned_patterns
    from attendrop.runs.config import RUN_FILE
    from attendrop.runs.run_folder import input_files
    from attendrop.support.files import check_output, write_bytes, write_json
    from attendrop.wording import RIGHT, aligned, counted

    with ui.messages(quiet=quiet):
        found = learned_patterns.read(Path(run))
        fitted = None if fit is None else learned_patterns.fit(found, fit)
        picture, schedule = Path(output or f"{run}/patterns.png"), Path(options or f"{run}/scheduler.json")
        for file in (picture, schedule) if fitted is not None else (picture,):
            check_output(file, input_files(Path(run)), overwrite=overwrite)
            if not file.parent.is_dir():
                raise AttendropError(f"'{file}' cannot be written; name a file in a folder that exists.")
        write_bytes(picture, learned_patterns.figure(found, fitted).files()["png"])
        curves = [[None if math.isnan(p) else p for p in curve] for curve in found.probabilities.T.tolist()]
        values: dict[str, Any] = {
            "run": run,
            "picture": str(picture),
            "dropout_steps": len(found.steps),
            "drop_probability": dict(zip(found.layers, curves, strict=True)),
            "steps": found.steps.astype(int).tolist(),
            "period_shares": found.period_shares.tolist(),
        }
        text = [f"AttendOut: {found.run}", "", *_table(found), "", f"Wrote {picture}."]
        if fit is not None and fitted is not None:
            method = learned_patterns.scheduler(found, fitted)
            write_json(schedule, {"method": method.name, "options": method.options()})  # for train --options
            again = ["--config", f"{run}/{RUN_FILE}", "--method", method.name, "--options", str(schedule)]
            command = shlex.join(["attendrop", "train", *again])
            values["fit"] = {
                "file": str(schedule),
                "rms": dict(zip(found.layers, fitted.rms.tolist(), strict=True)),
                "largest_deviation": dict(zip(found.layers, fitted.largest.tolist(), strict=True)),
                "command": command,
                **method.options(),
            }
            rows = [["progress", *(f"{knot:.2f}" for knot in fitted.knots), "RMS error", "largest"]]
            for layer, at_knots, *errors in zip(found.layers, fitted.values.T, fitted.rms, fitted.largest, strict=True):
                rows.append([layer, *(f"{value:.3f}" for value in at_knots), *(f"{error:.4f}" for error in errors)])
            text += ["", f"Least squares fit, linear pieces between {len(fitted.knots)} knots:"]
            text += aligned(rows, RIGHT, " ")
            if (taken := len(fitted.knots) - 1) > fit:
                text.append(f"A fit of {counted(fit, 'piece')} is far off the curves; {taken} were taken.")
            if fitted.largest.max() > learned_patterns.FAR:
                text.append(f"The fit is still far off the curves: by up to {fitted.largest.max():.2f}.")
            text += [f"Wrote {schedule}. To train with it:", command]
    ui.show(values, "\n".join(text), quiet=quiet, as_json=as_json)


def _table(found: Patterns) -> list[str]:
    """Format some dropout steps, with the first and the last: probabilities by layer, reward, survivor."""
    from attendrop.wording import RIGHT, aligned

    count = len(found.steps)
    last = min(count, _ROWS) - 1
    shown = sorted({round(i * (count - 1) / max(last, 1)) for i in range(last + 1)})
    kinds = {layer.split(".")[0] for layer in found.layers}
    names = [layer.split(".")[1] for layer in found.layers] if len(kinds) == 1 else found.layers
    rows = [["step", *names, "reward", "kept"]]
    for i in shown:
        kept = "A" if found.attacker_survived[i] else "D"
        cells = ["–" if math.isnan(p) else f"{p:.3f}" for p in found.probabilities[i]]
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
    return lines
