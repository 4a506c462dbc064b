"""Static information about a method: its row in the documentation, published settings, layer rankings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

REFERENCES = Path(__file__).parents[1] / "references.bib"


@dataclass(frozen=True)
class MethodInfo:
    """A method's row in the table of the documentation.

    Attributes:
        acts_on: Some of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward: Forward passes per step; plain fine-tuning takes one.
        backward: Backward passes per step.
        state: State kept between steps.
        tasks: Supported tasks.
        units: The units whose dropped fraction is logged.
    """

    acts_on: tuple[str, ...] = ()
    forward: str = "1"
    backward: str = "1"
    state: str = "none"
    tasks: str = "all"
    units: str = "attention positions"


@dataclass(frozen=True)
class Preset:
    """Options of a method in a published setting.

    Attributes:
        training: Options of the run, such as ``max_length``, that differ from the setting's defaults.
        options: Options of the method.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRanking:
    """Ranking of layers for pruning.

    Attributes:
        ranked_by: Name of the criterion, for reports.
        drop_fractions: Fraction of dropped units, by layer key. Layers with the highest fractions are pruned first.
        told_from_noise: Whether the run shows that the fractions are not a result of chance; otherwise they are used on
            request only.
    """

    ranked_by: str
    drop_fractions: Mapping[str, float]
    told_from_noise: bool = True


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entry of each of the library's methods, by the method's name: ``references.bib``."""
    entries = re.findall(
        r"^(@.+?),\n  keywords  = \{(.+?)\}\n\}$", REFERENCES.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return {name: f"{entry}\n}}" for entry, names in entries for name in names.split(", ")}
