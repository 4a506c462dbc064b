"""Gradient attribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.layers import AttentionLayer
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of, wide
from attendrop.attribution.recording import RecordPlan, isolated_pass
from attendrop.attribution.targets import fix_target
from attendrop.batches import Batch


def gradient_attribution(
    adapter: ModelAdapter,
    batch: Batch,
    attention_layers: Sequence[AttentionLayer],
    target: str,
    *,
    units: str = "attention",
    inputs: Batch | None = None,
) -> dict[str, Tensor]:
    """Compute gradient attribution ``dF/dA`` (Eq. 5 of Yang et al., 2022) in one backward pass.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers to attribute to.
        target: ``"pseudo_label"`` or ``"gold_label"``, see :func:`fix_target`.
        units: What to attribute to, see :class:`RecordPlan`.
        inputs: Inputs for the model, if it is not given all of ``batch``: a trainer that computes the loss itself
            withholds the labels.

    Raises:
        AttendropError: The gradients are not finite; see :func:`finite_gradients`.
    """

    def gradients(factor: float) -> dict[str, Tensor]:
        record = RecordPlan(attention_layers, units)
        with isolated_pass(adapter.model), torch.enable_grad():
            outputs = adapter.forward(inputs or batch, record)
            score = fix_target(adapter.model, outputs, batch, target)(outputs)
            return gradients_of(wide(score).sum() * factor, record.keys, record.in_order())

    return finite_gradients(gradients)
