"""Encoder families that have a fast pruned form: how they name the parts of a layer, and compute with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol

from torch import Tensor, nn

from attendrop.attention.projections import BERT_NAMES, DEBERTA_NAMES, DISTILBERT_NAMES
from attendrop.pruning.token_layouts import PaddedLayout
from attendrop.tasks.heads.model_classes import pooling_of


class Attention(Protocol):
    """Attention of layers in which it is not constant."""

    def of_all(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for all tokens, in their layout ``(..., hidden)``."""
        ...

    def of_first(self, parts: LayerParts, x: Tensor, layout: PaddedLayout) -> Tensor:
        """Compute the outputs of the heads for the first token of each sequence, ``(batch, hidden)``."""
        ...


@dataclass(frozen=True)
class LayerParts:
    """Modules of one encoder layer.

    Attributes:
        attention: The module of the layer that holds the projections.
        projections: Those to queries, keys and values, or one that makes all three; without any, attention is constant.
        output: The output projection; in a layer with constant attention ``W_V W_O``, with its bias.
        norm, up, activation, down, last_norm: The feed-forward part, and the layer's two norms.
        window: A token attends to those at most so many columns away; None: to all.
    """

    attention: nn.Module
    projections: tuple[nn.Module, ...]
    output: nn.Linear
    norm: nn.Module
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    last_norm: nn.Module
    window: int | None

    def read(self, x: Tensor) -> Tensor:
        """Return what attention reads of the hidden states ``(..., hidden)``."""
        raise NotImplementedError

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer's output from its input and the output of attention, both ``(..., hidden)``."""
        raise NotImplementedError

    def project(self, x: Tensor, of_queries: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Compute queries, keys and values; queries are needed only of the tokens that ``of_queries`` selects."""
        if len(self.projections) == 1:
            queries, keys, values = self.projections[0](x).chunk(3, dim=-1)
            return of_queries(queries), keys, values
        to_queries, to_keys, to_values = self.projections
        return to_queries(of_queries(x)), to_keys(x), to_values(x)

    def run(self, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        """Compute the output for all tokens, in their layout."""
        read = self.read(x)
        if not self.projections and layout.covered_by(self.window):
            vector = self.output(layout.mean(read))
            return layout.in_chunks(x, lambda chunk: self.finish(x[chunk], layout.spread(vector, chunk)))
        if self.projections:
            attended = attention.of_all(self, read, layout)
        else:
            assert self.window is not None
            attended = layout.window_mean(read, self.window)
        return layout.in_chunks(x, lambda chunk: self.finish(x[chunk], self.output(attended[chunk])))

    def run_first(self, x: Tensor, layout: PaddedLayout, attention: Attention) -> Tensor:
        """Compute the output for the first token of each sequence, ``(batch, hidden)``."""
        read = self.read(x)
        if self.projections:
            attended = attention.of_first(self, read, layout)
        elif self.window is None or layout.covered_by(self.window):
            attended = layout.mean(read)
        else:
            attended = layout.first(layout.window_mean(read, self.window))
        return self.finish(layout.first(x), self.output(attended))


class PostNormParts(LayerParts):
    """Layer that is normalised after each half, as BERT's."""

    def read(self, x: Tensor) -> Tensor:
        return x

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


def _no_window(_: Any) -> int | None:
    return None


@dataclass(frozen=True)
class Family:
    """Names of the parts of an encoder.

    Attributes:
        encoder: Attribute of the base model that runs the layers; None: the base model runs them itself.
        layers: Path of their list in the base model.
        attention: The module of a layer that holds the projections to queries, keys and values.
        projections: Their names in it; or of one that makes all three.
        output: The output projection of attention.
        block: What a layer computes with its parts.
        parts_of_block: Its fields that are not named here, with their paths in a layer.
        window: Function from an attention module to the largest distance at which its tokens attend; None: to all.
        attention_inputs: If attention is more than the softmax of products: function that makes the keyword arguments
            of a layer's own attention module from the model's encoder, the hidden states ``(batch, length, hidden)``
            and the mask ``(batch, length)``.
        reads_states: Whether the model takes its output from the hidden states that the encoder returns.
        unsupported: Attribute of the encoder that the fast form does not run; models that have it keep the plain form.
    """

    encoder: str | None
    layers: str
    attention: str
    projections: tuple[str, ...]
    output: str
    block: type[LayerParts]
    parts_of_block: Mapping[str, str]
    window: Callable[[Any], int | None] = _no_window
    attention_inputs: Callable[[Any, Tensor, Tensor], dict[str, Any]] | None = None
    reads_states: bool = False
    unsupported: str | None = None

    @property
    def projection_paths(self) -> list[str]:
        """Paths of the projections in a layer."""
        return [f"{self.attention}.{name}" for name in self.projections]

    def parts(self, layer: nn.Module) -> LayerParts:
        """Pick the parts of a layer."""
        attention = layer.get_submodule(self.attention)
        projections = (getattr(attention, name) for name in self.projections)
        return self.block(
            attention=attention,
            projections=tuple(projection for projection in projections if projection is not None),
            output=attrgetter(self.output)(layer),
            window=self.window(attention),
            **{field: attrgetter(path)(layer) for field, path in self.parts_of_block.items()},
        )


_BERT = Family(
    encoder="encoder",
    layers="encoder.layer",
    attention="attention.self",
    projections=BERT_NAMES,
    output="attention.output.dense",
    block=PostNormParts,
    parts_of_block={
        "norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "activation": "intermediate.intermediate_act_fn",
        "down": "output.dense",
        "last_norm": "output.LayerNorm",
    },
)
_DISTILBERT = Family(
    encoder="transformer",
    layers="transformer.layer",
    attention="attention",
    projections=DISTILBERT_NAMES,
    output="attention.out_lin",
    block=PostNormParts,
    parts_of_block={
        "norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "activation": "ffn.activation",
        "down": "ffn.lin2",
        "last_norm": "output_layer_norm",
    },
)


def _relative_positions(encoder: Any, hidden_states: Tensor, mask: Tensor) -> dict[str, Any]:
    return {
        "attention_mask": encoder.get_attention_mask(mask),
        "relative_pos": encoder.get_rel_pos(hidden_states),
        "rel_embeddings": encoder.get_rel_embedding(),
    }


_DEBERTA = replace(
    _BERT,
    projections=DEBERTA_NAMES,
    attention_inputs=_relative_positions,
    reads_states=True,
    unsupported="conv",
)


def _modernbert_window(attention: Any) -> int | None:
    return None if attention.sliding_window is None else attention.sliding_window - 1  # which counts the token itself


_MODERNBERT = Family(
    encoder=None,
    layers="layers",
    attention="attn",
    projections=("Wqkv",),
    output="attn.Wo",
    block=PreNormParts,
    parts_of_block={
        "norm": "attn_norm",
        "up": "mlp.Wi",
        "activation": "mlp.act",
        "down": "mlp.Wo",
        "last_norm": "mlp_norm",
    },
    window=_modernbert_window,
)
FAMILIES = dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta", "camembert"), _BERT) | {
    "distilbert": _DISTILBERT,
    "deberta-v2": _DEBERTA,  # and DeBERTa-v3
    "modernbert": _MODERNBERT,
}
# Heads that ignore padding, and models without a head ("Model"); then the heads that read only the first token.
_HEADS = ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification", "Model")
_FIRST_TOKEN_HEADS = ("ForSequenceClassification", "ForMultipleChoice")


