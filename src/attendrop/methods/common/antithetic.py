"""Gradients of drop probabilities from a pass and its antithetic pass (ARM; Yin and Zhou, 2019)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.isolation import forked_rng
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.common.real_queries import real_queries
from attendrop.methods.common.row_losses import row_losses
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import ComputeLoss, StepContext


class AntitheticPlan(RandomMaskPlan):
    """Plan that drops attention weights by ``u < p`` or, in the antithetic pass, by ``1 - u < p``.

    Weights that are kept are divided by ``1 - p``, through which a gradient reaches the log-odds of ``p``.

    Args:
        method: The method.
        context: The micro-batch.
        keys: Keys of the layers to act on.
        antithetic: Whether this is the antithetic pass.

    Attributes:
        scores: ``1 - 2 v`` summed over the valid keys of a query, ``(batch, heads, query)``, by the key of the layer,
            where ``v`` is ``u`` or ``1 - u``. Times the loss of the sequence, it is an unbiased estimate of the
            gradient of the expected loss by the log-odds at the query; 0 at padding.
        queries: Queries that are not padding, ``(batch, query)``, by the key of the layer.
    """

    def __init__(self, method: Method, context: StepContext, keys: Collection[str], *, antithetic: bool) -> None:
        super().__init__(method, context, keys)
        self.antithetic = antithetic
        self.scores: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}

    def log_odds(self, key: str) -> Tensor:
        """Return the log-odds of dropping in a layer, ``(batch, heads, query or 1)`` or a scalar."""
        raise NotImplementedError

    def candidate_rows(self, call: AttentionCall) -> Tensor:
        return real_queries(call, self.context.batch)

    def make(self, call: AttentionCall) -> AttentionEdit:
        key, sampled = call.layer.key, self.uniform(call)
        if self.antithetic:
            sampled = 1 - sampled
        real = self.candidate_rows(call)
        self.queries[key] = real[:, 0, :, 0]
        counted = real if call.valid is None else real & call.valid
        self.scores[key] = ((1 - 2 * sampled) * counted).sum(3)
        reported = False

        def dropped(weights: Tensor) -> Tensor:
            nonlocal reported
            log_odds = self.log_odds(key)
            log_odds = log_odds[..., None] if log_odds.ndim else log_odds
            drop = sampled < torch.sigmoid(log_odds.detach())
            if not (reported or self.antithetic):
                self.report(call, drop)
                reported = True
            return (weights / torch.sigmoid(-log_odds).to(weights.dtype)).masked_fill(drop, 0)

        return AttentionEdit(weights=dropped)


def with_antithetic_pass(
    context: StepContext, compute_loss: ComputeLoss, make_plan: Callable[[bool], AntitheticPlan]
) -> tuple[Tensor, Any, AntitheticPlan]:
    """Run a batch with a plan's dropout, and attach the gradient of the log-odds to its loss.

    The antithetic pass comes first, without gradients, and with the same sample of the model's own dropout.

    Args:
        context: The micro-batch.
        compute_loss: Runs the model.
        make_plan: Makes the plan of the antithetic pass (True), and that of the training pass (False).

    Returns:
        The loss, the outputs of the model, and the plan of the training pass.
    """
    other = make_plan(True)
    with forked_rng(context.model), torch.no_grad():
        _, outputs = compute_loss(context.batch, other)
        losses = [row_losses(context.model, outputs, context.batch)]
    plan = make_plan(False)
    loss, outputs = compute_loss(context.batch, plan)
    losses.append(row_losses(context.model, outputs, context.batch).detach())
    estimate = torch.zeros((), device=loss.device)
    for each, found in zip((other, plan), losses, strict=True):
        for key, score in each.scores.items():
            of_sequence = found.repeat_interleave(len(score) // len(found))  # several choices are one row
            estimate = estimate + (score * of_sequence[:, None, None] * each.log_odds(key)).sum() / 2
    return loss + (estimate - estimate.detach()).to(loss.dtype), outputs, plan
