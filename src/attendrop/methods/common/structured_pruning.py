"""Selection of the least important heads and feed-forwards, and zeroing of their weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.projections import base_layer, inputs_of_heads, refuse_quantized
from attendrop.errors import AttendropError
from attendrop.randomness.candidates import floor_fraction

# A dimension of a parameter, and the indices in it; None for the whole parameter.
Place = tuple[int, list[int]] | None


def lowest(importance: Mapping[str, Tensor], fraction: float) -> dict[str, list[int]]:
    """Select the units to prune: head numbers by layer, and ``[0]`` for a feed-forward to prune.

    Heads are ranked by their importance divided by the norm of the importances of their layer. Feed-forwards are
    ranked separately. The most important head of each layer is never selected.

    Args:
        importance: Importances ``(heads,)`` by ``heads/LAYER``, and ``(1,)`` by ``feed_forward/BLOCK``.
        fraction: Fraction of the heads, and of the feed-forwards, to select, rounded down.
    """
    found: dict[str, list[int]] = {key: [] for key in importance}
    for kind in ("heads", "feed_forward"):
        ranked = []
        for key, values in importance.items():
            if key.startswith(kind):
                values = values.double().cpu()
                scale = values.norm().clamp(min=1e-20) if kind == "heads" else torch.ones(())
                kept = int(values.argmax()) if kind == "heads" else None
                ranked += [(v, key, number) for number, v in enumerate((values / scale).tolist()) if number != kept]
        ranked.sort(key=lambda item: item[0])
        for _, key, number in ranked[: wanted(importance, kind, fraction)]:
            found[key] = sorted([*found[key], number])
    return found


def wanted(importance: Mapping[str, Tensor], kind: str, fraction: float) -> int:
    """Return the number of heads, or feed-forwards, that make up a fraction of all."""
    total = sum(len(values) for key, values in importance.items() if key.startswith(kind))
    return int(floor_fraction(torch.tensor(total), fraction))


def places(adapter: ModelAdapter, pruned: Mapping[str, list[int]], heads: Mapping[str, int]) -> dict[str, Place]:
    """Return the places to set to zero in each parameter, by name, to remove the pruned units.

    Args:
        adapter: The traced model.
        pruned: Units to prune, from :func:`lowest`.
        heads: Number of heads, by ``heads/LAYER``.
    """
    names = {parameter: name for name, parameter in adapter.model.named_parameters()}
    found: dict[str, Place] = {}
    for block in adapter.blocks:
        for key, module in block.output_projections.items():
            numbers = pruned.get(f"heads/{key}")
            if numbers:
                weight = module.get_parameter("weight")
                found[names[weight]] = inputs_of_heads(module, numbers, heads[f"heads/{key}"])
        if pruned.get(f"feed_forward/{block.key}") and block.feed_forward is not None:
            found |= {names[parameter]: None for parameter in block.feed_forward.parameters()}
    return found


def zero(tensor: Tensor, place: Place) -> None:
    """Set the elements at a place to zero."""
    if place is None:
        tensor.zero_()
    else:
        tensor.index_fill_(place[0], torch.tensor(place[1], device=tensor.device), 0)


def check_prunable(adapter: ModelAdapter) -> None:
    """Check that each layer has an output projection of its own, whose weights can be set to zero.

    Raises:
        AttendropError: A projection is shared, not found, or quantized.
    """
    modules = [module for block in adapter.blocks for module in block.output_projections.values()]
    modules += [block.feed_forward for block in adapter.blocks if block.feed_forward is not None]
    name = type(adapter.model).__name__
    if len(set(modules)) < len(modules):
        raise AttendropError(f"{name} shares its layers, so heads of one cannot be pruned alone; use another model.")
    if {key for block in adapter.blocks for key in block.output_projections} != {
        layer.key for layer in adapter.attention_layers
    }:
        raise AttendropError(f"{name} has attention without an output projection to prune; use another model.")
    for module in modules:
        refuse_quantized(base_layer(module))
