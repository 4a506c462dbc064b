"""Batches of model inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attendrop.errors import AttendropError


def refuse_graph(batch: Batch) -> None:
    """Raise AttendropError for a batch that cannot be kept: the graph behind it ends with the first backward pass."""
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise AttendropError(
                f"The batch's {name!r} requires a gradient, but the method takes the batch again after its backward "
                "pass; give the model what it is computed from (input_ids), or detach it."
            )


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def number_of_rows(batch: Batch) -> int:
    """Count the rows of a batch, by its first tensor; raises AttendropError if it holds none."""
    for value in batch.values():
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise AttendropError("The batch holds no tensors.")


Batch = Mapping[str, Any]
