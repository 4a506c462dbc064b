"""Options of AttendOut and their dependent defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

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
    optional,
    positive,
    unit_interval,
)

# Values of options that are empty or None: they depend on the learner and, for the papers' one, on the variant.
_EFFECTS = {
    "learner": "effects", "score_on": "reward_data", "dropout_step": 5, "reward_batch_size": 8,
    "reward_data": "rotating", "granularity": "layer", "init_drop_prob": 0.5,
}  # fmt: skip
_POLICY_GRADIENT = {
    "learner": "policy_gradient", "score_on": "reward_data", "dropout_step": 10, "reward_batch_size": 4,
    "reward_data": "split", "granularity": "score", "init_drop_prob": 0.5, "merge": "sample",
}  # fmt: skip
_PRUNING = {"score_on": "train", "merge": "attacker"}
# Options that the other learner does not have.
_OF_POLICY_GRADIENT = {
    "baseline_decay", "credit", "generator_heads", "generator_feed_forward", "learn_bias", "generator_learning_rate",
    "generator_schedule", "merge", "temperature", "init_drop_prob",
}  # fmt: skip
_OF_EFFECTS = {"explore"}


@dataclass(frozen=True)
class AttendOutOptions(Method):
    """Options, documented in :class:`attendrop.AttendOut`."""

    variant: str = option("dropout", choice("dropout", "pruning"))
    learner: str = option("", choice("", "policy_gradient", "effects"))
    score_on: str = option("", choice("", "reward_data", "train", "noisy_train"))
    reward_data: str = option("", choice("", "split", "eval", "rotating"))
    reward_fraction: float = option(0.1, unit_interval())
    reward_batch_size: int = option(None, optional(count()))
    score: str = option("loss", choice("loss", "metric"))
    reward: str = option("difference", choice("difference", "sign"))
    merge: str = option("", choice("", "sample", "confidence", "best", "attacker"))
    temperature: float = option(0.1, positive())
    baseline_decay: float = option(0.9, unit_interval(zero=True))
    credit: str = option("step", choice("step", "return"))
    granularity: str = option("", choice("", "score", "head", "layer"))
    generator_heads: int = option(1, count())
    generator_feed_forward: bool = option(False, SWITCH)
    dropout_step: int = option(None, optional(count()))
    init_drop_prob: float = option(None, optional(unit_interval()))
    learn_bias: bool = option(False, SWITCH)
    generator_learning_rate: float = option(5e-5, positive())
    generator_schedule: str = option("constant", choice("constant", "linear"))
    explore: float = option(0.75, unit_interval(one=True))
    layers: str | int | Sequence[int] = option("all", LAYERS)
    defender_device: str = option("", Range("a device (cuda:1), next, or ''", lambda _, value: _device(value)))

    def __post_init__(self) -> None:
        super().__post_init__()
        pruning = self.variant == "pruning"
        by_effects = self.learner == "effects" or not (self.learner or pruning)
        defaults = _EFFECTS if by_effects else _POLICY_GRADIENT | (_PRUNING if pruning else {})
        for name, default in defaults.items():
            if getattr(self, name) in ("", None):
                object.__setattr__(self, name, default)
        for field in fields(self):
            value = getattr(self, field.name)
            default = (_EFFECTS if by_effects else _POLICY_GRADIENT).get(field.name, field.default)
            if field.name in (_OF_POLICY_GRADIENT if by_effects else _OF_EFFECTS) and value != default:
                raise AttendropError(
                    f"{field.name}={value!r} does not apply to learner={self.learner!r}; leave the option out, or use "
                    "the other learner."
                )
        if self.learner == "effects" and (self.granularity, self.score_on) != ("layer", "reward_data"):
            raise AttendropError(
                f"learner='effects' drops whole layers, and scores on rows that it does not train on, not "
                f"granularity={self.granularity!r} and score_on={self.score_on!r}; leave the options out, or use "
                "learner='policy_gradient'."
            )
        if self.learner == "policy_gradient" and self.reward_data == "rotating":
            raise AttendropError("reward_data='rotating' is an option of learner='effects'; use 'split' or 'eval'.")

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        chosen = super().selected_layers(attention_layers)
        if chosen[0] not in select_self_attention(attention_layers, "all"):
            raise AttendropError(
                f"layers={self.layers!r}: the generator reads the encoder's inputs and can only drop in the encoder's "
                "self-attention; choose layers of the encoder."
            )
        return chosen

    @property
    def needs_rows(self) -> bool:
        return self.rewarded_on() == "rotating"


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
