"""Attention weights as attribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.isolation import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attribution.finite_gradients import NOT_FINITE, all_finite
from attendrop.attribution.recording import RecordPlan
from attendrop.batches import Batch
from attendrop.errors import AttendropError


def attention_attribution(
    adapter: ModelAdapter, inputs: Batch, attention_layers: Sequence[AttentionLayer]
) -> dict[str, Tensor]:
    """Attribute to attention weights by their own size, ``A``, in one forward pass.

    Raises:
        AttendropError: The weights are not finite.
    """
    record = RecordPlan(attention_layers)
    with torch.no_grad(), forked_rng(adapter.model):
        adapter.forward(inputs, record)
    found = dict(zip(record.keys, record.in_order(), strict=True))
    if not all_finite(found.values()):
        raise AttendropError(NOT_FINITE)
    return found
