"""Adversarial dropout: dropout of attention weights that is changed to raise the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
    LAYERS,
    REPLACES_DROPOUT,
    AttentionCall,
    AttentionEdit,
    ComputeLoss,
    Method,
    MethodInfo,
    RandomMaskPlan,
    StepContext,
    floor_fraction,
    forked_rng,
    loss_gradients,
    option,
    positive,
    unit_interval,
    wide,
)


@dataclass(frozen=True)
class AdversarialDropout(Method):
    """Dropout of attention weights, and dropout that is changed to raise the loss.

    The batch runs with dropout of attention weights, in place of the model's own: each is kept with probability
    ``1 - p`` and divided by it. The gradient of the loss by the mask ``m`` of zeros and ones tells which changes raise
    the loss: dropping a weight whose gradient is negative, keeping a dropped one whose gradient is positive. In each
    layer and sequence, those with the largest gradients are changed, at most the fraction ``delta`` of the positions
    that the loss depends on: of a model that classifies by the first token, only that token's row in the last layer.
    The batch runs again with the changed mask. The loss is that of the first pass plus ``weight`` times that of the
    second. Two forward and three backward passes per step, of which one does not compute gradients of parameters.

    Example:
        >>> with regularize(model, AdversarialDropout(p=0.1, delta=0.05)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a weight is dropped at random, in (0, 1).
        delta: Maximum fraction to change of the valid positions of a layer and sequence that the loss depends on, in
            (0, 1).
        weight: Weight of the loss with the changed mask (the paper's lambda), above 0.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Park et al. (2018), https://arxiv.org/abs/1707.03631, the supervised form (SAdD) and its greedy algorithm.
    There, the hidden units of one layer are dropped; here, the attention weights of all layers are, and all masks are
    changed by the gradients of one pass. All defaults are ours. Kept weights of the changed mask are divided by
    ``1 - p``, too; the authors' code divides by the fraction that is kept. Their virtual form (VAdD), which compares
    predictions and serves rows without labels, is not included.
    """

    info = MethodInfo(
        "adversarial-dropout",
        "drops attention weights also so as to raise the loss",
        "Park et al. (2018), Adversarial Dropout for Supervised and Semi-Supervised Learning",
        acts_on=("weights", "loss"),
        forward="2",
        backward="3, one without parameters",
        traits={DECIDES_PASSES: "", REPLACES_DROPOUT: ""},
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
        for key, gradient in loss_gradients(wide(loss), masks, context.model).items():
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

    Args:
        mask: Zeros and ones, ``(batch, heads, query, key)``.
        gradient: Gradient of the loss by the mask, of the same shape.
        valid: Valid positions, broadcastable to the mask.
        delta: Maximum fraction to change.
    """
    valid = valid.expand(mask.shape)
    gains = torch.where(mask.detach() > 0, -gradient, gradient).masked_fill(~valid, 0).clamp(min=0).flatten(1)
    length = floor_fraction(valid.flatten(1).sum(-1, keepdim=True), delta)
    order = gains.argsort(dim=-1, stable=True, descending=True)
    first = torch.arange(gains.shape[1], device=gains.device) < length
    chosen = torch.zeros_like(first.expand(gains.shape)).scatter(-1, order, first.expand(gains.shape)) & (gains > 0)
    return torch.where(chosen.view(mask.shape), 1 - mask.detach(), mask.detach())
