"""Attributions that one pass gives: gradients, and attention weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.edits import AttentionCall, DropoutDraws
from attendrop.attention.hooks import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attribution.finite_gradients import NOT_FINITE, all_true, first_finite, is_finite, wide
from attendrop.attribution.recording import GradientPlan, Keep, RecordPlan, isolated_pass, keep_all
from attendrop.attribution.targets import Forward, fix_target
from attendrop.errors import AttendropError
from attendrop.support.models import Batch


def gradient_attribution(
    adapter: ModelAdapter,
    batch: Batch,
    attention_layers: Sequence[AttentionLayer],
    target: str,
    *,
    units: str = "attention",
    inputs: Batch | None = None,
    forward: Forward | None = None,
    keep: Keep[Any] = keep_all,
    draws: DropoutDraws | None = None,
) -> dict[str, Any]:
    """Compute gradient attribution ``dF/dA`` (Eq. 5 of Yang et al., 2022) in one backward pass.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers to attribute to.
        target: ``"pseudo_label"``, ``"gold_label"`` or ``"loss"``, see :func:`fix_target`.
        units: What to attribute to, see :class:`attendrop.attribution.recording.ObservePlan`.
        inputs: Inputs for the model, if it is not given all of ``batch``: a trainer that computes the loss itself
            withholds the labels.
        forward: Runs the pass with a plan, and returns its outputs, such as the ``loss`` of a trainer; by default the
            model itself on ``inputs``.
        keep: Returns what to keep of each layer's attribution, which has the shape of the units, in float32 or better.
            Attributions are computed one after the other, so that those of all layers need not exist at once.
        draws: Draws of the model's attention dropout, shared with a later pass.

    Returns:
        What is kept, by the keys of the layers that ran, in the order of ``attention_layers``.

    Raises:
        AttendropError: The gradients are not finite; see :func:`attendrop.attribution.finite_gradients.first_finite`.
    """

    def attempt(factor: float) -> dict[str, Any] | None:
        kept: dict[str, Any] = {}
        finite: list[Tensor] = []

        def receive(call: AttentionCall, gradient: Tensor) -> None:
            finite.append(is_finite(gradient))
            kept[call.layer.key] = keep(call, gradient)

        plan = GradientPlan(attention_layers, receive, units, draws)
        with isolated_pass(adapter.model), torch.enable_grad():
            outputs = forward(plan) if forward else adapter.forward(inputs or batch, plan)
            score = fix_target(adapter.model, outputs, batch, target)(outputs)
            plan.differentiate(wide(score).sum(), factor)
        return kept if all_true(finite) else None

    kept = first_finite(attempt, adapter.model)
    return {layer.key: kept[layer.key] for layer in attention_layers if layer.key in kept}


def attention_attribution(
    adapter: ModelAdapter,
    inputs: Batch,
    attention_layers: Sequence[AttentionLayer],
    *,
    keep: Keep[Any] = keep_all,
    draws: DropoutDraws | None = None,
) -> dict[str, Any]:
    """Attribute to attention weights by their own size, ``A``, in one forward pass over ``inputs``.

    Other arguments and what is returned are as for :func:`gradient_attribution`; an attribution is ``(batch, heads,
    query, key)``.

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
