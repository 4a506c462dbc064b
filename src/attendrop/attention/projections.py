"""Projections of attention: how models name them, and which part of a weight makes queries, keys or values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attendrop.errors import AttendropError

# Attributes of an attention module that projects to queries, keys and values separately.
BERT_NAMES = ("query", "key", "value")
DEBERTA_NAMES = ("query_proj", "key_proj", "value_proj")
DISTILBERT_NAMES = ("q_lin", "k_lin", "v_lin")
_SEPARATE = (BERT_NAMES, DISTILBERT_NAMES, ("q_proj", "k_proj", "v_proj"), DEBERTA_NAMES, ("q", "k", "v"))
# Attributes of an attention module that projects to queries, keys and values at once.
_FUSED = ("c_attn", "Wqkv", "qkv")
# Those known to produce them one after the other with the same width, if the module is of this class. Others go head by
# head (GPT-NeoX, the linear c_attn of GPTBigCode), or have fewer keys and values than queries (Phi-3).
_THIRDS: dict[str, type[nn.Module]] = {"c_attn": Conv1D, "Wqkv": nn.Linear}
# Modules of PEFT whose adapters add ``get_delta_weight`` to a weight. Others multiply it (OFT), or are not known.
_ADDITIVE = {"adalora", "loha", "lokr", "lora"}


def is_projection(module: nn.Module) -> bool:
    """Return whether a module is linear, a ``Conv1D`` of transformers, or one of them within a layer of an adapter."""
    return isinstance(base_layer(module), nn.Linear | Conv1D)


def base_layer(module: nn.Module) -> nn.Module:
    """Return the layer that a layer of an adapter (LoRA) is on; any other module is returned as it is."""
    while isinstance(inner := getattr(module, "base_layer", None), nn.Module):
        module = inner
    return module


def projections(module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the projections in a module; one with an adapter counts once, without its parts."""
    if is_projection(module):
        yield module
    else:
        base = base_layer(module)
        for child in module.children() if base is module else [base]:
            yield from projections(child)


def projection_matrices(projection: nn.Module) -> list[Tensor]:
    """List the weight matrices of a projection and of the adapter on it; raise AttendropError if one is quantized."""
    found = [part for part in projection.modules() if isinstance(part, nn.Linear | Conv1D)]
    for part in found:
        refuse_quantized(part)
    return [part.weight for part in found]


def refuse_quantized(layer: nn.Module) -> None:
    """Raise AttendropError if the weight of a linear layer is packed (quantized) instead of a matrix of numbers."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    packed = isinstance(layer, nn.Linear) and weight.shape != (layer.out_features, layer.in_features)
    if packed or not weight.is_floating_point():
        raise AttendropError(
            f"A weight of the model is quantized ({str(weight.dtype).removeprefix('torch.')}), so nothing can act on "
            "its values; load the model without quantization, or choose a method that does not act on parameters."
        )


def input_dim(projection: nn.Module) -> int:
    """Return the input dimension of a weight: a ``Conv1D`` weight is the transpose of a linear layer's."""
    return 0 if isinstance(base_layer(projection), Conv1D) else 1


def effective_weight(projection: nn.Module) -> Tensor:
    """Return the weight including an adapter's part; raise AttendropError if it is quantized or unknown."""
    layer: Any = projection
    refuse_quantized(base_layer(projection))
    weight: Tensor = base_layer(projection).weight  # type: ignore[assignment]
    if base_layer(projection) is projection or layer.disable_adapters or layer.merged:
        return weight
    if not _ADDITIVE & {*type(layer).__module__.split(".")}:
        raise AttendropError(
            f"What the adapter's {type(layer).__module__}.{type(layer).__name__} does to the weight is not known; use "
            "LoRA, or another method."
        )
    deltas = [layer.get_delta_weight(name) for name in layer.active_adapters if name in layer.scaling]
    return sum(deltas, start=weight)


def separate_projections(attention: nn.Module) -> tuple[str, str, str] | None:
    """Return the names of an attention module's separate projections to queries, keys and values; None without."""
    modules = attention._modules
    return next((names for names in _SEPARATE if all(modules.get(name) is not None for name in names)), None)


def query_key_parameters(attention: nn.Module) -> list[tuple[nn.Parameter, tuple[slice, ...]]]:
    """List the parameters of an attention module that produce queries and keys, each with the relevant part.

    For a fused projection, this is assumed to be the first two thirds. Empty if the module has none that are known
    here.

    Raises:
        AttendropError: They are quantized.
    """
    for query, key, _ in _SEPARATE:
        projections = [getattr(attention, name, None) for name in (query, key)]
        linear = [projection for projection in projections if isinstance(projection, nn.Linear)]
        if len(linear) == len(projections):
            for projection in linear:
                refuse_quantized(projection)
            return [(p, (slice(None),)) for projection in linear for p in projection.parameters()]
    for name in _FUSED:
        fused: Any = getattr(attention, name, None)
        if isinstance(getattr(fused, "weight", None), nn.Parameter):
            refuse_quantized(fused)
            # Unlike input_dim, by the class of linear layers: a fused projection may be neither.
            axis = 0 if isinstance(fused, nn.Linear) else 1
            part = slice(0, fused.weight.shape[axis] // 3 * 2)
            rows = (part,) if axis == 0 else (slice(None), part)
            return [(p, rows if p.ndim == 2 else (part,)) for p in fused.parameters()]
    return []


@dataclass(frozen=True)
class ValueProjection:
    """Projection to the values of an attention layer; a ``fused`` one makes queries and keys, too, and values last."""

    module: nn.Module
    fused: bool

    def weight(self) -> Tensor:
        """Return the weight that makes values, ``(features read, features made)``."""
        weight = effective_weight(self.module)
        weight = weight if input_dim(self.module) == 0 else weight.T
        return weight[:, -(weight.shape[1] // 3) :] if self.fused else weight


def find_value_projection(candidates: Iterable[tuple[str, nn.Module]]) -> ValueProjection | None:
    """Find the projection to values among those, with their names in their parents, that run before attention does.

    None if none is known, or if there are several candidates.
    """
    candidates = list(candidates)
    separate = [module for name, module in candidates if name.startswith("v")]
    fused = [module for name, module in candidates if _makes_thirds(name, module)]
    found = separate or fused
    return ValueProjection(found[0], fused=not separate) if len(found) == 1 else None


def inputs_of_heads(projection: nn.Module, numbers: Iterable[int], num_heads: int) -> tuple[int, list[int]]:
    """Locate the outputs of heads, ``numbers`` of ``num_heads``, among the inputs of an output projection.

    Returns:
        A dimension of the projection's weight, and indices in it.
    """
    dim = input_dim(projection)
    weight: Tensor = projection.weight  # type: ignore[assignment]
    width = weight.shape[dim] // num_heads
    return dim, [number * width + unit for number in numbers for unit in range(width)]


def _makes_thirds(name: str, module: nn.Module) -> bool:
    if name not in _THIRDS or not isinstance(base_layer(module), _THIRDS[name]):
        return False
    weight: Tensor = base_layer(module).weight  # type: ignore[assignment]
    inputs = input_dim(module)
    return weight.shape[1 - inputs] == 3 * weight.shape[inputs]
