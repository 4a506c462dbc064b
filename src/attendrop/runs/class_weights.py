"""A loss in which rare classes count as much as common ones."""

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
    every class has the same share of the loss and the mean weight is 1. The sum over a batch is divided by the number
    of rows of the whole step, so that the gradient does not depend on how a step is cut into micro-batches.

    Args:
        labels: Those of the training rows, ``(rows,)``.
        num_classes: Classes of the task; one without rows has weight 0.
    """
    counts = torch.bincount(torch.tensor(labels), minlength=num_classes)
    weights = torch.where(counts > 0, len(labels) / (num_classes * counts.clamp(min=1)), 0.0)

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = functional.cross_entropy(logits, labels, weight=weights.to(logits), reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return loss


def run_loss(config: RunConfig, task: Task, labels: Sequence[int]) -> Callable[..., Tensor] | None:
    """Make the ``compute_loss_func`` of a run that trains on these labels; None: the model's own loss.

    Raises:
        AttendropError: Classes are to be weighted, and the labels are no classes.
    """
    if config.class_weights is None:
        return None
    if not task.head.has_class_weights:
        raise AttendropError(f"class-weights='balanced' is for classes; the labels are {task.head.labels_are}.")
    return balanced_loss(labels, task.head.num_classes)