def has_fast_form(model: Any) -> bool:
    """Tell whether a model has a fast form, given its family and its head."""
    config = model.config
    if getattr(config, "is_decoder", False) or not type(model).__name__.endswith(_HEADS):
        return False
    if hasattr(model, "sequence_summary") and config.summary_type != "first":  # ELECTRA's choice: reads padding
        return False
    if config.model_type not in FAMILIES:
        return False
    family = family_of(model)
    if family.encoder is None or family.unsupported is None:
        return True
    return getattr(getattr(model.base_model, family.encoder), family.unsupported) is None


def reads_first_token(model: Any) -> bool:
    """Tell whether a model's head reads only the first token of each sequence."""
    return type(model).__name__.endswith(_FIRST_TOKEN_HEADS) and pooling_of(model.config) != "mean"


def family_of(model: Any) -> Family:
    """Return the family of a model that has a fast form."""
    return FAMILIES[model.config.model_type]


def encoder_layers(model: Any) -> nn.ModuleList:
    """Return the encoder layers of a model that has a fast form."""
    found: nn.ModuleList = attrgetter(family_of(model).layers)(model.base_model)
    return found


def encoder_layers_path(model: Any) -> str:
    """Return the qualified name of :func:`encoder_layers`."""
    layers = encoder_layers(model)
    path: str = next(name for name, module in model.named_modules() if module is layers)
    return path
