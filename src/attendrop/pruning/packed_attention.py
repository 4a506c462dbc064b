"""Attention of layers that keep it, computed on padded tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.pruning.layer_parts import Attention, LayerParts
from attendrop.pruning.token_layouts import PaddedLayout


class ProductAttention(Attention):
    """Softmax of the products of queries and keys.

    Args:
        heads: Number of heads.
        rotary: Cosines and sines of rotary position embeddings, each ``(batch or 1, length, size of a head)``.
    """

    def __init__(self, heads: int, rotary: tuple[Tensor, Tensor] | None = None) -> None:
        self.heads = heads
        self.rotary = rotary

    def of_all(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        queries, keys, values = parts.project(x, lambda x: x)
        return layout.pack(self._attend(layout.unpack(queries), keys, values, layout, parts.window))

    def of_first(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        queries, keys, values = parts.project(x, layout.first)
        return self._attend(queries[:, None], keys, values, layout, parts.window)[:, 0]

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, layout: PaddedLayout, window: int | None
    ) -> Tensor:
        """Attend with padded queries ``(batch, length, hidden)`` of the first tokens, and keys and values in layout."""
        padded = queries, layout.unpack(keys), layout.unpack(values)
        q, k, v = (x.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for x in padded)
        if self.rotary is not None:
            q, k = _rotate(q, *self.rotary), _rotate(k, *self.rotary)
        mask = None if layout.mask is None else layout.mask[:, None, None]
        if window is not None and not layout.covered_by(window):
            mask = _local_mask(mask, q.shape[2], k.shape[2], window, q.device)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class OwnAttention(Attention):
    """Attention as a layer's own module computes it.

    Args:
        inputs: Keyword arguments of the modules, beside the hidden states.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = inputs

    def of_all(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        return layout.pack(self._padded(parts, x, layout))

    def of_first(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        return self._padded(parts, x, layout)[:, 0]

    def _padded(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        attended: Tensor = parts.attention(layout.unpack(x), **self.inputs)[0]
        return attended


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the vectors of the first tokens, ``(batch, heads, length, size of a head)``, by their positions."""
    first, second = x.float().chunk(2, dim=-1)
    across = torch.cat((-second, first), dim=-1)
    cosines, sines = (part[:, None, : x.shape[2]] for part in (cosines, sines))
    return (x.float() * cosines + across * sines).to(x.dtype)


def _local_mask(mask: Tensor | None, queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Return the keys in the window of each query that a mask leaves, and the query's own, so that there is one."""
    distance = torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
    near = distance.abs() <= window
    return near if mask is None else near & (mask | (distance == 0))
