"""The packed form: encoder layers that compute no padding, with one vector a sequence where attention is constant.

Tokens are concatenated, ``(tokens, hidden)``, and padded only for attention that is not constant. In a layer with
constant attention, the output of all heads is ``mean_valid(X) W_V W_O + b_V W_O + b_O``, the same for every token of a
sequence: the two matrices are folded into one, which is applied once per sequence. In local attention, each token has
its own mean, over its window.

From top to bottom: the families of encoders and their parts, layouts of the tokens of a batch, and the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.blocks import BERT_NAMES, DEBERTA_NAMES, DISTILBERT_NAMES

# Also registers the function for masks, without which transformers runs an unpickled model with none.
from attendrop.attention.interface import UNCHANGED_MASK, use_implementation
from attendrop.errors import AttendropError
from attendrop.tasks.types.model_classes import pooling_of

# Number of tokens per chunk of the feed-forward part on a CPU: its activations then fit in the cache and reuse memory.
_CHUNK = 512


@dataclass(frozen=True)
class LayerParts:
    """Modules of one encoder layer: attention, feed-forward, and two norms."""

    attention: nn.Module  # that holds the projections
    projections: tuple[nn.Module, ...]  # to queries, keys and values, or to all three; with none, attention is constant
    output: nn.Linear  # in a layer with constant attention W_V W_O, with its bias
    norm: nn.Module
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    last_norm: nn.Module
    window: int | None  # a token attends to those up to this distance; None: to all

    def read(self, x: Tensor) -> Tensor:
        """Return what attention reads of the hidden states ``(..., hidden)``."""
        return x

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer's output from its input and the output of attention, both ``(..., hidden)``."""
        raise NotImplementedError

    def project(self, x: Tensor, select: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Compute queries, keys and values; queries only of the tokens that ``select`` picks."""
        if len(self.projections) == 1:
            queries, keys, values = self.projections[0](x).chunk(3, dim=-1)
            return select(queries), keys, values
        to_queries, to_keys, to_values = self.projections
        return to_queries(select(x)), to_keys(x), to_values(x)


class PostNormParts(LayerParts):
    """Layer that is normalised after each half, as BERT's."""

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norm(x + attended)
        return self.last_norm(x + self.down(self.activation(self.up(x))))  # type: ignore[no-any-return]


class PreNormParts(LayerParts):
    """Layer that is normalised before each half, with a gated feed-forward part, as ModernBERT's."""

    def read(self, x: Tensor) -> Tensor:
        return self.norm(x)  # type: ignore[no-any-return]

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        inner, gate = self.up(self.last_norm(x)).chunk(2, dim=-1)
        return x + self.down(self.activation(inner) * gate)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Family:
    """Names of the parts of an encoder."""

    layers: str  # path of the list of layers in the base model
    attention: str  # path in a layer of the module that holds the projections to queries, keys and values
    projections: tuple[str, ...]  # their names in it; or that of one that makes all three
    output: str  # path of the output projection of attention
    block: type[LayerParts]  # what a layer computes with its parts
    parts_of_block: Mapping[str, str]  # its fields that are not named here, with their paths in a layer
    relative_positions: bool = False  # whether scores have further terms, as DeBERTa's: its own module computes them
    pads_right: bool = False  # whether the first token is read, and cannot be distinguished from padding before it

    def parts(self, layer: nn.Module) -> LayerParts:
        """Pick the parts of a layer."""
        attention = attrgetter(self.attention)(layer)
        reach: int | None = getattr(attention, "sliding_window", None)  # of local attention; counts the token itself
        projections = (getattr(attention, name, None) for name in self.projections)
        return self.block(
            attention=attention,
            projections=tuple(projection for projection in projections if projection is not None),
            output=attrgetter(self.output)(layer),
            window=None if reach is None else reach - 1,
            **{field: attrgetter(path)(layer) for field, path in self.parts_of_block.items()},
        )


_BERT = Family(
    layers="encoder.layer", attention="attention.self", projections=BERT_NAMES, output="attention.output.dense",
    block=PostNormParts,
    parts_of_block=dict(
        norm="attention.output.LayerNorm", up="intermediate.dense", activation="intermediate.intermediate_act_fn",
        down="output.dense", last_norm="output.LayerNorm",
    ),
)  # fmt: skip
FAMILIES = dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta", "camembert"), _BERT) | {
    "distilbert": Family(
        layers="transformer.layer", attention="attention", projections=DISTILBERT_NAMES, output="attention.out_lin",
        block=PostNormParts,
        parts_of_block=dict(
            norm="sa_layer_norm", up="ffn.lin1", activation="ffn.activation", down="ffn.lin2",
            last_norm="output_layer_norm",
        ),
    ),
    "deberta-v2": replace(_BERT, projections=DEBERTA_NAMES, relative_positions=True, pads_right=True),  # and DeBERTa-v3
    "modernbert": Family(
        layers="layers", attention="attn", projections=("Wqkv",), output="attn.Wo", block=PreNormParts,
        parts_of_block=dict(norm="attn_norm", up="mlp.Wi", activation="mlp.act", down="mlp.Wo", last_norm="mlp_norm"),
        pads_right=True,
    ),
}  # fmt: skip
# Heads that read only the first token; then others that ignore padding, and models without a head ("Model").
_FIRST_TOKEN_HEADS = ("ForSequenceClassification", "ForMultipleChoice")
_HEADS = (*_FIRST_TOKEN_HEADS, "ForTokenClassification", "Model")
# Where forward functions are written that read what the name of their class says.
_SOURCES = ("transformers.models.", "attendrop.")


