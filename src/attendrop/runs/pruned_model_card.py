"""Model card of a pruned model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attendrop.tasks.heads.base import Head


def pruned_card(metrics: Mapping[str, Any], head: Head) -> str:
    """Write the card: what was pruned and how it was chosen, what it cost, and how to load the model.

    Args:
        metrics: The content of the folder's ``metrics.json``.
        head: Head of the model.
    """
    pruned, metric = metrics["pruned"], metrics["metric"]
    selection = [("selection", pruned["selection"])] if pruned["selection"] else []
    rows = [*selection, *pruned["all_scores"].items()]
    scores = "\n".join(
        f"| {name}: {metric} | {both['before'][metric]:.4f} | {both['after'][metric]:.4f} | {interval(both)} |"
        for name, both in rows
    )
    title = f"{Path(metrics['model']).name}, {metrics['task']}"
    unknown = f"\n\nWhat is not known: {pruned['unknown']}" if pruned["unknown"] else ""
    constant = f"Layers {json.dumps(pruned['layers'])} attend equally to all tokens."
    on = f"{pruned['rows']} rows of `{pruned['chosen_on']}`"
    chosen = f"ranked by {pruned['ranked_by']}, and chosen on {on}" if pruned["chosen"] else "not chosen by scores"
    return f"""---
library_name: attendrop
pipeline_tag: {head.pipeline_tag}
tags:
- attendrop
- pruned
---

# {title}, without attention in {len(pruned["layers"])} of {pruned["of"]} layers

{constant if pruned["layers"] else "No layer was pruned."} The model was trained with `{metrics["method"]}`.
Layers were {chosen}.{unknown}

| | before | after | difference, 95 % interval |
|---|---|---|---|
{scores}
| parameters | {pruned["parameters"]["before"]:,} | {pruned["parameters"]["after"]:,} | |
{_speed(pruned["speed"])}
```python
{head.loading(stock=False)}
```
"""


def _speed(speed: Mapping[str, Any] | None) -> str:
    if speed is None:
        return ""
    spread = f"({speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds)"
    return f"\nMeasured speed where it was pruned: {speed['median']:.2f} times that of the whole model {spread}.\n"


def interval(both: Mapping[str, Any]) -> str:
    """Format the 95 % interval of a difference between two scores; empty if nothing was changed."""
    if both["difference"] is None:
        return ""
    low, high = both["difference"]["low"], both["difference"]["high"]
    return "too few rows to tell" if low is None else f"{low:+.4f} to {high:+.4f}"
