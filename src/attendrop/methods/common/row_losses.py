"""Losses of single rows, and their shares in the mean loss, for methods that act row by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attribution.finite_gradients import wide
from attendrop.attribution.label_positions import IGNORED, aligned_labels
from attendrop.attribution.predictions import kind_of
from attendrop.batches import Batch, number_of_rows
from attendrop.errors import AttendropError


def row_losses(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's part of the mean loss of a batch, ``(rows,)``: their sum is the mean over rows or tokens.

    Cross-entropy, for several labels that of each label's Bernoulli distribution, for numbers the squared error; as the
    models of transformers compute it, without label smoothing or class weights.

    Args:
        model: The model.
        outputs: Outputs of the model, with logits.
        batch: Inputs of the model, with labels.

    Raises:
        AttendropError: The outputs have no logits, or the batch has no labels.
    """
    if hasattr(outputs, "start_logits"):
        places = ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        losses = [functional.cross_entropy(wide(logits), batch[name], reduction="none") for logits, name in places]
        return torch.stack(losses).mean(0) / len(losses[0])
    logits: Tensor | None = getattr(outputs, "logits", None)
    labels: Tensor | None = batch.get("labels")
    if logits is None or logits.ndim not in (2, 3) or labels is None:
        missing = "labels in the batch" if logits is not None and logits.ndim in (2, 3) else "logits"
        raise AttendropError(f"The loss of single rows of {type(model).__name__} needs {missing}; use another method.")
    logits = wide(logits)
    if logits.ndim == 3:
        aligned = aligned_labels(model, logits, batch)
        assert aligned is not None
        tokens = functional.cross_entropy(logits.transpose(1, 2), aligned, ignore_index=IGNORED, reduction="none")
        return tokens.sum(-1) / (aligned != IGNORED).sum().clamp(min=1)
    match kind_of(model, logits):
        case "labels":
            found = functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(-1)
        case "number":
            found = (logits - labels.to(logits).view_as(logits)).square().mean(-1)
        case _:
            found = functional.cross_entropy(logits, labels.view(-1), reduction="none")
    return found / len(found)


def row_shares(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's share of the items over which a batch's loss is a mean, ``(rows,)``.

    The shares of rows are equal, or, where tokens are labelled, in proportion to the labels; zero if there are none.

    Args:
        model: The model.
        outputs: Outputs of the model, with logits.
        batch: Inputs of the model, with labels.
    """
    logits: Tensor | None = getattr(outputs, "logits", None)
    if logits is None or logits.ndim < 3:
        rows = number_of_rows(batch)
        return torch.full((rows,), 1 / rows, device=next(model.parameters()).device)
    aligned = aligned_labels(model, logits, batch)
    assert aligned is not None
    counts = (aligned != IGNORED).sum(-1)
    return counts / counts.sum().clamp(min=1)