def has_fast_form(model: Any) -> bool:
    """Return whether a model has a fast form, given its family and its head."""
    config, cls = model.config, type(model)
    if getattr(config, "is_decoder", False) or not cls.__name__.endswith(_HEADS):
        return False
    if not cls.forward.__module__.startswith(_SOURCES):
        return False
    if hasattr(model, "sequence_summary") and config.summary_type != "first":  # ELECTRA's choice: reads padding
        return False
    # DeBERTa's convolution over neighbouring tokens is not part of a layer.
    return config.model_type in FAMILIES and not getattr(config, "conv_kernel_size", 0)


def family_of(model: Any) -> Family:
    """Return the family of a model that has a fast form."""
    return FAMILIES[model.config.model_type]


def encoder_layers(model: Any) -> nn.ModuleList:
    """Return the encoder layers of a model that has a fast form."""
    found: nn.ModuleList = attrgetter(family_of(model).layers)(model.base_model)
    return found


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
        exact = torch.promote_types(hidden_states.dtype, torch.float32)
        weights = weights / weights.sum(1, keepdim=True, dtype=exact).clamp(min=1)
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

    def covered_by(self, window: int | None) -> bool:
        """Return whether every token sees all others from at most ``window`` columns away; None: from anywhere."""
        return window is None

    def window_mean(self, x: Tensor, window: int) -> Tensor:
        """Compute for each token the mean over the real tokens at most ``window`` columns away, in this layout."""
        padded = self.unpack(x)
        valid = padded.new_ones(padded.shape[:2]) if self.mask is None else self.mask.to(x.dtype)
        total, count = (
            functional.avg_pool1d(each.transpose(1, 2), 2 * window + 1, stride=1, padding=window).transpose(1, 2)
            for each in (padded * valid[..., None], valid[..., None])
        )
        return self.pack(total / count.clamp(min=0.5 / (2 * window + 1)))

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
        # This is the fastest sum over segments of different lengths; half precision is accumulated in single.
        weights = self._mean_weights
        return functional.embedding_bag(self._indices, x, self._starts, mode="sum", per_sample_weights=weights)

    def covered_by(self, window: int | None) -> bool:
        return window is None or self.length <= window + 1

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


