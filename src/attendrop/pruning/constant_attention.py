"""Constant attention in a stock model: with scores of zero, softmax gives all valid keys exactly the same weight."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch

from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.example_inputs import example_inputs
from attendrop.attention.isolation import evaluating
from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.attention.plan import ConstantAttention
from attendrop.attention.projections import query_key_parameters
from attendrop.errors import AttendropError
from attendrop.peft_models import refuse_adapter


def prunable_layers(model: Any) -> list[AttentionLayer]:
    """List the attention layers that can be pruned: the encoder's self-attention, or that of a decoder-only model.

    Raises:
        AttendropError: The model is not supported, has an adapter of PEFT, or its layers share their weights.
    """
    refuse_adapter(model, "pruned")
    attention_layers = select_self_attention(find_attention_layers(model), "all")
    if any("#" in layer.name for layer in attention_layers):
        raise AttendropError(f"The layers of {type(model).__name__} share their weights; none can be pruned alone.")
    return attention_layers


def mask_layers(model: Any, layers: Collection[int]) -> Any:
    """Copy a model, with constant attention in some layers.

    The copy is a model of the same class, which transformers runs, trains and saves as any other. Queries and keys of
    these layers are zero, and stay zero in training, because the gradients of both vanish.

    Args:
        model: A transformers model, which is not changed.
        layers: Numbers of the layers, from 0.

    Raises:
        AttendropError: The model's attention does not become constant in this way (position biases, such as T5's; an
            image model's biases show when it runs), or there is no such layer.
    """
    attention_layers = prunable_layers(model)
    _check_numbers(layers, len(attention_layers))
    masked = copy.deepcopy(model)
    for number in layers:
        module = masked.get_submodule(attention_layers[number].name)
        if hasattr(module, "has_relative_attention_bias") or hasattr(module, "relative_attention_bias"):
            raise AttendropError(
                f"{type(module).__name__} adds position biases to its scores, so its attention cannot be made constant."
            )
        for parameter, rows in query_key_parameters(module):
            with torch.no_grad():
                parameter[rows] = 0
            if rows == (slice(None),):
                parameter.requires_grad_(False)
    _check_constant(masked, [attention_layers[number].key for number in layers])
    return masked


def masked_layers(model: Any) -> list[int]:
    """List the layers whose queries and keys are zero."""
    found = []
    for number, layer in enumerate(prunable_layers(model)):
        parameters = query_key_parameters(model.get_submodule(layer.name))
        if all(not parameter.detach()[rows].any() for parameter, rows in parameters):
            found.append(number)
    return found


def _check_numbers(layers: Collection[int], count: int) -> None:
    wrong = [number for number in layers if not 0 <= number < count]
    if wrong:
        raise AttendropError(f"layers: the model has no layer {wrong[0]}; layers are 0 to {count - 1}.")


def _check_constant(masked: Any, keys: Collection[str]) -> None:
    """Compare with exactly constant attention, since some models add other terms to their scores."""
    if not keys:
        return
    adapter, batch = ModelAdapter(masked), example_inputs(masked)
    adapter.trace(batch)
    adapter.attach()
    try:
        with torch.no_grad(), evaluating(masked):
            found, expected = (adapter.forward(batch, plan)[0].float() for plan in (None, ConstantAttention(keys)))
    finally:
        adapter.detach()
    tolerance = 1e-3 if masked.dtype in (torch.float32, torch.float64) else 0.1
    if (found - expected).norm() > tolerance * expected.norm():
        raise AttendropError(
            f"{type(masked).__name__} adds something to the scores of its attention, so zero queries do not make it "
            "constant; it cannot be pruned."
        )
