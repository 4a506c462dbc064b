"""The text that `attendrop prune` and `attendrop export` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.cli.console import lines_of, size
from attendrop.pruning.selection import IMPORTANCE
from attendrop.runs.model_card import interval
from attendrop.wording import counted


def prune_summary(metrics: Mapping[str, Any]) -> str:
    """Summarise what was pruned, by which ranking; scores, size and speed before and after."""
    pruned, metric = metrics["pruned"], metrics["metric"]
    name = metric.replace("_", " ")
    lines = {
        "constant attention": f"{len(pruned['layers'])} of {pruned['of']} layers" + _listed(pruned["layers"]),
        "ranked by": _ranking(pruned),
    }
    lines |= _trials(pruned, name)
    if pruned["recover_epochs"]:
        lines["recovered"] = f"fine-tuned for {counted(pruned['recover_epochs'], 'more epoch')}"
    sets = ({"selection": pruned["selection"]} if pruned["selection"] else {}) | pruned["all_scores"]
    lines |= {f"{part} score": f"{name} {_change(both, metric)}" for part, both in sets.items()}
    lines["parameters"] = _before_after(*(f"{pruned['parameters'][when]:,}" for when in ("before", "after")))
    lines["weights on disk"] = _before_after(*(size(pruned["bytes"][when]) for when in ("before", "after")))
    if pruned["speed"]:
        lines["speed"] = _speed(pruned, metrics["device"])
    if pruned["chosen"] and pruned["chosen_on"] == "dev":
        lines["protocol"] = "layers were chosen on dev, so the dev score is optimistic"
    lines["model"] = metrics["output_dir"]
    return f"{metrics['model']} on {metrics['task']} with {metrics['method']}, pruned\n{lines_of(lines)}"


def _trials(pruned: Mapping[str, Any], metric: str) -> dict[str, str]:
    """List the trials of ``auto``, and what the rows cannot decide."""
    if not pruned["scores"]:
        return {}
    rows = f"{metric} on {pruned['rows']} rows of {pruned['chosen_on']}"
    lines = {"tried": f"{rows}; differences, 95 % intervals for all at once"}
    for count, score in pruned["scores"].items():
        found = pruned["differences"].get(count)
        change = "" if found is None else f"  {found['value']:+.4f}  ({interval({'difference': found})})"
        lines[f"  {counted(int(count), 'layer')}"] = f"{score:.4f}{change}"
    return lines | ({"not known": pruned["unknown"]} if pruned["unknown"] else {})


def _speed(pruned: Mapping[str, Any], device: str) -> str:
    speed = pruned["speed"]
    spread = f"{speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds"
    rows = f"{speed['rows']} rows of {pruned['chosen_on']}, {speed['batch_size']} at a time"
    form = "" if pruned["fast"] else "; this family has no fast form here"
    return f"{speed['median']:.2f} times as fast on {device} ({spread}; {rows}){form}"


def export_summary(found: Mapping[str, Any]) -> str:
    """Summarize the written file, its difference from the model, and the loss of eight-bit weights."""
    wrote = f"Wrote {found['output']}, {size(found['bytes'])}."
    if "difference" in found:
        wrote += f" On example inputs its logits are within {found['difference']:.1e} of the model's."
    loss = found.get("loss")
    if loss is None:
        return wrote
    scores = f"{loss['metric'].replace('_', ' ')} {loss['before']:.4f} -> {loss['after']:.4f}"
    return f"{wrote}\nint8: {scores} on {loss['rows']} rows of {loss['set']} ({_interval_of(loss)})."


def _listed(layers: list[int]) -> str:
    return f": {', '.join(map(str, layers))}" if layers else ""


def _ranking(pruned: Mapping[str, Any]) -> str:
    values = "  ".join(f"{key.split('.')[1]}: {value:.3f}" for key, value in pruned["harm"].items())
    if pruned["ranked_by"] == IMPORTANCE:
        return f"loss with this layer constant  {values}"
    return f"fraction that the {pruned['ranked_by']} drops  {values}"


def _change(both: Mapping[str, Mapping[str, float]], metric: str) -> str:
    before, after = (f"{both[when][metric]:.4f}" for when in ("before", "after"))
    return f"{before} -> {after}  ({_interval_of(both)})" if both["difference"] else before


def _before_after(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _interval_of(both: Mapping[str, Any]) -> str:
    return f"95 % interval of the difference: {interval(both)}"
