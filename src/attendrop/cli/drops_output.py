"""`attendrop patterns`: what a run's method drops, as tables, CSV and a figure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attendrop.files.output_files import finite, write_text
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.registry import build_method
from attendrop.reports.drop_patterns import ALL, DropPatterns, Share, plot_drops
from attendrop.reports.run_drops import RecordedDrops, RowSource, record_run_drops
from attendrop.runs.run_folder import adding, read_metrics, writable
from attendrop.text_tables import NAMES_LEFT, aligned
from attendrop.wording import counted_rows

_HEADINGS = {
    "distance": "By distance between the two positions, in tokens",
    "to": "By type of the token attended to",
    "from": "By type of the token that attends",
}


def show_drops(
    run: str,
    source: RowSource,
    table: str | None,
    *,
    overwrite: bool,
    on_batch: Callable[[int, int], None] | None,
) -> tuple[dict[str, Any], str]:
    """Record what the method of a run drops on some rows, and write the ``table``, CSV, and a figure beside it, PNG.

    Returns what was found, as plain values and as text. Without a dropped position no file is written.
    """
    file = writable(run, table or f"{run}/drops.csv", overwrite=overwrite)
    picture = writable(run, str(file.with_suffix(".png")), overwrite=overwrite)
    found = record_run_drops(run, source, on_batch)
    patterns = found.patterns
    if not patterns.any:
        because = _because_of(run, found)
        return {"run": run, "drops_in_attention": False, "because": because}, because
    assert found.method is not None
    title = f"{found.method.name} on {_rows(found)}: {found.run}"
    with adding(run, file, picture):
        write_text(file, patterns.csv())
        plot_drops(patterns, title, picture)
    values = {
        "run": run,
        "drops_in_attention": True,
        "method": found.method.name,
        "rows": found.rows,
        "windows": found.windows,
        "steps": patterns.batches,
        "active_layers": patterns.active_layers,
        "dropped": _plain(patterns.share("layer", ALL)),
        "by_layer": {layer: _plain(patterns.share("layer", ALL, layer)) for layer in patterns.layers},
        **{
            f"by_{grouping}": {group: _plain(patterns.share(grouping, group)) for group in patterns.groups(grouping)}
            for grouping in ("head", "distance", "to", "from")
        },
        "table": str(file),
        "picture": str(picture),
    }
    return values, "\n".join([title, *_text(found), f"Wrote {file} and {picture}."])


def _because_of(run: str, found: RecordedDrops) -> str:
    """Explain why nothing was dropped."""
    if found.method is None:
        metrics = read_metrics(Path(run)) or {}
        method = build_method(metrics["config"]["method"], metrics["config"]["options"])
        acts_on = sorted({place for part in method.parts for place in part.info.acts_on})
        what = f"it acts on {', '.join(acts_on)}" if acts_on else "it regularises nothing"
        return f"{method.name} drops nothing in attention: {what}."
    others = ", ".join(sorted({part.info.units for part in found.method.parts} - {MethodInfo.units}))
    return (
        f"{found.method.name} dropped no attention position in {found.patterns.batches} repeated steps on "
        f"{_rows(found)}{f'; it drops {others}' if others else ''}."
    )


def _text(found: RecordedDrops) -> list[str]:
    patterns = found.patterns
    overall = patterns.share("layer", ALL)
    share = "–" if overall is None else f"{overall.share:.1%} ({_interval(overall)})"
    lines = [
        f"{patterns.batches} repeated steps drop {share} of the attention positions{_where(patterns)}.",
        *([] if found.acted else ["The run was too short: the method was active in none of its epochs."]),
        "",
        "By layer:",
        *_table([(layer, patterns.share("layer", ALL, layer)) for layer in patterns.layers]),
        "",
    ]
    for grouping, heading in _HEADINGS.items():
        if groups := patterns.groups(grouping):
            lines += [f"{heading}:", *_table([(group, patterns.share(grouping, group)) for group in groups]), ""]
    return lines


def _where(patterns: DropPatterns) -> str:
    """Name the layers that the figures cover, if nothing is dropped in others."""
    active, others = patterns.active_layers, len(patterns.layers) - len(patterns.active_layers)
    return f" in {', '.join(active)}, and nothing in the other {others} layer{'s' * (others > 1)}" if others else ""


def _rows(found: RecordedDrops) -> str:
    what = found.source if found.source == "training rows" else f"rows of {found.source}"
    return counted_rows(found.rows, what, found.windows)


def _table(shares: list[tuple[str, Share | None]]) -> list[str]:
    rows = [["", "positions", "dropped", "95 % interval"]]
    for name, share in shares:
        if share is not None:
            rows.append([name, str(share.positions), f"{share.share:.1%}", _interval(share)])
    return aligned(rows, NAMES_LEFT)


def _interval(share: Share) -> str:
    return "unknown" if math.isnan(share.low) else f"{share.low:.1%} to {share.high:.1%}"


def _plain(share: Share | None) -> Any:
    return None if share is None else finite(asdict(share))
