"""Loss with balanced class weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.tasks.base import Task


def balanced_loss(labels: Sequence[int], num_classes: int) -> Callable[..., Tensor]:
    """Make a ``compute_loss_func`` for the trainer: cross-entropy, each row weighted by its class.

    A class of ``count`` rows among ``n`` has weight ``n / (num_classes * count)``, scikit-learn's "balanced", so that
    every class has the same total weight and the mean weight is 1. The sum over a batch is divided by the number
    of rows of the whole step, so that the gradient does not depend on how a step is split into micro-batches.

    Args:
        labels: Labels of the training rows, ``(rows,)``.
        num_classes: Number of classes; a class without rows has weight 0.
    """
    counts = torch.bincount(torch.tensor(labels), minlength=num_classes)
    weights = torch.where(counts > 0, len(labels) / (num_classes * counts.clamp(min=1)), 0.0)

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = functional.cross_entropy(logits, labels, weight=weights.to(logits), reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return loss


def run_loss(config: RunConfig, task: Task, labels: Sequence[int]) -> Callable[..., Tensor] | None:
    """Make the ``compute_loss_func`` of a run; None for the model's own loss.

    Raises:
        AttendropError: Class weights are requested, but the labels are not classes.
    """
    if config.class_weights is None:
        return None
    if not task.head.has_class_weights:
        raise AttendropError(f"class-weights='balanced' needs classes; the labels are {task.head.labels_are}.")
    return balanced_loss(labels, task.head.num_classes)
