"""Encoders that compute no padding, with layers whose attention is one vector per sequence.

Tokens are concatenated, ``(tokens, hidden)``, and padded only for attention that is not constant. In a layer with
constant attention, the output of all heads is ``mean_valid(X) W_V W_O + b_V W_O + b_O``, the same for every token of a
sequence: the two matrices are folded into one, which is applied once per sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from attendrop.errors import AttendropError
from attendrop.pruning.families import Family

# Number of tokens per chunk of the feed-forward part on a CPU: its activations then fit in the cache and reuse memory.
_CHUNK = 512


@dataclass(frozen=True)
class LayerParts:
    """Modules of one encoder layer, normalised after each half.

    Attributes:
        query, key, value: None in a layer with constant attention.
        output: The output projection; in a layer with constant attention ``W_V W_O``, with its bias.
        norm, up, activation, down, last_norm: The norm after attention, the feed-forward part and the last norm.
        attention: The module that holds query, key and value.
    """

    query: nn.Linear | None
    key: nn.Linear | None
    value: nn.Linear | None
    output: nn.Linear
    norm: nn.LayerNorm
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    last_norm: nn.LayerNorm
    attention: nn.Module

    @property
    def constant(self) -> bool:
        """Whether attention is constant."""
        return self.query is None

    @classmethod
    def of(cls, layer: nn.Module, family: Family) -> LayerParts:
        """Pick the parts of ``layer`` by the names that a family gives them."""
        return cls(**{field.name: attrgetter(getattr(family, field.name))(layer) for field in fields(cls)})

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Apply the residual, the norm and the feed-forward part after attention; ``(..., hidden)``."""
        x = self.norm(x + attended)
        return self.last_norm(x + self.down(self.activation(self.up(x))))  # type: ignore[no-any-return]


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
        self.padded = False  # set by export, since the sizes of packed tensors depend on values
        self._parts = [LayerParts.of(module, family) for module in stock.layer]

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """Encode ``(batch, length, hidden)``, with a mask ``(batch, length)``, True on real tokens.

        Returns:
            An output whose ``last_hidden_state`` is ``(batch, length, hidden)``, zero on padding (except a first
            column that is read), or with ``first_only`` ``(batch, 1, hidden)``.

        Raises:
            AttendropError: The mask has another shape, or hides a first token that the model reads.
        """
        batch = hidden_states.shape[:2]
        if attention_mask is not None and attention_mask.shape != batch:
            raise AttendropError(
                f"A pruned model takes an attention_mask of shape {tuple(batch)}, (batch, length), not "
                f"{tuple(attention_mask.shape)}; its to_stock() takes others."
            )
        attention = self._attention(hidden_states, attention_mask)
        make_layout = PaddedLayout if self.padded else PackedLayout
        layout = make_layout(hidden_states, attention_mask, keep_first=self.keep_first)
        x = layout.pack(hidden_states)
        for parts in self._parts[:-1] if self.first_only else self._parts:
            x = self._layer(parts, x, layout, attention)
        if self.first_only:
            last = self._first_of_last_layer(self._parts[-1], x, layout, attention)[:, None]
        else:
            last = layout.unpack(x)
        states = (last,) if self._family.reads_states else None
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=last, hidden_states=states)

    def _layer(self, parts: LayerParts, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        if parts.constant:
            vector = parts.output(layout.mean(x))
            return layout.in_chunks(x, lambda chunk: parts.finish(x[chunk], layout.spread(vector, chunk)))
        attended = attention.of_all(parts, x, layout)
        return layout.in_chunks(x, lambda chunk: parts.finish(x[chunk], parts.output(attended[chunk])))

    def _first_of_last_layer(self, parts: LayerParts, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        """Compute the last layer's output for the first token of each sequence, ``(batch, hidden)``."""
        attended = layout.mean(x) if parts.constant else attention.of_first(parts, x, layout)
        return parts.finish(layout.first(x), parts.output(attended))

    def _attention(self, hidden_states: Tensor, mask: Tensor | None) -> Attention:
        """Return how layers attend in this pass."""
        if self._family.attention_inputs is None:
            return ProductAttention(self._heads)
        if mask is None:
            mask = hidden_states.new_ones(hidden_states.shape[:2])
        if self.first_only and not self.padded and not mask[:, 0].all():
            raise AttendropError(
                "A sequence begins with padding, which the model would read as its first token; pad on the right."
            )
        return OwnAttention(self._family.attention_inputs(self._stock[0], hidden_states, mask))


class ProductAttention:
    """Attention of layers that are not constant: softmax of the products of queries and keys.

    Args:
        heads: Number of heads.
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def of_all(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for all tokens, in their layout ``(..., hidden)``."""
        assert parts.query is not None
        return layout.pack(self._attend(layout.unpack(parts.query(x)), parts, x, layout))

    def of_first(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for the first token of each sequence, ``(batch, hidden)``."""
        assert parts.query is not None
        return self._attend(parts.query(layout.first(x))[:, None], parts, x, layout)[:, 0]

    def _attend(self, query: Tensor, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute attention of padded tensors ``(batch, length, hidden)``."""
        assert parts.key is not None and parts.value is not None
        padded = query, layout.unpack(parts.key(x)), layout.unpack(parts.value(x))
        q, k, v = (x.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for x in padded)
        mask = None if layout.mask is None else layout.mask[:, None, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class OwnAttention:
    """Attention of layers that are not constant, as a layer's own module computes it on padded tensors.

    Its functions are those of :class:`ProductAttention`.

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


Attention = ProductAttention | OwnAttention


class PaddedLayout:
    """Layout of tokens with padding, ``(batch, length, hidden)``.

    Args:
        hidden_states: ``(batch, length, hidden)``, for shape, dtype and device.
        mask: ``(batch, length)``, True on real tokens; None: everywhere.
        keep_first: Whether each sequence's first column is needed, even if it is padding.
    """

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        self.batch, self.length = hidden_states.shape[:2]
        self.mask = None if mask is None else mask.bool()
        weights = hidden_states.new_ones(self.batch, self.length) if self.mask is None else self.mask
        weights = weights / weights.sum(1, keepdim=True, dtype=torch.float32).clamp(min=1)
        self._mean_weights = weights.to(hidden_states.dtype)  # weight of a token in the mean over its sequence

    def pack(self, x: Tensor) -> Tensor:
        """Convert ``(batch, length, hidden)`` to this layout."""
        return x

    def unpack(self, x: Tensor) -> Tensor:
        """Convert this layout to ``(batch, length, hidden)``."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """Compute the mean over the real tokens of each sequence, ``(batch, hidden)``."""
        return (self._mean_weights[:, None] @ x)[:, 0]

    def first(self, x: Tensor) -> Tensor:
        """Select the first token of each sequence, ``(batch, hidden)``."""
        return x[:, 0]

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        """Give each token of ``chunk`` the vector of its sequence; ``vectors`` is ``(batch, hidden)``."""
        return vectors[:, None]

    def in_chunks(self, x: Tensor, function: Callable[[slice], Tensor]) -> Tensor:
        """Compute a layer's output from its input ``x``, which may be overwritten, chunk by chunk."""
        return function(slice(None))


class PackedLayout(PaddedLayout):
    """Layout of the real tokens one after another, ``(tokens, hidden)``."""

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        super().__init__(hidden_states, mask, keep_first=keep_first)
        device = hidden_states.device
        kept = torch.ones(self.batch, self.length, dtype=torch.bool, device=device) if mask is None else self.mask
        assert kept is not None
        if keep_first and mask is not None:
            kept = kept.clone()
            kept[:, 0] = True  # read by the head, even if it is padding on the left
        self._places = kept.flatten().nonzero()[:, 0]  # the only synchronization with a GPU
        self._tokens = len(self._places)
        self._full = self._tokens == self.batch * self.length
        counts = kept.sum(1)
        self._starts = counts.cumsum(0) - counts
        self._sequence = self._places // self.length
        self._mean_weights = self._mean_weights.flatten()[self._places]
        self._indices = torch.arange(self._tokens, device=device)
        self._chunk = _CHUNK if device.type == "cpu" else self._tokens
        if self._full and not keep_first:
            self.mask = None

    def pack(self, x: Tensor) -> Tensor:
        x = x.flatten(0, 1)
        return x.clone() if self._full else x[self._places]

    def unpack(self, x: Tensor) -> Tensor:
        if not self._full:
            padded = x.new_zeros(self.batch * self.length, x.shape[-1])
            x = padded.index_copy_(0, self._places, x)
        return x.view(self.batch, self.length, x.shape[-1])

    def mean(self, x: Tensor) -> Tensor:
        # The fastest sum over segments of different lengths; half precision is accumulated in single.
        weights = self._mean_weights
        return functional.embedding_bag(self._indices, x, self._starts, mode="sum", per_sample_weights=weights)

    def first(self, x: Tensor) -> Tensor:
        return x[self._starts]

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        return vectors[self._sequence[chunk]]

    def in_chunks(self, x: Tensor, function: Callable[[slice], Tensor]) -> Tensor:
        if self._tokens <= self._chunk:
            return function(slice(None))
        for start in range(0, self._tokens, self._chunk):
            chunk = slice(start, start + self._chunk)
            x[chunk] = function(chunk)
        return x
