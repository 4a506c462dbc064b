"""Dropout of attention scores or weights: of contiguous spans, of columns, and to raise the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    REPLACES_DROPOUT,
    AttentionCall,
    AttentionEdit,
    ComputeLoss,
    DroppedScores,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    choice,
    count,
    floor_fraction,
    forked_rng,
    loss_gradients,
    option,
    positive,
    sample_mask,
    uniform,
    unit_interval,
    upcast,
)


@dataclass(frozen=True)
class DropBlock(Method):
    """Dropout of contiguous blocks of attention scores.

    In each row, a block of ``b`` keys starts at each position where it fits with probability ``gamma = p / b * n / (n -
    b + 1)``, where ``n`` is the number of valid keys in the row and ``b`` is the minimum of ``block_size`` and ``n``.
    Blocks may overlap.

    Args:
        p: Approximate fraction of dropped positions, in (0, 1): exactly ``gamma * b * (n - b + 1) / n``, minus the
            overlap of blocks.
        block_size: Number of keys in a block.
        block_rows: Number of queries in a block. Taller blocks are cut off at the first and last query, so that the
            dropped fraction is the same there as elsewhere.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Ghiasi, Lin, Le (2018), https://arxiv.org/abs/1810.12890, Eq. 1 and Algorithm 1, for feature maps of
    convolutional networks; here the scores of a head take the place of a map. Deviations: blocks are spans of a row by
    default, not squares; softmax replaces their rescaling; ``p`` is constant, while they increase it linearly from 0;
    the defaults are ours (their 0.1 is for 7 x 7 positions).
    """

    info = MethodInfo(
        "dropblock",
        "drops contiguous spans of attention scores",
        "Ghiasi, Lin, Le (2018), DropBlock: A Regularization Method for Convolutional Networks",
        link="https://arxiv.org/abs/1810.12890",
        acts_on=("scores",),
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    block_size: int = option(4, count())
    block_rows: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, drops=self._drop)

    def _drop(self, plan: RandomMaskPlan, call: AttentionCall) -> DroppedScores:
        chances = begin_chances(call, self.p / self.block_rows, self.block_size)
        if self.block_rows == 1:
            return DroppedScores(spread(plan.sample(chances, call), self.block_size))
        batch, heads, queries, keys = call.shape
        shape = (batch, heads, queries + self.block_rows - 1, keys)
        names = [layer.key for layer in call.layers]
        sampled = uniform(plan.context.key, names, shape, plan.origins(call), call.device)
        starts = sampled[:, :, :queries] < chances
        for above in range(1, self.block_rows):  # each row has the blocks that start in it, and in the rows above
            starts |= sampled[:, :, above : above + queries] < chances
        return DroppedScores(spread(starts, self.block_size))


@dataclass(frozen=True)
class DropAttention(Method):
    """Dropout of attention weights with normalised rescaling, in place of the model's own attention dropout.

    Some attention weights of each head are set to zero, and each row is divided by its sum, through which no gradient
    flows. A row that is left without any weight attends equally to its valid keys.

    Args:
        p: Approximate fraction of dropped weights, in (0, 1), see :class:`attendrop_methods.DropBlock`.
        unit: ``"column"``, a key for all queries, or ``"element"``, a single weight.
        window: Number of neighbouring columns, or elements of a row, that are dropped together, 1 or more.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Lin et al. (2019), https://arxiv.org/abs/1907.11065, section 3: DropAttention(c) and DropAttention(e), and
    the normalised rescaling. The defaults are ours. A window starts at each position with the probability of DropBlock.
    The paper does not say what happens to a row dropped as a whole. A column is dropped in one head of one sequence.
    """

    info = MethodInfo(
        "dropattention",
        "drops elements or columns of the attention weights, and normalises the rest",
        "Lin et al. (2019), DropAttention: A Regularization Method for Fully-Connected Self-Attention Networks",
        link="https://arxiv.org/abs/1907.11065",
        acts_on=("weights",),
        traits={REPLACES_DROPOUT: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("column", choice("column", "element"), search=("column", "element"))
    window: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._renormalise)

    def _drop_mask(self, plan: RandomMaskPlan, call: AttentionCall) -> Tensor:
        shape, origins, batch = call.shape, plan.origins(call), call.shape[0]
        if self.unit == "column":
            valid = None if call.valid is None else call.valid.any(-2, keepdim=True)
            call = replace(call, valid=valid)
            shape = (batch, shape[1], 1, shape[3])
            origins = None if origins is None else origins * torch.tensor([0, 1], device=call.device)
        chances = begin_chances(call, self.p, self.window)
        return spread(sample_mask(chances, plan.context.key, call.layer.key, shape, origins, call.device), self.window)

    def _renormalise(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
        kept = valid & ~self._drop_mask(plan, call)
        plan.report(call, ~kept)
        number = valid.expand(call.shape).sum(-1, keepdim=True).clamp(min=1)

        def renormalised(weights: Tensor) -> Tensor:
            largest = torch.finfo(weights.dtype).max
            rest = upcast(weights).masked_fill(~kept, 0)
            if rest.requires_grad:  # a gradient divided by a small sum may overflow; that of the scores is small again
                rest.register_hook(lambda gradient: gradient.clamp(-largest, largest))  # type: ignore[no-untyped-call]
            total = rest.detach().sum(-1, keepdim=True)
            lost = total == 0
            equal = valid.to(rest.dtype) / number
            return torch.where(lost, equal, rest / total.masked_fill(lost, 1)).to(weights.dtype)

        return AttentionEdit(weights=renormalised, dropout=0.0)


def begin_chances(call: AttentionCall, p: float, size: int) -> Tensor:
    """Compute the probability that a block starts at a position, broadcastable to ``call.shape``; 0 if none fits.

    Blocks of ``size`` keys, or all valid ones if there are fewer, are to cover the fraction ``p`` of the positions.
    """
    keys = call.shape[3]
    valid = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
    count = valid.sum(-1, keepdim=True)
    length = count.clamp(min=1, max=size)
    gamma = p / length * count / (count - length + 1).clamp(min=1)
    # Counting valid keys only, a block fits if at least ``length`` keys remain.
    fits = valid & (valid.cumsum(-1) <= count - length + 1)
    return gamma * fits


def spread(seeds: Tensor, size: int) -> Tensor:
    """Extend each True to the ``size - 1`` positions to its right."""
    width = 1
    while width < min(size, seeds.shape[-1]):
        step = min(width, size - width)
        wider = seeds.clone()
        wider[..., step:] |= seeds[..., :-step]
        seeds, width = wider, width + step
    return seeds


@dataclass(frozen=True)
class AdversarialDropout(Method):
    """Dropout of attention weights, and dropout that is changed to raise the loss.

    The batch runs with dropout of attention weights, in place of the model's own: each is kept with probability ``1 -
    p`` and divided by it. The gradient of the loss with respect to the mask of zeros and ones shows which changes raise
    the loss: dropping a weight whose gradient is negative, keeping a dropped one whose gradient is positive. In each
    layer and sequence, those with the largest gradients are changed, at most the fraction ``delta`` of the positions
    that the loss depends on (if a model classifies by the first token, only that token's row in the last layer). The
    batch runs again with the changed mask. The loss is that of the first pass plus ``weight`` times that of the second.
    Two forward and three backward passes per step, one of them without parameter gradients.

    Args:
        p: Probability that a weight is dropped at random, in (0, 1).
        delta: Maximum fraction to change of the valid positions of a layer and sequence that the loss depends on, in
            (0, 1).
        weight: Weight of the loss with the changed mask (the paper's lambda), above 0.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Park et al. (2018), https://arxiv.org/abs/1707.03631, the supervised form (SAdD) and its greedy algorithm.
    There, the hidden units of one layer are dropped; here, the attention weights of all layers are, and all masks are
    changed by the gradients of one pass. All defaults are ours. Kept weights of the changed mask are divided by ``1 -
    p``, too; the authors' code divides by the fraction that is kept.
    """

    info = MethodInfo(
        "adversarial-dropout",
        "drops attention weights, also to raise the loss",
        "Park et al. (2018), Adversarial Dropout for Supervised and Semi-Supervised Learning",
        link="https://arxiv.org/abs/1707.03631",
        acts_on=("weights", "loss"),
        forward="2",
        backward="3, one without parameters",
        traits={REPLACES_DROPOUT: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    delta: float = option(0.05, unit_interval(), search=(0.02, 0.1))
    weight: float = option(1.0, positive(), search=(0.3,))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        masks: dict[str, Tensor] = {}
        valid: dict[str, Tensor] = {}

        def sampled(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            key, drop, rows = call.layer.key, plan.sample(self.p, call), call.valid_queries()
            plan.report(call, drop)
            every = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
            masks[key], valid[key] = (~drop).float().requires_grad_(), every if rows is None else every & rows
            return masked(masks[key], self.p)

        loss, outputs = compute_loss(context.batch, RandomMaskPlan(self, context, sampled))
        changed: dict[str, Tensor] = {}
        for key, gradient in loss_gradients(upcast(loss), masks, context.model).items():
            # Rows without a gradient are those that no later layer or head reads, and padding of a decoder's targets.
            read = valid[key] & (gradient != 0).any(-1, keepdim=True)
            changed[key] = flipped(masks[key], gradient, read, self.delta)
        plan = RandomMaskPlan(self, context, lambda _, call: masked(changed[call.layer.key], self.p), changed)
        with forked_rng(context.model):
            adversarial, _ = compute_loss(context.batch, plan)
        context.note("raised", adversarial.detach() - loss.detach())
        return loss + self.weight * adversarial, outputs


def masked(mask: Tensor, p: float) -> AttentionEdit:
    """Return the edit that multiplies attention weights by a mask, divided by ``1 - p``."""
    return AttentionEdit(weights=lambda weights: weights * (mask / (1 - p)).to(weights.dtype), dropout=0.0)


def flipped(mask: Tensor, gradient: Tensor, valid: Tensor, delta: float) -> Tensor:
    """Change the elements of a mask that raise the loss most: of ``n`` valid ones at most ``delta n``, rounded down.

    The mask of zeros and ones and the loss's gradient with respect to it are ``(batch, heads, query, key)``.
    """
    valid = valid.expand(mask.shape)
    gains = torch.where(mask.detach() > 0, -gradient, gradient).masked_fill(~valid, 0).clamp(min=0).flatten(1)
    length = floor_fraction(valid.flatten(1).sum(-1, keepdim=True), delta)
    order = gains.argsort(dim=-1, stable=True, descending=True)
    first = torch.arange(gains.shape[1], device=gains.device) < length
    chosen = torch.zeros_like(first.expand(gains.shape)).scatter(-1, order, first.expand(gains.shape)) & (gains > 0)
    return torch.where(chosen.view(mask.shape), 1 - mask.detach(), mask.detach())
