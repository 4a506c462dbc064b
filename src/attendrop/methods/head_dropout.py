"""Dropout of attention heads, and of hidden units of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    choice,
    floor_fraction,
    head_importance,
    option,
    unit_interval,
)


@dataclass(frozen=True)
class DropHead(Method):
    """Dropout of whole attention heads.

    Each head of each layer is dropped with probability ``p``, independently for each sequence: its output is zero
    before the output projection. The outputs of the other heads are multiplied by ``heads / kept heads``. If all heads
    of a layer are dropped, its attention contributes nothing for that sequence.

    Example:
        >>> with regularize(model, DropHead(), total_steps=1000) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p_start: Probability at the start of training, in (0, 1).
        p_end: Probability at the end of training, in (0, 1).
        turn: Fraction of the planned optimizer steps at which the probability is 0, in (0, 1).
        schedule: ``"v"``: linear from ``p_start`` to 0 at ``turn``, and from there to ``p_end``. ``"constant"``:
            ``p_start`` throughout; ``p_end`` and ``turn`` are unused.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, in training, the schedule is ``"v"`` and the number of
            planned optimizer steps is unknown.

    Source: Zhou et al. (2020), https://arxiv.org/abs/2004.13342, section 3. Their V has its minimum at the end of the
    learning rate's warm-up: ``turn`` defaults to this library's default warm-up of 0.1; set it to yours. The default
    of 0.2 is ours, and so is that all heads of a layer may be dropped.
    """

    info = MethodInfo(
        "drophead",
        "drops whole attention heads at random, by a V-shaped schedule",
        "Zhou et al. (2020), Scheduled DropHead: A Regularization Method for Transformer Models",
        acts_on=("heads",),
        units="heads",
    )

    p_start: float = option(0.2, unit_interval(), search=(0.1, 0.4))
    p_end: float = option(0.2, unit_interval())
    turn: float = option(0.1, unit_interval())
    schedule: str = option("v", choice("v", "constant"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def probability_at(self, progress: float) -> float:
        """Return the probability of the schedule ``"v"`` at a ``progress`` in [0, 1]."""
        if progress < self.turn:
            return self.p_start * (1 - progress / self.turn)
        return self.p_end * (progress - self.turn) / (1 - self.turn)

    def plan(self, context: StepContext) -> Plan:
        p = self.p_start if self.schedule == "constant" else self.probability_at(context.planned_progress())

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            drop = plan.sample_heads(p, call)
            kept = (~drop).sum(1, keepdim=True).double()
            return plan.without_heads(call, drop, call.shape[1] / kept.clamp(min=1))

        return RandomMaskPlan(self, context, make)


@dataclass(frozen=True)
class HeadMask(Method):
    """Masking of a fixed fraction of the attention heads.

    Of the ``H`` heads of a layer, ``floor(fraction * H)`` are masked, at least one and at most ``H - 1``, independently
    for each sequence: their outputs are zero before the output projection. Nothing is rescaled.

    Example:
        >>> with regularize(model, HeadMask(fraction=0.25)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        fraction: Fraction of a layer's heads to mask, in (0, 1).
        select_by: ``"random"``: random heads. ``"importance"``: the most important heads, by ``|dL/dxi|``, where ``xi``
            = 1 is a gate that multiplies the output of a head, and ``L`` the model's own loss on the sequence; this
            takes one forward and one backward pass, without parameter gradients.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, with ``"importance"``, a batch has no labels.

    Source: Sun et al. (2020), https://arxiv.org/abs/2009.09672, which masks a fixed number of heads; the importance is
    that of Michel et al. (2019), https://arxiv.org/abs/1905.10650, without its mean over samples. The default of 1/8
    is one of the eight heads in a layer of the base Transformer. Selecting heads for each layer and sequence separately
    is ours, so that results do not depend on the split into micro-batches.
    """

    info = MethodInfo(
        "headmask",
        "masks a fixed number of attention heads, random or important ones",
        "Sun et al. (2020), Alleviating the Inequality of Attention Heads for Neural Machine Translation",
        acts_on=("heads",),
        forward="1 (by importance: 2)",
        backward="1 (by importance: 1 + activations)",
        units="heads",
    )

    fraction: float = option(0.125, unit_interval(), search=(0.25, 0.5))
    select_by: str = option("random", choice("random", "importance"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def count(self, heads: int) -> int:
        """Return the number of masked heads, given the number of heads."""
        return max(0, min(heads - 1, max(1, int(floor_fraction(torch.tensor(heads), self.fraction)))))

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        importance: dict[str, Tensor] = {}
        if self.select_by == "importance":
            importance = head_importance(context.adapter, context.batch, attention_layers)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            found = importance.get(call.layer.key)
            values = plan.uniform_heads(call) if found is None else found[..., None, None]
            ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            return plan.without_heads(call, ranks < self.count(call.shape[1]))

        return RandomMaskPlan(self, context, make, {layer.key for layer in attention_layers})


# -lambda * alpha, of the constants of the SELU: the limit of its value for large negative inputs.
SATURATED = -1.0507009873554805 * 1.6732632423543772


@dataclass(frozen=True)
class AlphaDropout(Method):
    """Alpha Dropout of the hidden units of the heads' outputs, before the output projection.

    Each unit of each token is set to ``alpha' = -1.7581`` with probability ``p``; then all units ``x`` become
    ``a x + b`` with ``a = (q + alpha'^2 q (1 - q))^(-1/2)``, ``b = -a (1 - q) alpha'`` and ``q = 1 - p``. This
    preserves mean 0 and variance 1.

    Example:
        >>> with regularize(model, AlphaDropout(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a unit is dropped, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Klambauer et al. (2017), https://arxiv.org/abs/1706.02515, section "New Dropout Technique", where 0.05 and
    0.1 are recommended. It was proposed for self-normalising networks, after SELUs; its use on attention follows a
    comparison in the AttendOut paper. The outputs of heads are not normalised, so that other means and variances are
    not exactly preserved. The model's own dropout stays enabled.
    """

    info = MethodInfo(
        "alpha-dropout",
        "sets hidden units of heads to the value at which SELUs saturate",
        "Klambauer et al. (2017), Self-Normalizing Neural Networks",
        acts_on=("heads",),
        units="hidden units",
        order=-1,  # before methods that drop heads: their outputs must be zero, not b
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._saturate)

    def _saturate(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        scale, shift = affine(self.p)
        return plan.without_units(
            call,
            partial(plan.sample_hidden, self.p, call),
            lambda hidden, drop: hidden.masked_fill(drop, SATURATED) * scale + shift,
        )


def affine(p: float) -> tuple[float, float]:
    """Return ``a`` and ``b``, which preserve mean 0 and variance 1 for drop probability ``p``."""
    q = 1 - p
    scale = (q + SATURATED**2 * q * (1 - q)) ** -0.5
    return scale, -scale * (1 - q) * SATURATED
