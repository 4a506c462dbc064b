"""Divergences between the predictions of several passes over the same rows, and losses of single rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.hooks import forked_rng
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import upcast
from attendrop.attribution.predictions import (
    CLASSES,
    IGNORED,
    LABELS,
    NUMBER,
    SPAN,
    TOKENS,
    aligned_labels,
    answer_logits,
    answer_positions,
    output_kind,
)
from attendrop.errors import AttendropError
from attendrop.methods.core.context import ComputeLoss, StepContext
from attendrop.support.models import Batch


def predictions(model: nn.Module, outputs: Any, batch: Batch, copies: int = 1) -> tuple[str, list[Tensor]]:
    """Return the kind of each prediction, and the logits of each head, ``(copies, items, outputs)``.

    The kind is that of the outputs, or ``"classes"`` if each token is classified, or each end of an answer. An item is
    a row or, in token-level and sequence-to-sequence models, a labelled token. Copies of a row are adjacent.
    """

    def by_copy(values: Tensor) -> Tensor:
        return values.reshape(-1, copies, *values.shape[1:]).transpose(0, 1)

    kind = output_kind(model, outputs, batch)
    if kind == SPAN:
        return CLASSES, [by_copy(upcast(logits)) for logits in answer_logits(outputs, batch)]
    logits: Tensor | None = getattr(outputs, "logits", None)
    if kind is None or logits is None:
        raise AttendropError(
            f"{type(model).__name__} returns no logits of shape (batch, ...) or (batch, n, ...) here, so its "
            "predictions cannot be compared; use a method that compares none."
        )
    views = by_copy(upcast(logits))
    if kind != TOKENS:
        return kind, [views]
    labels = aligned_labels(model, logits, batch)
    if labels is None:
        raise AttendropError(
            "Predictions for tokens are compared at labelled tokens, and the batch has no labels; add them."
        )
    return CLASSES, [views[:, by_copy(labels)[0] != IGNORED]]


def divergence(kind: str, one: Tensor, other: Tensor) -> Tensor:
    """Symmetric divergence of two sets of predictions ``(..., outputs)``, ``(...)``; zero if they are equal.

    For classes, ``(KL(P || Q) + KL(Q || P)) / 2``; for labels, the sum of that over the labels' Bernoulli
    distributions; for numbers, the summed squared difference.
    """
    if kind == NUMBER:
        return (one - other).square().sum(-1)
    if kind == LABELS:
        return ((one.sigmoid() - other.sigmoid()) * (one - other)).sum(-1) / 2
    first, second = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2


def spread(kind: str, views: Tensor) -> Tensor:
    """Divergence of predictions ``(views, ..., outputs)`` from their mean over the views, ``(...)``.

    For classes, the mean of ``KL(P_i || mean P)``, which for two views is the Jensen-Shannon divergence; for labels,
    the sum of that over the labels' Bernoulli distributions; for numbers, the summed mean squared distance.
    """
    if kind == NUMBER:
        return (views - views.mean(0)).square().sum(-1).mean(0)
    if kind == LABELS:
        return spread(CLASSES, torch.stack([views, torch.zeros_like(views)], -1)).sum(-1)
    logs = functional.log_softmax(views, -1)
    middle = logs.logsumexp(0) - math.log(len(views))
    return (logs.exp() * (logs - middle)).sum(-1).mean(0)


def mean_divergence(model: nn.Module, one: Any, other: Any, batch: Batch) -> Tensor:
    """Mean ``KL(P || Q) + KL(Q || P)`` of the predictions of two passes over ``batch``, over rows or tokens.

    For labels, the sum of that over the labels' Bernoulli distributions; for numbers, the squared difference.
    """
    kind, first = predictions(model, one, batch)
    _, second = predictions(model, other, batch)
    values = [mean(divergence(kind, *heads)) for heads in zip(first, second, strict=True)]
    return torch.stack(values).mean() * (1 if kind == NUMBER else 2)


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
    """Run the views of a batch, and add their terms to its loss; return the loss, and the unchanged batch's outputs.

    ``clean`` are loss and outputs of the unchanged batch. Each view, given by its plan, samples its own dropout.
    ``gamma`` weighs the mean loss of the views, ``eta`` the mean :func:`spread` of the predictions of all passes, over
    rows or tokens.
    """
    loss, outputs = clean
    with forked_rng(context.model):
        views = [compute_loss(context.batch, plan) for plan in plans]
    loss = loss + gamma * torch.stack([loss for loss, _ in views]).mean()
    if eta:
        found = [predictions(context.model, each, context.batch) for each in (outputs, *(own for _, own in views))]
        heads = [torch.cat(each) for each in zip(*(own for _, own in found), strict=True)]
        divergence = torch.stack([mean(spread(found[0][0], head)) for head in heads]).mean()
        context.note("divergence", divergence)
        loss = loss + eta * divergence
    return loss, outputs


def row_losses(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's part of the mean loss of a batch, ``(rows,)``: their sum is the mean over rows or tokens.

    It is the loss of transformers, without label smoothing or class weights. Raises AttendropError if the outputs have
    no logits, or the batch has no labels.
    """
    means = [losses.sum(1) / labelled.sum().clamp(min=1) for losses, labelled in _items(model, outputs, batch)]
    return torch.stack(means).mean(0)


def row_shares(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's share of the items over which a batch's loss is a mean, ``(rows,)``; zero without labels."""
    shares = [labelled.sum(1) / labelled.sum().clamp(min=1) for _, labelled in _items(model, outputs, batch)]
    return torch.stack(shares).mean(0)


def _items(model: nn.Module, outputs: Any, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """List, for each mean that makes the loss, the losses of the items, and which are labelled: ``(rows, items)``."""
    kind = output_kind(model, outputs, batch)
    if kind == SPAN:
        return [
            _classes(upcast(logits), answer_positions(logits, batch[name])[:, None], logits.shape[1])
            for logits, name in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        ]
    logits, labels = getattr(outputs, "logits", None), batch.get("labels")
    if kind is None or logits is None or labels is None:
        missing = "logits" if kind is None or logits is None else "labels in the batch"
        raise AttendropError(f"The loss of single rows of {type(model).__name__} needs {missing}; use another method.")
    logits = upcast(logits)
    if kind == TOKENS:
        aligned = aligned_labels(model, logits, batch)
        assert aligned is not None
        return [_classes(logits, aligned, IGNORED)]
    if kind == CLASSES and not labels.is_floating_point():
        return [_classes(logits, labels.view(-1, 1), IGNORED)]
    if kind == CLASSES:  # labels are probabilities of the classes
        found = functional.cross_entropy(logits, labels.to(logits), reduction="none")[:, None]
    elif kind == LABELS:
        found = functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    else:
        found = (logits - labels.to(logits).view_as(logits)).square()
    return [(found.mean(-1, keepdim=True), torch.ones_like(found[:, :1], dtype=torch.bool))]


def _classes(logits: Tensor, labels: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Compute cross-entropy, 0 where a label is ignored; ``(rows, classes)`` or ``(rows, items, classes)``."""
    flat = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=ignored, reduction="none"
    )
    return flat.view_as(labels), labels != ignored
