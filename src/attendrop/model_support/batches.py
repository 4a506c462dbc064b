"""Batches of model inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from attendrop.errors import AttendropError

Batch = Mapping[str, Any]
# Column of question answering that models do not read, ``(batch, n)``: 1 at the tokens that can be part of an answer,
# and at the one that stands for none, if there may be none.
ANSWER_MASK = "answer_mask"
# Column with the index of each row in the training data, ``(batch,)``, which models do not read.
ROW_INDEX = "row_index"
# Columns with one entry for each row; others may serve all rows, such as positions that are given once, ``(1, n)``.
_BY_ROW = ("input_ids", "inputs_embeds", "labels")


def model_inputs(batch: Batch) -> dict[str, Any]:
    """Copy a batch without the columns that models do not read."""
    return {name: value for name, value in batch.items() if name not in (ANSWER_MASK, ROW_INDEX)}


def refuse_graph(batch: Batch) -> None:
    """Raise AttendropError for a batch with an autograd graph, which is freed by the first backward pass."""
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise AttendropError(
                f"The batch's {name!r} requires a gradient, but the method uses the batch again after its backward "
                "pass; pass the model its source (input_ids), or detach it."
            )


def refuse_cache(batch: Batch) -> None:
    """Raise AttendropError for a batch with a cache of keys and values, which each pass of the model extends."""
    for name, value in batch.items():
        if isinstance(value, Cache):
            raise AttendropError(
                f"The batch's {name!r} is a cache, which each pass of the model extends, but the method needs passes "
                "of its own; train on whole sequences, without a cache."
            )


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch to a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def number_of_rows(batch: Batch) -> int:
    """Count the rows of a batch by its tokens, labels or else first tensor; raise AttendropError without tensors."""
    for value in (*map(batch.get, _BY_ROW), *batch.values()):
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise AttendropError("The batch has no tensors; pass a batch with input tensors.")
