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


def summary(steps: Sequence[Mapping[str, Any]]) -> str:
    """Summarise how often the attacker survived, and the first and last drop probabilities."""
    survived = sum(step["attacker_survived"] for step in steps)
    first, last = (statistics.fmean(steps[i]["drop_probability"].values()) for i in (0, -1))
    return (
        f"attacker survived {survived} of {len(steps)} periods; drop probability {first:.3f} at first, {last:.3f} last"
    )
