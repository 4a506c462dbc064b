"""Loss of a batch and of changed views of it, whose predictions are to agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.isolation import forked_rng
from attendrop.attention.plan import Plan
from attendrop.methods.common.divergence import mean_spread
from attendrop.methods.core.context import ComputeLoss, StepContext


def with_views(
    context: StepContext,
    compute_loss: ComputeLoss,
    clean: tuple[Tensor, Any],
    plans: Sequence[Plan],
    gamma: float,
    eta: float,
) -> tuple[Tensor, Any]:
    """Run the views of a batch, and add their terms to its loss.

    Args:
        context: The micro-batch.
        compute_loss: Runs the model.
        clean: Loss and outputs of the unchanged batch.
        plans: The plan of each view; each view samples its own dropout.
        gamma: Weight of the mean loss of the views.
        eta: Weight of the :func:`mean_spread` of the predictions of all passes.

    Returns:
        The loss, and the outputs of the unchanged batch.
    """
    loss, outputs = clean
    with forked_rng(context.model):
        views = [compute_loss(context.batch, plan) for plan in plans]
    loss = loss + gamma * torch.stack([loss for loss, _ in views]).mean()
    if eta:
        divergence = mean_spread(context.model, [outputs, *(outputs for _, outputs in views)], context.batch)
        context.note("divergence", divergence)
        loss = loss + eta * divergence
    return loss, outputs
