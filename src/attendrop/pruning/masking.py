"""Constant attention in a stock model: with queries of zero, softmax gives every valid key the same weight, exactly."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention import find_sites
from attendrop.errors import AttendropError
from attendrop.sites import Site, select_self_attention

# What families call the projection to queries; and those that project to queries, keys and values at once.
_QUERIES = ("query", "q_lin", "q_proj", "q")
_FUSED = ("c_attn", "Wqkv", "qkv")


def prunable_sites(model: Any) -> list[Site]:
    """The attention layers that can be pruned: the encoder's self-attention, or that of a decoder-only model.

    Raises:
        AttendropError: The model is not supported, or its layers share their weights.
    """
    sites = select_self_attention(find_sites(model), "all")
    if any("#" in site.name for site in sites):
        raise AttendropError(f"The layers of {type(model).__name__} share their weights; they cannot be pruned singly.")
    return sites


def mask_layers(model: Any, layers: Collection[int]) -> Any:
    """Copy a model, with constant attention in some layers.

    The copy is a model of the same class, which transformers runs, trains and saves as any other. The queries of these
    layers are zero and frozen.

    Args:
        model: A transformers model; left as it was.
        layers: Numbers of the layers, from 0.

    Raises:
        AttendropError: The model's attention does not become constant in this way (position biases, such as T5's), or
            there is no such layer.
    """
    sites = prunable_sites(model)
    _check_numbers(layers, len(sites))
    masked = copy.deepcopy(model)
    for number in layers:
        module = masked.get_submodule(sites[number].name)
        if hasattr(module, "has_relative_attention_bias") or hasattr(module, "relative_attention_bias"):
            raise AttendropError(
                f"{type(module).__name__} adds position biases to its scores, so its attention cannot be made constant."
            )
        for parameter, rows in _query_parameters(module):
            with torch.no_grad():
                parameter[rows] = 0
            if rows == (slice(None),):
                parameter.requires_grad_(False)
            else:  # queries, keys and values in one: only the first third stays zero
                parameter.register_hook(partial(_without, rows))  # type: ignore[no-untyped-call]
    return masked


def masked_layers(model: Any) -> list[int]:
    """The layers whose queries are zero."""
    found = []
    for number, site in enumerate(prunable_sites(model)):
        parameters = _query_parameters(model.get_submodule(site.name))
        if all(not parameter.detach()[rows].any() for parameter, rows in parameters):
            found.append(number)
    return found


def _check_numbers(layers: Collection[int], count: int) -> None:
    wrong = [number for number in layers if not 0 <= number < count]
    if wrong:
        raise AttendropError(f"layers: the model has no layer {wrong[0]}; layers are 0 to {count - 1}.")


def _query_parameters(module: nn.Module) -> list[tuple[nn.Parameter, tuple[slice, ...]]]:
    """Weight and bias of the projection to queries, each with the part of it that this is."""
    for name in (*_QUERIES, *_FUSED):
        projection: Any = getattr(module, name, None)
        if not isinstance(getattr(projection, "weight", None), nn.Parameter):
            continue
        parameters = [projection.weight] + ([projection.bias] if projection.bias is not None else [])
        if name in _QUERIES:
            return [(parameter, (slice(None),)) for parameter in parameters]
        # A linear layer has its outputs in the rows of its weight, GPT-2's Conv1D in the columns.
        axis = 0 if isinstance(projection, nn.Linear) else 1
        third = slice(0, projection.weight.shape[axis] // 3)
        rows = (third,) if axis == 0 else (slice(None), third)
        return [(p, rows if p.ndim == 2 else (third,)) for p in parameters]
    raise AttendropError(
        f"{type(module).__name__} has no projection to queries that is known here; it cannot be pruned."
    )


def _without(rows: Sequence[slice], gradient: Tensor) -> Tensor:
    gradient = gradient.clone()
    gradient[tuple(rows)] = 0
    return gradient
