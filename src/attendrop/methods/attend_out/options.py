"""Options of AttendOut and their dependent defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

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
from attendrop.methods.attend_out.generator import GRANULARITIES

VARIANTS = ("dropout", "pruning")

LEARNERS = ("policy_gradient", "effects")

SCORE_ON = ("reward_data", "train", "noisy_train")

MERGE = ("sample", "confidence", "best", "attacker")

# Defaults that depend on the learner.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "effects": {
        "init_drop_prob": 0.5,
        "score_on": "reward_data",
        "dropout_step": 5,
        "reward_batch_size": 16,
        "reward_data": "rotating",
        "granularity": "layer",
    },
    "policy_gradient": {
        "init_drop_prob": 0.5,
        "dropout_step": 10,
        "reward_batch_size": 4,
        "reward_data": "split",
        "merge": "sample",
        "granularity": "score",
    },
}

# Options of the papers' learner alone.
_OF_POLICY_GRADIENT = (
    "baseline_decay",
    "credit",
    "generator_heads",
    "generator_feed_forward",
    "learn_bias",
    "generator_learning_rate",
    "generator_schedule",
    "merge",
    "temperature",
    "init_drop_prob",
)


@dataclass(frozen=True)
class AttendOutOptions(Method):
    """Options, documented in :class:`attendrop.AttendOut`.

    Those that are empty or None by default are set when the object is created; they depend on ``variant`` and
    ``learner``.
    """

    variant: str = option("dropout", choice(*VARIANTS))
    learner: str = option("", choice("", *LEARNERS))
    score_on: str = option("", choice("", *SCORE_ON))
    reward_data: str = option("", choice("", "split", "eval", "rotating"))
    reward_fraction: float = option(0.1, unit_interval())
    reward_batch_size: int = option(None, optional(count()))
    score: str = option("loss", choice("loss", "metric"))
    reward: str = option("difference", choice("difference", "sign"))
    merge: str = option("", choice("", *MERGE))
    temperature: float = option(0.1, positive())
    baseline_decay: float = option(0.9, unit_interval(zero=True))
    credit: str = option("step", choice("step", "return"))
    granularity: str = option("", choice("", *GRANULARITIES))
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
        learner = self.learner or ("policy_gradient" if pruning else "effects")
        of_variant = {"score_on": "train", "merge": "attacker"} if pruning else {"score_on": "reward_data"}
        of_learner = _DEFAULTS[learner]
        defaults = of_learner if learner == "effects" else of_learner | of_variant
        for name, default in ({"learner": learner} | defaults).items():
            if getattr(self, name) in ("", None):
                object.__setattr__(self, name, default)
        self._check_learner()

    def _check_learner(self) -> None:
        """Refuse options that only the other learner has."""
        others = ("explore",) if self.learner == "policy_gradient" else _OF_POLICY_GRADIENT
        for field in fields(self):
            default = _DEFAULTS[self.learner].get(field.name, field.default)
            if field.name in others and getattr(self, field.name) != default:
                raise AttendropError(
                    f"{field.name}={getattr(self, field.name)!r} does not apply to learner={self.learner!r}; leave the "
                    "option out, or use the other learner."
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
    """Return the name if it is empty, ``"next"`` or a torch device other than ``"meta"``.

    Raises:
        AttendropError: It is neither.
    """
    try:
        known = name in ("", "next") or torch.device(str(name)).type != "meta"
    except RuntimeError:
        known = False
    if not known:
        raise AttendropError(
            f"defender_device={name!r} is not a device; use 'cuda:1', 'cpu', 'next', or '' for the same."
        )
    return name
