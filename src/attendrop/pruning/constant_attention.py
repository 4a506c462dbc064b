"""Constant attention: with scores of zero, softmax gives all valid keys exactly the same weight."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.blocks import query_key_parameters
from attendrop.attention.edits import AttentionCall
from attendrop.attention.hooks import evaluating
from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.attention.plan import ConstantAttention
from attendrop.attention.tracing import example_inputs
from attendrop.attribution.recording import RecordPlan
from attendrop.errors import AttendropError
from attendrop.support.models import has_adapter


def prunable_layers(model: Any) -> list[AttentionLayer]:
    """List the attention layers that can be pruned: the encoder's self-attention, or that of a decoder-only model."""
    if has_adapter(model):
        raise AttendropError(
            f"{type(model).__name__} has an adapter of PEFT and cannot be pruned; merge it first: "
            "model.merge_and_unload()."
        )
    return select_self_attention(find_attention_layers(model), "all")


def mask_layers(model: Any, layers: Collection[int]) -> Any:
    """Copy a model, with constant attention in some layers, numbered from 0.

    The copy is a model of the same class, which transformers runs and trains like any other. Queries and keys of these
    layers are zero, and stay zero in training, because the gradients of both vanish.

    Raises:
        AttendropError: There is no such layer, or the model is not supported, or zero queries and keys do not make its
            attention constant, or change more than that.
    """
    attention_layers = prunable_layers(model)
    check_numbers(layers, len(attention_layers))
    masked = copy.deepcopy(model)
    if layers and not _zero_queries(masked, [attention_layers[number] for number in layers]):
        raise AttendropError(
            f"{type(model).__name__} cannot be pruned: its layers share weights, add to their scores (position biases) "
            "or make gates or values with their queries and keys, so no weights make their attention constant."
        )
    return masked


def masked_layers(model: Any) -> list[int]:
    """List the layers whose queries and keys are zero."""
    found = []
    for number, layer in enumerate(prunable_layers(model)):
        parameters = query_key_parameters(model.get_submodule(layer.name.partition("#")[0]))
        if parameters and all(not parameter.detach()[rows].any() for parameter, rows in parameters):
            found.append(number)
    return found


def check_numbers(layers: Collection[int], count: int) -> None:
    """Raise AttendropError if a number is not that of a layer."""
    wrong = [number for number in layers if not 0 <= number < count]
    if wrong:
        raise AttendropError(f"layers: the model has no layer {wrong[0]}; layers are 0 to {count - 1}.")


def _zero_queries(model: Any, attention_layers: Sequence[AttentionLayer]) -> bool:
    """Set the queries and keys of some layers to zero; returns whether that only makes their attention constant.

    That is measured in a pass, since some models add other terms to their scores, and the output is compared with that
    of constant attention, since in some models the projections also make gates (Qwen3-Next), values (Gemma 4), or the
    keys of other layers (Gemma 3n).
    """
    if any("#" in layer.name for layer in attention_layers):
        return False
    expected = _with_constant_attention(model, attention_layers)
    for layer in attention_layers:
        module = model.get_submodule(layer.name)
        parameters = query_key_parameters(module)
        biased = hasattr(module, "has_relative_attention_bias") or hasattr(module, "relative_attention_bias")
        if biased or not parameters:
            return False
        for parameter, rows in parameters:
            with torch.no_grad():
                parameter[rows] = 0
            if rows == (slice(None),):
                parameter.requires_grad_(False)
    found: list[float] = []  # how far weights deviate from those of equal attention, relative to these

    def measure(call: AttentionCall, weights: Tensor) -> None:
        visible, weights = weights > 0, weights.float()  # keys without weight are hidden
        found.append(float((weights * visible.sum(-1, keepdim=True) - visible.float()).abs().max()))

    batch = example_inputs(model)
    with ModelAdapter(model) as adapter, torch.no_grad(), evaluating(model):
        adapter.trace(batch)
        adapter.forward(batch, RecordPlan(attention_layers, measure))
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 1e-2
    output = _with_constant_attention(model, attention_layers)  # of the same operations as expected, in any precision
    return torch.allclose(output, expected, equal_nan=True) and all(unevenness < tolerance for unevenness in found)


def _with_constant_attention(model: Any, attention_layers: Sequence[AttentionLayer]) -> Tensor:
    """Compute the first output of a model, such as logits, for an example, with constant attention in some layers."""
    batch = example_inputs(model)
    with ModelAdapter(model) as adapter, torch.no_grad(), evaluating(model):
        adapter.trace(batch)
        output: Tensor = adapter.forward(batch, ConstantAttention(layer.key for layer in attention_layers))[0]
        return output
