"""Losses of single rows: the parts of the mean loss of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attribution.finite_gradients import wide
from attendrop.attribution.label_positions import IGNORED, aligned_labels, answer_positions
from attendrop.attribution.predictions import CLASSES, LABELS, SPAN, TOKENS, output_kind
from attendrop.errors import AttendropError
from attendrop.support.models import Batch


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
            _classes(wide(logits), answer_positions(logits, batch[name])[:, None], logits.shape[1])
            for logits, name in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        ]
    logits, labels = getattr(outputs, "logits", None), batch.get("labels")
    if kind is None or logits is None or labels is None:
        missing = "logits" if kind is None or logits is None else "labels in the batch"
        raise AttendropError(f"The loss of single rows of {type(model).__name__} needs {missing}; use another method.")
    logits = wide(logits)
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
