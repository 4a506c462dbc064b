"""AttendOut: an attacker, a defender, and a generator that learns which attention to drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.errors import AttendropError
from attendrop.methods.attend_out.generator import GRANULARITIES, Generator
from attendrop.methods.attend_out.state import AttendOutState
from attendrop.methods.base import Method, MethodState
from attendrop.methods.common.citations import WU_2021
from attendrop.methods.compatibility import DECIDES_PASSES, EXCHANGES_WEIGHTS, SCORES_ROWS, SECOND_MODEL
from attendrop.methods.context import TrainingContext
from attendrop.methods.info import MethodInfo
from attendrop.methods.options import LAYERS, SWITCH, Range, choice, count, fraction, option, positive

__all__ = ["AttendOut", "Generator"]
VARIANTS = ("dropout", "pruning")
SCORED = ("reward_data", "train", "noisy_train")
TOGETHER = ("sample", "best", "attacker")


@dataclass(frozen=True)
class AttendOut(Method):
    """Attention dropout that is learnt by policy gradient.

    Two copies of the model train on the same batches: the defender with its own dropout only, the attacker also with
    what the generator drops from its attention scores. Every ``dropout_step`` optimizer steps both are scored, the
    generator is rewarded by how much better the attacker is, and the two become one again. The attacker is the model
    that is evaluated and saved.

    Takes about twice the memory and time of fine-tuning. Needs the model's optimizer, and data to score on, both of
    which :class:`attendrop.RegularizedTrainer` provides.

    Example:
        >>> with regularize(model, AttendOut(), optimizer=optimizer, reward_data=loader) as reg:
        ...     reg.loss(batch).backward()  # the defender's gradients are computed within
        ...     optimizer.step()  # the defender takes its step with the attacker
        ...     optimizer.zero_grad()
        ...     reg.step()  # every ``dropout_step`` steps: scores, rewards, one model again

    Args:
        variant: ``"dropout"`` (Wu et al. 2021) or ``"pruning"`` (the self-pruning version): decides ``scored`` and
            ``together`` where these are not given.
        scored: What both models are scored on. ``"reward_data"``: items drawn from it, one for each step; the dropout
            version. ``"train"``: the batches just trained on; the pruning version. ``"noisy_train"``: these with 15 %
            of their tokens masked.
        reward_data: ``"split"``: ``reward_fraction`` of the training rows, set aside for it. ``"eval"``: the
            development set, as in the paper; results on it are then no longer honest.
        reward_fraction: See ``reward_data``.
        reward_batch_size: Samples in an item. The paper has 1; 4 give steadier rewards.
        score: Of an item: ``"loss"``, its negative mean, or ``"metric"``, that of the task.
        reward: ``"difference"`` of the scores, or its ``"sign"``.
        together: How the two become one: ``"sample"``, the survivor drawn by softmax of the mean scores over
            ``temperature``; ``"best"``; ``"attacker"``, the pruning version.
        temperature: See ``together``.
        baseline_decay: Of the moving average of rewards that is subtracted from them.
        credit: ``"step"``: the ``t``-th action of a period is paired with the ``t``-th reward (Eq. 5). ``"return"``:
            each is paired with the mean reward of the period.
        granularity: What is dropped at once: a ``"score"``, the scores of a ``"head"``, or those of a ``"layer"``.
        generator_heads: Heads of the generator, a divisor of the model's; with ``granularity="head"``, 1 stands for as
            many as the model has.
        generator_feed_forward: Whether the generator has a feed-forward.
        dropout_step: Optimizer steps in a period, ``T``.
        init_drop_prob: The probability of dropping at which the generator starts.
        learn_bias: Whether the logit of that probability is trained.
        generator_learning_rate: Of the generator's AdamW.
        generator_schedule: ``"constant"``, or ``"linear"`` down to zero over the generator's updates.
        layers: Where to drop: see :func:`attendrop.attention.layers.select_layers`; of these the encoder's
            self-attention, or that of a decoder-only model.
        defender_device: A device for the defender, such as ``"cuda:1"``, so that both train at the same time;
            ``"next"`` is the first GPU that no process trains on, plus the number of this process. Empty: the same.

    Raises:
        AttendropError: An option is out of its range.

    Source: Wu, Zhao, Zhang (2021), two manuscripts. Points that they leave open: a dropped row attends equally to its
    valid keys; the baseline is read before the period's mean reward enters it; the actions' probabilities are
    recomputed when the generator learns; ``reward_data="split"`` and ``reward_batch_size=4`` are ours, and so are
    granularities, heads and feed-forward other than the papers' (which name them as outlook).
    """

    name: ClassVar[str] = "attendout"
    summary: ClassVar[str] = "learns, by policy gradient, which attention to drop"
    paper: ClassVar[str] = "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need"
    bibtex: ClassVar[str] = WU_2021

    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("scores",),
        forward="2 + generator + scoring",
        backward="2 + generator",
        state="a second model and its optimizer, the generator, a period of batches",
        tasks="all; encoder-decoder: the encoder's self-attention",
    )

    traits: ClassVar[Mapping[str, str]] = {
        DECIDES_PASSES: "",
        EXCHANGES_WEIGHTS: "",
        SECOND_MODEL: "",
        SCORES_ROWS: "scored=reward_data",
    }
    needs_loss_scale: ClassVar[bool] = True

    variant: str = option("dropout", choice(*VARIANTS))
    scored: str = option("", choice("", *SCORED))
    reward_data: str = option("split", choice("split", "eval"))
    reward_fraction: float = option(0.1, fraction())
    reward_batch_size: int = option(4, count())
    score: str = option("loss", choice("loss", "metric"))
    reward: str = option("difference", choice("difference", "sign"))
    together: str = option("", choice("", *TOGETHER))
    temperature: float = option(0.1, positive())
    baseline_decay: float = option(0.9, fraction(zero=True))
    credit: str = option("step", choice("step", "return"))
    granularity: str = option("score", choice(*GRANULARITIES))
    generator_heads: int = option(1, count())
    generator_feed_forward: bool = option(False, SWITCH)
    dropout_step: int = option(10, count())
    init_drop_prob: float = option(0.5, fraction())
    learn_bias: bool = option(False, SWITCH)
    generator_learning_rate: float = option(5e-5, positive())
    generator_schedule: str = option("constant", choice("constant", "linear"))
    layers: str | int | Sequence[int] = option("all", LAYERS)
    defender_device: str = option("", Range("a device (cuda:1), next, or ''", lambda _, value: _device(value)))

    def __post_init__(self) -> None:
        super().__post_init__()
        pruning = self.variant == "pruning"
        object.__setattr__(self, "scored", self.scored or ("train" if pruning else "reward_data"))
        object.__setattr__(self, "together", self.together or ("attacker" if pruning else "sample"))

    def has(self, trait: str) -> bool:
        return self.rewarded_on() is not None if trait == SCORES_ROWS else super().has(trait)

    def chosen(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        chosen, reached = (
            select_self_attention(attention_layers, self.layers),
            select_self_attention(attention_layers, "all"),
        )
        if chosen[0] not in reached:
            raise AttendropError(
                f"layers={self.layers!r}: the generator reads what the encoder reads, so it can drop in the "
                "encoder's self-attention alone."
            )
        return chosen

    def rewarded_on(self) -> str | None:
        return self.reward_data if self.scored == "reward_data" else None

    def reward_share(self) -> float:
        return self.reward_fraction

    def start(self, training: TrainingContext) -> MethodState:
        return AttendOutState(self, training)


def _device(name: object) -> object:
    """The name, if it is empty, ``"next"``, or what torch calls a device that computes; else raises AttendropError."""
    try:
        known = name in ("", "next") or torch.device(str(name)).type != "meta"
    except RuntimeError:
        known = False
    if not known:
        raise AttendropError(f"defender_device={name!r} is no device; use 'cuda:1', 'cpu', 'next', or '' for the same.")
    return name
