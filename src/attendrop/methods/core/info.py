"""What a method tells of itself: for the documentation, in published settings, and to prune with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MethodInfo:
    """What the table of methods in the documentation says of one.

    Attributes:
        acts_on: Of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward: Passes forward in a step, where plain fine-tuning takes one.
        backward: Passes backward.
        state: What it keeps from step to step.
        tasks: What it can train.
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
    """What a published setting says of a method.

    Attributes:
        training: Options of the run, such as ``max_length``, where they differ from the setting's usual ones.
        options: Options of the method.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRanking:
    """The order in which a method would prune layers.

    Attributes:
        ranked_by: Name of what decided, as it is reported.
        drop_fractions: By the key of a layer, the fraction of its units that is dropped; layers with the highest go
            first.
    """

    ranked_by: str
    drop_fractions: Mapping[str, float]
