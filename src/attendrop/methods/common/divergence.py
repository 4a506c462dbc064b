"""Divergences between the predictions of several passes over the same rows, and losses that make them agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.isolation import forked_rng
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import wide
from attendrop.attribution.label_positions import aligned_labels
from attendrop.attribution.predictions import SPAN, TOKENS, answer_logits, kind_of, output_kind
from attendrop.errors import AttendropError
from attendrop.methods.core.context import ComputeLoss, StepContext
from attendrop.model_support.batches import Batch


def predictions(model: nn.Module, outputs: Any, batch: Batch, copies: int = 1) -> list[Tensor]:
    """Return the logits of the labelled items, in float32 or float64: ``(copies, items, outputs)`` for each head.

    An item is a row or, in token-level and sequence-to-sequence models, a labelled token. Answers to questions are
    compared where they can be. Of ``copies`` of each row in the batch, those of a row are adjacent.

    Raises:
        AttendropError: The outputs have no logits, or the labels of tokens are missing.
    """
    output = output_kind(model, outputs)
    if output == SPAN:
        return [_by_copy(wide(logits), copies) for logits in answer_logits(outputs, batch)]
    logits: Tensor | None = getattr(outputs, "logits", None)
    if output is None or logits is None:
        raise AttendropError(f"{type(model).__name__} returns no logits of shape (batch, ...) or (batch, n, ...).")
    views = _by_copy(wide(logits), copies)
    if output != TOKENS:
        return [views]
    labels = aligned_labels(model, logits, batch)
    if labels is None:
        raise AttendropError(
            "Predictions for tokens are compared at labelled tokens, and the batch has no labels; add them."
        )
    return [views[:, _by_copy(labels, copies)[0] != -100]]


def divergence(kind: str, one: Tensor, other: Tensor) -> Tensor:
    """Symmetric divergence of two sets of predictions ``(..., outputs)``, ``(...)``; zero if they are equal.

    For classes, ``(KL(P || Q) + KL(Q || P)) / 2``; for labels, the sum of that over the labels' Bernoulli
    distributions; for numbers, the summed squared difference.
    """
    match kind:
        case "classes":
            first, second = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
            return ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2
        case "labels":
            return ((one.sigmoid() - other.sigmoid()) * (one - other)).sum(-1) / 2
        case _:
            return (one - other).square().sum(-1)


def spread(kind: str, views: Tensor) -> Tensor:
    """Divergence of predictions ``(views, ..., outputs)`` from their mean over the views, ``(...)``.

    For classes, the mean of ``KL(P_i || mean P)``, which for two views is the Jensen-Shannon divergence; for labels,
    the sum of that over the labels' Bernoulli distributions; for numbers, the summed mean squared distance.
    """
    match kind:
        case "classes":
            logs = functional.log_softmax(views, -1)
            middle = logs.logsumexp(0) - math.log(len(views))
            return (logs.exp() * (logs - middle)).sum(-1).mean(0)
        case "labels":
            return spread("classes", torch.stack([views, torch.zeros_like(views)], -1)).sum(-1)
        case _:
            return (views - views.mean(0)).square().sum(-1).mean(0)


def mean_spread(model: nn.Module, outputs: Sequence[Any], batch: Batch) -> Tensor:
    """Mean :func:`spread` of the outputs of several passes over ``batch``, over rows or tokens."""
    found = zip(*(predictions(model, each, batch) for each in outputs), strict=True)
    heads = [torch.cat(head) for head in found]
    return torch.stack([mean(spread(kind_of(model, views), views)) for views in heads]).mean()


def mean_divergence(model: nn.Module, one: Any, other: Any, batch: Batch) -> Tensor:
    """Mean ``KL(P || Q) + KL(Q || P)`` of the predictions of two passes over ``batch``, over rows or tokens.

    For labels, the sum of that over the labels' Bernoulli distributions; for numbers, the squared difference.
    """
    found = []
    for first, second in zip(predictions(model, one, batch), predictions(model, other, batch), strict=True):
        kind = kind_of(model, first)
        values = divergence(kind, first, second)
        found.append(mean(values if kind == "number" else 2 * values))
    return torch.stack(found).mean()


def divergences(model: nn.Module, outputs: Any, batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the kind of each head, and the :func:`divergence` of the two adjacent copies of each row in ``batch``."""
    found = predictions(model, outputs, batch, 2)
    kinds = [kind_of(model, each) for each in found]
    return [(kind, divergence(kind, each[0], each[1]).flatten()) for kind, each in zip(kinds, found, strict=True)]


def mean(values: Tensor) -> Tensor:
    """Mean of the values; zero if there are none."""
    return values.sum() / max(values.numel(), 1)


def with_views(
    context: StepContext,
    compute_loss: ComputeLoss,
    clean: tuple[Tensor, Any],
    plans: Sequence[Plan],
    gamma: float,
    eta: float,
) -> tuple[Tensor, Any]:
    """Run the views of a batch, and add their terms to its loss. Returns it, and the outputs of the unchanged batch.

    ``clean`` are loss and outputs of the unchanged batch. Each view, given by its plan, samples its own dropout.
    ``gamma`` weighs the mean loss of the views, ``eta`` the :func:`mean_spread` of the predictions of all passes.
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


def _by_copy(values: Tensor, copies: int) -> Tensor:
    return values.reshape(-1, copies, *values.shape[1:]).transpose(0, 1)
