"""Adversarial dropout: dropout of attention weights that is changed to raise the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.isolation import forked_rng
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of, wide
from attendrop.candidates import floor_fraction
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import DECIDES_PASSES, REPLACES_DROPOUT
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, option, positive, unit_interval


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

    name: ClassVar[str] = "adversarial-dropout"
    summary: ClassVar[str] = "drops attention weights also so as to raise the loss"
    paper: ClassVar[str] = "Park et al. (2018), Adversarial Dropout for Supervised and Semi-Supervised Learning"
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("weights", "loss"), forward="2", backward="3, one without parameters"
    )
    traits: ClassVar[Mapping[str, str]] = {DECIDES_PASSES: "", REPLACES_DROPOUT: ""}

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    delta: float = option(0.05, unit_interval(), search=(0.02, 0.1))
    weight: float = option(1.0, positive(), search=(0.3,))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _State(self)


class _State(MethodState):
    method: AdversarialDropout

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        method = self.method
        sampled = _Sampled(method, context)
        loss, outputs = compute_loss(context.batch, sampled)
        changed = _Changed(method, context, sampled.changed(wide(loss), method.delta))
        with forked_rng(context.model):
            adversarial, _ = compute_loss(context.batch, changed)
        context.note("raised", adversarial.detach() - loss.detach())
        return loss + method.weight * adversarial, outputs


class _Sampled(RandomMaskPlan):
    """Plan that drops weights at random, with masks whose gradients are computed.

    Attributes:
        masks: Masks of ones, and zeros at dropped weights, in float32, by the key of the layer.
        valid: Valid positions, broadcastable to the masks.
    """

    method: AdversarialDropout

    def __init__(self, method: AdversarialDropout, context: StepContext) -> None:
        super().__init__(method, context)
        self.masks: dict[str, Tensor] = {}
        self.valid: dict[str, Tensor] = {}

    def make(self, call: AttentionCall) -> AttentionEdit:
        key, drop = call.layer.key, self.sample(self.method.p, call)
        self.report(call, drop)
        mask = (~drop).float().requires_grad_()
        valid = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
        rows = call.valid_queries()
        self.masks[key], self.valid[key] = mask, valid if rows is None else valid & rows
        return masked(mask, self.method.p)

    def changed(self, loss: Tensor, delta: float) -> dict[str, Tensor]:
        """Change the masks to raise the loss."""
        keys, masks = list(self.masks), list(self.masks.values())

        def gradients(factor: float) -> dict[str, Tensor]:
            return gradients_of(loss * factor, keys, masks, keep_graph=True)

        found = finite_gradients(gradients, self.context.model)
        # Rows without a gradient are those that no later layer or head reads, and padding of a decoder's targets.
        read = {key: self.valid[key] & (found[key] != 0).any(-1, keepdim=True) for key in keys}
        return {key: flipped(self.masks[key], found[key], read[key], delta) for key in keys}


class _Changed(RandomMaskPlan):
    """Plan that applies the changed masks, by the key of the layer."""

    method: AdversarialDropout

    def __init__(self, method: AdversarialDropout, context: StepContext, masks: Mapping[str, Tensor]) -> None:
        super().__init__(method, context, masks.keys())
        self.masks = masks

    def make(self, call: AttentionCall) -> AttentionEdit:
        return masked(self.masks[call.layer.key], self.method.p)


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
