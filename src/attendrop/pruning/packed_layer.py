"""Encoder layers that compute no padding, and whose constant attention is one vector for each sequence.

Tokens are concatenated, ``(tokens, hidden)``, and padded only for attention that is not constant. In a layer with
constant attention, the output of all heads is ``mean_valid(X) W_V W_O + b_V W_O + b_O``, the same for every token of a
sequence: the two matrices are folded into one, which is applied once per sequence. In local attention, each token has
its own mean, over its window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

# Also registers the function for masks, without which transformers runs an unpickled model with none.
from attendrop.attention.interface import leave_masks_unchanged
from attendrop.errors import AttendropError
from attendrop.pruning.families import Family, LayerParts, encoder_layers, family_of, reads_first_token
from attendrop.pruning.token_layouts import PackedLayout, PaddedLayout


class _Tokens(NamedTuple):
    """What one :class:`PackedLayer` passes to the next instead of hidden states."""

    x: Tensor
    layout: PaddedLayout
    pairs: Tensor | None  # of attention that is not the softmax of products: the keys of each query


class PackedLayer(nn.Module):
    """Layer that runs on the tokens that are not padding, and replaces a ``stock`` layer of a model.

    With constant attention if it has no projections. If the model reads ``first_only``, the first token, the last layer
    computes no other. With ``keep_first``, that token is computed even if it is padding.
    """

    def __init__(
        self, stock: Any, family: Family, heads: int, *, last: bool, first_only: bool, keep_first: bool
    ) -> None:
        super().__init__()
        for name, child in stock.named_children():
            self.add_module(name, child)
        self.attention_type = getattr(stock, "attention_type", None)  # ModernBERT chooses masks and positions by it
        self._family = family
        self._heads = heads
        self._last = last
        self.first_only = first_only
        self.keep_first = keep_first
        self.exported: type[PaddedLayout] | None = None  # layout of the form that is exported

    def forward(
        self,
        hidden_states: Tensor | _Tokens,
        attention_mask: Tensor | None = None,
        *_: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **__: Any,
    ) -> Any:
        """Run the layer: the first is given ``(batch, length, hidden)`` and the mask, ``(batch, length)``.

        Rotary positions are cosines and sines, each ``(batch or 1, length, size of a head)``; DeBERTa's are relative.

        Returns:
            From the last layer, hidden states that are zero on padding (except a first column that is read), or with
            ``first_only`` ``(batch, 1, hidden)``.

        Raises:
            AttendropError: The layer is in training mode, or the mask has another shape, or hides a first token that
                the model reads.
        """
        if not isinstance(hidden_states, _Tokens):
            hidden_states = self._begin(hidden_states, attention_mask)
        x, layout, pairs = hidden_states
        parts = self._family.parts(self)  # anew in each pass, since users replace modules, and replicas have others
        first = self._last and self.first_only
        read = parts.read(x)
        alike = not parts.projections and layout.covered_by(parts.window)  # all tokens of a sequence
        if alike:
            attended = layout.mean(read)
        elif not parts.projections:
            assert parts.window is not None
            attended = layout.window_mean(read, parts.window)
            attended = layout.first(attended) if first else attended
        elif self._family.relative_positions:
            padded = parts.attention(
                layout.unpack(read), attention_mask=pairs, relative_pos=relative_pos, rel_embeddings=rel_embeddings
            )[0]
            attended = padded[:, 0] if first else layout.pack(padded)
        else:
            attended = self._attend(parts, read, layout, position_embeddings, first=first)
        if first:
            made = parts.finish(layout.first(x), parts.output(attended))[:, None]
        elif alike:
            vector = parts.output(attended)
            made = layout.in_chunks(x, lambda chunk: parts.finish(x[chunk], layout.spread(vector, chunk)))
        else:
            made = layout.in_chunks(x, lambda chunk: parts.finish(x[chunk], parts.output(attended[chunk])))
        output = _Tokens(made, layout, pairs) if not self._last else made if first else layout.unpack(made)
        return (output, None) if self._family.relative_positions else output

    def _begin(self, hidden_states: Tensor, mask: Tensor | None) -> _Tokens:
        """Lay the tokens of a batch out, in the first layer."""
        if self.training:  # without the dropout of its parts
            raise AttendropError(
                "A pruned model does not train; call eval(), or train its to_stock() and prune what that becomes."
            )
        batch = hidden_states.shape[:2]
        if mask is not None and mask.shape != batch:
            raise AttendropError(
                f"A pruned model takes an attention_mask of shape {tuple(batch)}, (batch, length), not "
                f"{tuple(mask.shape)}; its to_stock() takes others."
            )
        pads_right = self.first_only and self._family.pads_right and self.exported is None
        if pads_right and mask is not None and not mask[:, 0].all():
            raise AttendropError(
                "A sequence begins with padding, which the model would read as its first token; pad on the right."
            )
        layout = (self.exported or PackedLayout)(hidden_states, mask, keep_first=self.keep_first)
        pairs = None
        if self._family.relative_positions and mask is not None:
            pairs = mask[:, None, None] * mask[:, None, :, None]
        return _Tokens(layout.pack(hidden_states), layout, pairs)

    def _attend(
        self,
        parts: LayerParts,
        read: Tensor,
        layout: PaddedLayout,
        rotary: tuple[Tensor, Tensor] | None,
        *,
        first: bool,
    ) -> Tensor:
        """Compute the softmax of products for all tokens, in their layout, or the first ones, ``(batch, hidden)``."""
        queries, *others = parts.project(read, layout.first if first else None)
        padded = (queries[:, None] if first else layout.unpack(queries), *map(layout.unpack, others))
        q, k, v = (x.view(*x.shape[:2], self._heads, -1).transpose(1, 2) for x in padded)
        if rotary is not None:
            q, k = _rotate(q, *rotary), _rotate(k, *rotary)
        mask = None if layout.mask is None else layout.mask[:, None, None]
        if parts.window is not None and not layout.covered_by(parts.window):
            mask = _local_mask(mask, q.shape[2], k.shape[2], parts.window, q.device)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return attended[:, 0] if first else layout.pack(attended)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the vectors of the first tokens, ``(batch, heads, length, size of a head)``, by their positions."""
    first, second = x.float().chunk(2, dim=-1)
    across = torch.cat((-second, first), dim=-1)
    cosines, sines = (part[:, None, : x.shape[2]] for part in (cosines, sines))
    return (x.float() * cosines + across * sines).to(x.dtype)


