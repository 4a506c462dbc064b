"""Options of AttendOut, two of whose defaults depend on the variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attendrop.attention.layers import select_self_attention
from attendrop.extend import (
    LAYERS,
    SWITCH,
    AttendropError,
    AttentionLayer,
    Method,
    Range,
    choice,
    count,
    option,
    positive,
    unit_interval,
)

# Values of options that are empty, by variant.
_DEFAULTS = {
    "dropout": {"score_on": "reward_data", "merge": "sample"},
    "pruning": {"score_on": "train", "merge": "attacker"},
}


@dataclass(frozen=True)
class AttendOutOptions(Method):
    """Options, documented in :class:`attendrop.AttendOut`."""

    variant: str = option("dropout", choice("dropout", "pruning"))
    score_on: str = option("", choice("", "reward_data", "train", "noisy_train"))
    reward_data: str = option("split", choice("split", "eval"))
    reward_fraction: float = option(0.1, unit_interval())
    reward_batch_size: int = option(4, count())
    score: str = option("loss", choice("loss", "metric"))
    reward: str = option("difference", choice("difference", "sign"))
    merge: str = option("", choice("", "sample", "confidence", "best", "attacker"))
    temperature: float = option(0.1, positive())
    baseline_decay: float = option(0.9, unit_interval(zero=True))
    credit: str = option("step", choice("step", "return"))
    granularity: str = option("score", choice("score", "head", "layer"))
    generator_heads: int = option(1, count())
    generator_feed_forward: bool = option(False, SWITCH)
    dropout_step: int = option(10, count())
    init_drop_prob: float = option(0.5, unit_interval())
    learn_bias: bool = option(False, SWITCH)
    generator_learning_rate: float = option(5e-5, positive())
    generator_schedule: str = option("constant", choice("constant", "linear"))
    layers: str | int | Sequence[int] = option("all", LAYERS)
    defender_device: str = option("", Range("a device (cuda:1), next, or ''", lambda _, value: _device(value)))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in _DEFAULTS[self.variant].items():
            object.__setattr__(self, name, getattr(self, name) or default)

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        chosen = super().selected_layers(attention_layers)
        if chosen[0] not in select_self_attention(attention_layers, "all"):
            raise AttendropError(
                f"layers={self.layers!r}: the generator reads the encoder's inputs and can only drop in the encoder's "
                "self-attention; choose layers of the encoder."
            )
        return chosen


def _device(name: object) -> object:
    """Return the name if it is empty, ``"next"`` or a torch device other than ``"meta"``."""
    try:
        known = name in ("", "next") or torch.device(str(name)).type != "meta"
    except RuntimeError:
        known = False
    if not known:
        raise AttendropError(
            f"defender_device={name!r} is not a device; use 'cuda:1', 'cpu', 'next', or '' for the same."
        )
    return name
