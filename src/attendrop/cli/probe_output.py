"""`attendrop patterns --probe`: what a model loses without positions of high, low or random attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attendrop.errors import AttendropError
from attendrop.files.output_files import finite, write_text
from attendrop.reports.probe import DIRECTIONS, ProbeResult, RunProbe, plot_probe, probe_run
from attendrop.reports.run_drops import RowSource
from attendrop.runs.run_folder import adding, writable
from attendrop.text_tables import NAMES_LEFT, aligned

# The rate that the tables show, or the one next to it; the paper's prior experiment uses it.
_SHOWN = 0.3


def parse_rates(text: str) -> list[float]:
    """Parse ``"0.1,0.3"``; raise AttendropError if it is not a list of numbers."""
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise AttendropError(f"--rates {text!r} is not a list of numbers, such as 0.1,0.3,0.5.") from None


def show_probe(
    run: str,
    rates: Sequence[float],
    source: RowSource,
    table: str | None,
    *,
    overwrite: bool,
    on_pass: Callable[[int, int], None] | None,
) -> tuple[dict[str, Any], str]:
    """Probe the model of a run, and write the ``table``, CSV, and a figure beside it, PNG.

    Returns what was found, as plain values and as text.
    """
    if source.file is not None:
        raise AttendropError("--probe looks at the labelled rows of the run; omit --file.")
    file = writable(run, table or f"{run}/probe.csv", overwrite=overwrite)
    picture = writable(run, str(file.with_suffix(".png")), overwrite=overwrite)
    found = probe_run(run, source, rates, on_pass)
    with adding(run, file, picture):
        write_text(file, found.probe.csv(found.scores, found.metric))
        plot_probe(found, picture)
    values = {
        "run": run,
        "rows": found.probe.rows,
        "windows": found.probe.windows,
        "set": found.rows,
        "metric": found.metric,
        "score": found.score,
        "loss": found.probe.loss,
        "rows_with_signal": dict(found.probe.rows_with_signal),
        "results": [_plain(result, score) for result, score in zip(found.probe.results, found.scores, strict=True)],
        "table": str(file),
        "picture": str(picture),
    }
    return values, "\n".join([*_text(found, rates), f"Wrote {file} and {picture}."])


def _plain(result: ProbeResult, score: float) -> dict[str, Any]:
    about = {"layer": result.layer, "rate": result.rate, "direction": result.direction, "score": score}
    low, high = finite(result.low), finite(result.high)
    return about | {"loss": result.loss, "change": result.change, "low": low, "high": high}


def _interval(result: ProbeResult) -> str:
    return f"[{result.low:+.3f}, {result.high:+.3f}]" if finite(result.low) is not None else "(one row)"


def _text(found: RunProbe, rates: Sequence[float]) -> list[str]:
    shown = min(rates, key=lambda rate: abs(rate - _SHOWN))
    scores = dict(zip(found.probe.by_place, found.scores, strict=True))
    losses, after = [["layer", "with signal", *DIRECTIONS]], [["layer", *DIRECTIONS]]
    for layer in dict.fromkeys(each.layer for each in found.probe.results):
        results = [found.probe.by_place[layer, shown, direction] for direction in DIRECTIONS]
        changes = [f"{one.change:+.3f} {_interval(one)}" for one in results]
        losses.append([layer, f"{found.probe.rows_with_signal.get(layer, 0):.0%}", *changes])
        after.append([layer, *(f"{scores[layer, shown, direction]:.3f}" for direction in DIRECTIONS)])
    return [
        f"Probe of {found.run}, on {found.sample}",
        f"Nothing dropped: loss {found.probe.loss:.4f}, {found.metric} {found.score:.3f}.",
        "",
        f"Change of the mean loss, with its 95 % interval, where one layer drops {shown:.0%} of each row of attention:",
        *aligned(losses, NAMES_LEFT),
        "Rows of attention without signal, whose attributions are all equal, drop none of high or low attribution.",
        "",
        f"{found.metric.capitalize().replace('_', ' ')}:",
        *aligned(after, NAMES_LEFT),
        "",
    ]