def _local_mask(mask: Tensor | None, queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Return the keys in the window of each query that a mask leaves, and the query's own, so that there is one."""
    distance = torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
    near = distance.abs() <= window
    return near if mask is None else near & (mask | (distance == 0))


def pack_layers(model: Any) -> None:
    """Replace the layers of a model by those that compute no padding."""
    family, layers, first_only = family_of(model), encoder_layers(model), reads_first_token(model)
    keep_first = first_only or getattr(model.base_model, "pooler", None) is not None
    heads, last = model.config.num_attention_heads, len(layers) - 1
    for number, layer in enumerate(layers):
        layers[number] = PackedLayer(
            layer, family, heads, last=number == last, first_only=first_only, keep_first=keep_first
        )
    if family.relative_positions:
        model.base_model.encoder.get_attention_mask = _unchanged_mask
    leave_masks_unchanged(model.config)
    model.requires_grad_(False)
    model.save_pretrained = _refuse_saving
    model.set_attn_implementation = _refuse_switching


def _unchanged_mask(mask: Tensor) -> Tensor:
    return mask


def _refuse_saving(*_: Any, **__: Any) -> None:
    raise AttendropError(
        "transformers would load the model inside a pruned model with random weights in the pruned layers; save the "
        "pruned model, or its to_stock()."
    )


def _refuse_switching(*_: Any, **__: Any) -> None:
    raise AttendropError(
        "The layers of a pruned model compute their attention in one way only; use its to_stock(), which takes other "
        "implementations."
    )
