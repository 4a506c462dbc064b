"""Encoders that compute no padding, with layers whose attention is one vector per sequence.

Tokens are concatenated, ``(tokens, hidden)``, and padded only for attention that is not constant. In a layer with
constant attention, the output of all heads is ``mean_valid(X) W_V W_O + b_V W_O + b_O``, the same for every token of a
sequence: the two matrices are folded into one, which is applied once per sequence. Local attention has a mean for each
token instead, over its window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from attendrop.errors import AttendropError
from attendrop.pruning.families import Attention, Family, LayerParts
from attendrop.pruning.token_layouts import PackedLayout, PaddedLayout


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


class PackedEncoder(nn.Module):
    """Encoder that runs its layers on the tokens that are not padding, and replaces the model's own encoder.

    Args:
        stock: The model's own encoder; its layers with constant attention have no query, key and value.
        family: Names of the parts of a layer.
        heads: Number of attention heads.
        first_only: The model reads only the first token; the last layer then computes no other.
        pools_first: The model reads the first token in addition to all others; it is computed even if it is padding.
    """

    def __init__(self, stock: Any, family: Family, heads: int, *, first_only: bool, pools_first: bool = False) -> None:
        super().__init__()
        for name, child in stock.named_children():
            self.add_module(name, child)
        self._stock = (stock,)  # no child of this module, whose children are named as they were there
        self._family = family
        self._heads = heads
        self.first_only = first_only
        self.keep_first = first_only or pools_first
        self.exported: type[PaddedLayout] | None = None  # layout of the form that is exported
        self._parts = [family.parts(module) for module in stock.layer]

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """Encode ``(batch, length, hidden)``, with a mask ``(batch, length)``, True on real tokens.

        Returns:
            An output whose ``last_hidden_state`` is ``(batch, length, hidden)``, zero on padding (except a first
            column that is read), or with ``first_only`` ``(batch, 1, hidden)``.

        Raises:
            AttendropError: The mask has another shape, or hides a first token that the model reads.
        """
        layout = _layout(hidden_states, attention_mask, self.exported, keep_first=self.keep_first)
        attention = self._attention(hidden_states, attention_mask)
        x = layout.pack(hidden_states)
        for parts in self._parts[:-1]:
            x = parts.run(x, layout, attention)
        if self.first_only:
            last = self._parts[-1].run_first(x, layout, attention)[:, None]
        else:
            last = layout.unpack(self._parts[-1].run(x, layout, attention))
        states = (last,) if self._family.reads_states else None
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=last, hidden_states=states)

    def _attention(self, hidden_states: Tensor, mask: Tensor | None) -> Attention:
        """Return how layers attend in this pass."""
        if self._family.attention_inputs is None:
            return ProductAttention(self._heads)
        if mask is None:
            mask = hidden_states.new_ones(hidden_states.shape[:2])
        if self.first_only and self.exported is None:
            _check_first_token(mask)
        return OwnAttention(self._family.attention_inputs(self._stock[0], hidden_states, mask))


class _Tokens(NamedTuple):
    """What one :class:`PackedLayer` hands to the next in place of hidden states."""

    x: Tensor
    layout: PaddedLayout


class PackedLayer(nn.Module):
    """Layer of a model that runs its layers itself: as :class:`PackedEncoder`, one layer at a time.

    Args:
        stock: The model's own layer; with constant attention it has no projections.
        family: Names of the parts of a layer.
        heads: Number of attention heads.
        last: Whether it is the last layer.
        first_only: The model reads only the first token; the last layer then computes no other.
    """

    def __init__(self, stock: Any, family: Family, heads: int, *, last: bool, first_only: bool) -> None:
        super().__init__()
        for name, child in stock.named_children():
            self.add_module(name, child)
        self.attention_type = stock.attention_type  # the model chooses masks and position embeddings by it
        self._heads = heads
        self._last = last
        self.first_only = first_only
        self.exported: type[PaddedLayout] | None = None
        self._parts = family.parts(stock)

    def forward(
        self,
        hidden_states: Tensor | _Tokens,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **_: Any,
    ) -> Tensor | _Tokens:
        """Run the layer: the first is given ``(batch, length, hidden)``, and the last returns it.

        Raises:
            AttendropError: The mask has another shape, or hides a first token that the model reads.
        """
        if isinstance(hidden_states, _Tokens):
            x, layout = hidden_states
        else:
            layout = _layout(hidden_states, attention_mask, self.exported, keep_first=self.first_only)
            if self.first_only and attention_mask is not None and self.exported is None:
                _check_first_token(attention_mask)
            x = layout.pack(hidden_states)
        attention = ProductAttention(self._heads, position_embeddings)
        if self._last and self.first_only:
            return self._parts.run_first(x, layout, attention)[:, None]
        x = self._parts.run(x, layout, attention)
        return layout.unpack(x) if self._last else _Tokens(x, layout)


def _layout(
    hidden_states: Tensor, mask: Tensor | None, exported: type[PaddedLayout] | None, *, keep_first: bool
) -> PaddedLayout:
    """Choose the layout of a batch; raise AttendropError if its mask has another shape."""
    batch = hidden_states.shape[:2]
    if mask is not None and mask.shape != batch:
        raise AttendropError(
            f"A pruned model takes an attention_mask of shape {tuple(batch)}, (batch, length), not "
            f"{tuple(mask.shape)}; its to_stock() takes others."
        )
    return (exported or PackedLayout)(hidden_states, mask, keep_first=keep_first)


def _check_first_token(mask: Tensor) -> None:
    if not mask[:, 0].all():
        raise AttendropError(
            "A sequence begins with padding, which the model would read as its first token; pad on the right."
        )
