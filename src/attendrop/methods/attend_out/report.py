"""Report of the periods of a run, for ``metrics.json`` and as a line of text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# Baseline and loss are logged by the policy gradient only.
_LOGGED = ("reward", "baseline", "generator_loss", "period_share")


def dropout_steps(log: Sequence[Mapping[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Collect the metrics logged at the end of each period.

    Args:
        log: Entries of the trainer's log.
        prefix: Prefix of the method's log keys.
    """
    layers = f"{prefix}drop_probability/"
    return [
        {
            "step": int(entry["step"]),
            **{name: entry[prefix + name] for name in _LOGGED if prefix + name in entry},
            "attacker_survived": bool(entry[f"{prefix}attacker_survived"]),
            "drop_probability": {k.removeprefix(layers): v for k, v in entry.items() if k.startswith(layers)},
        }
        for entry in log
        if "loss" not in entry and f"{prefix}attacker_survived" in entry
    ]


def summary_lines(steps: Sequence[Mapping[str, Any]], effects: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Summarise how often the attacker survived and what was learnt. Returns texts by caption.

    Args:
        steps: The periods, from :func:`dropout_steps`.
        effects: What ``learner="effects"`` reports of each layer; empty for the generator.
    """
    if not steps:
        return {}
    survived = f"attacker survived {sum(step['attacker_survived'] for step in steps)} of {len(steps)} periods"
    if effects:
        return {"merging": survived, "learnt": learnt(effects)}
    first, last = (statistics.fmean(steps[i]["drop_probability"].values()) for i in (0, -1))
    return {"generator": f"{survived}; drop probability {first:.3f} at first, {last:.3f} last"}


def learnt(effects: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which drop probabilities changed by more than noise would explain."""
    told = {key: found for key, found in effects.items() if found["told_from_noise"]}
    if not told:
        moved = max(abs(found["change"]) for found in effects.values())
        start = next(iter(effects.values()))["start"]
        return (
            f"drop probabilities moved by at most {moved:.2f} from {start:.2f}; none of {len(effects)} layers can be "
            f"told from noise (attention-layerdrop with p={start:g} drops as much, without learning, at less than half "
            "the cost)"
        )
    changes = [f"{key}: {found['start']:.2f} -> {found['probability']:.2f}" for key, found in told.items()]
    others = f"; the other {len(effects) - len(told)} cannot" if len(told) < len(effects) else ""
    return f"{', '.join(changes)}, told from noise{others}"
