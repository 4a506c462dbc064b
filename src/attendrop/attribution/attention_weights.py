"""Attention weights as attribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.call import AttentionCall
from attendrop.attention.dropout_draws import DropoutDraws
from attendrop.attention.isolation import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attribution.finite_gradients import NOT_FINITE, all_true, is_finite
from attendrop.attribution.recording import Keep, RecordPlan, keep_all
from attendrop.errors import AttendropError
from attendrop.model_support.batches import Batch


def attention_attribution(
    adapter: ModelAdapter,
    inputs: Batch,
    attention_layers: Sequence[AttentionLayer],
    *,
    keep: Keep[Any] = keep_all,
    draws: DropoutDraws | None = None,
) -> dict[str, Any]:
    """Attribute to attention weights by their own size, ``A``, in one forward pass.

    Args:
        adapter: The attached and traced model.
        inputs: Inputs of the model.
        attention_layers: Attention layers to attribute to.
        keep: What is kept of each layer's attribution, ``(batch, heads, query, key)``.
        draws: See :func:`attendrop.attribution.gradient.gradient_attribution`.

    Returns:
        What is kept, by the keys of the layers that ran, in the order of ``attention_layers``.

    Raises:
        AttendropError: The weights are not finite.
    """
    kept: dict[str, Any] = {}
    finite: list[Tensor] = []

    def receive(call: AttentionCall, weights: Tensor) -> None:
        finite.append(is_finite(weights))
        kept[call.layer.key] = keep(call, weights)

    with torch.no_grad(), forked_rng(adapter.model):
        adapter.forward(inputs, RecordPlan(attention_layers, receive, draws=draws))
    if not all_true(finite):
        raise AttendropError(NOT_FINITE)
    return {layer.key: kept[layer.key] for layer in attention_layers if layer.key in kept}