class GatheredLayout(PaddedLayout):
    """Layout of the real tokens one after another, in operations that ONNX has and that depend on no size."""

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        super().__init__(hidden_states, mask, keep_first=keep_first)
        columns = torch.arange(self.length, device=hidden_states.device)
        kept = columns[None].expand(self.batch, -1) < self.length if self.mask is None else self.mask
        if keep_first:
            kept = kept | (columns == 0)
        self._sequence, column = kept.nonzero().unbind(1)
        self._places = self._sequence * self.length + column
        slots = kept.flatten().long().cumsum(0) - 1  # padding gets the place of a token before it, if any
        self._slots = slots * (slots > 0)  # not clamp(min=0), which OpenVINO 2025.4 computes as 0 everywhere
        sequences = torch.arange(self.batch, device=hidden_states.device)
        member = self._sequence == sequences[:, None]
        weights = self._mean_weights.flatten().index_select(0, self._places)
        self._mean_weights = member.to(hidden_states.dtype) * weights

    def pack(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._places)

    def unpack(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._slots).view(self.batch, self.length, x.shape[-1])

    def mean(self, x: Tensor) -> Tensor:
        return self._mean_weights @ x

    def first(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._slots.view(self.batch, self.length)[:, 0])

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        return vectors.index_select(0, self._sequence)


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

        Returns from the last layer hidden states that are zero on padding (except a first column that is read), or with
        ``first_only`` ``(batch, 1, hidden)``. Raises AttendropError in training mode, or if the mask has another shape,
        or hides a first token that the model reads.
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
        self, parts: LayerParts, read: Tensor, layout: PaddedLayout, rotary: tuple[Tensor, Tensor] | None, first: bool
    ) -> Tensor:
        """Compute the softmax of products for all tokens, in their layout, or the first ones, ``(batch, hidden)``."""
        queries, *others = parts.project(read, layout.first if first else lambda tokens: tokens)
        padded = (queries[:, None] if first else layout.unpack(queries), *map(layout.unpack, others))
        q, k, v = (x.view(*x.shape[:2], self._heads, -1).transpose(1, 2) for x in padded)
        if rotary is not None:
            q, k = _rotate(q, *rotary), _rotate(k, *rotary)
        mask = None if layout.mask is None else layout.mask[:, None, None]
        if parts.window is not None and not layout.covered_by(parts.window):
            distance = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
            near = distance.abs() <= parts.window
            mask = near if mask is None else near & (mask | (distance == 0))  # with itself, so that there is one
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return attended[:, 0] if first else layout.pack(attended)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the vectors of the first tokens, ``(batch, heads, length, size of a head)``, by their positions."""
    first, second = x.float().chunk(2, dim=-1)
    across = torch.cat((-second, first), dim=-1)
    cosines, sines = (part[:, None, : x.shape[2]] for part in (cosines, sines))
    return (x.float() * cosines + across * sines).to(x.dtype)


def pack_layers(model: Any) -> None:
    """Replace the layers of a model by those that compute no padding."""
    family, layers = family_of(model), encoder_layers(model)
    first_only = type(model).__name__.endswith(_FIRST_TOKEN_HEADS) and pooling_of(model.config) != "mean"
    keep_first = first_only or getattr(model.base_model, "pooler", None) is not None
    heads, last = model.config.num_attention_heads, len(layers) - 1
    for number, layer in enumerate(layers):
        layers[number] = PackedLayer(
            layer, family, heads, last=number == last, first_only=first_only, keep_first=keep_first
        )
    if family.relative_positions:
        model.base_model.encoder.get_attention_mask = _unchanged_mask
    use_implementation(model.config, UNCHANGED_MASK)
    model.requires_grad_(False)
    model.save_pretrained = model.set_attn_implementation = _refuse


def _unchanged_mask(mask: Tensor) -> Tensor:
    return mask


def _refuse(*_: Any, **__: Any) -> None:
    raise AttendropError(
        "The model inside a pruned model computes its attention in one way only, and transformers would load it with "
        "random weights in the pruned layers; save the pruned model, or use its to_stock(), which has neither limit."
    )
