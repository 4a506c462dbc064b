"""Encoders that compute no padding, with layers whose attention is one vector per sequence.

Tokens are concatenated, ``(tokens, hidden)``, and padded only for attention that is not constant. In a layer with
constant attention, the output of all heads is ``mean_valid(X) W_V W_O + b_V W_O + b_O``, the same for every token of a
sequence: the two matrices are folded into one, which is applied once per sequence. Local attention has a mean for each
token instead, over its window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from attendrop.errors import AttendropError
from attendrop.pruning.families import Family
from attendrop.pruning.layer_parts import Attention
from attendrop.pruning.packed_attention import OwnAttention, ProductAttention
from attendrop.pruning.token_layouts import PackedLayout, PaddedLayout


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
        _check_mask(hidden_states, attention_mask)
        attention = self._attention(hidden_states, attention_mask)
        make_layout = self.exported or PackedLayout
        layout = make_layout(hidden_states, attention_mask, keep_first=self.keep_first)
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
            _check_mask(hidden_states, attention_mask)
            if self.first_only and attention_mask is not None and self.exported is None:
                _check_first_token(attention_mask)
            make_layout = self.exported or PackedLayout
            layout = make_layout(hidden_states, attention_mask, keep_first=self.first_only)
            x = layout.pack(hidden_states)
        attention = ProductAttention(self._heads, position_embeddings)
        if self._last and self.first_only:
            return self._parts.run_first(x, layout, attention)[:, None]
        x = self._parts.run(x, layout, attention)
        return layout.unpack(x) if self._last else _Tokens(x, layout)


def _check_mask(hidden_states: Tensor, mask: Tensor | None) -> None:
    batch = hidden_states.shape[:2]
    if mask is not None and mask.shape != batch:
        raise AttendropError(
            f"A pruned model takes an attention_mask of shape {tuple(batch)}, (batch, length), not "
            f"{tuple(mask.shape)}; its to_stock() takes others."
        )


def _check_first_token(mask: Tensor) -> None:
    if not mask[:, 0].all():
        raise AttendropError(
            "A sequence begins with padding, which the model would read as its first token; pad on the right."
        )
