"""Encoder families with a fast pruned form: their names for the parts of a layer, and their computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from attendrop.attention.projections import BERT_NAMES, DEBERTA_NAMES, DISTILBERT_NAMES
from attendrop.tasks.heads.model_classes import pooling_of


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

    def project(self, x: Tensor, of_queries: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, ...]:
        """Compute queries, keys and values; queries only of the tokens that ``of_queries`` selects, by default all."""
        select = of_queries or (lambda tokens: tokens)
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

    @property
    def projection_paths(self) -> list[str]:
        """Paths of the projections in a layer."""
        return [f"{self.attention}.{name}" for name in self.projections]

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
    layers="encoder.layer",
    attention="attention.self",
    projections=BERT_NAMES,
    output="attention.output.dense",
    block=PostNormParts,
    parts_of_block=dict(
        norm="attention.output.LayerNorm",
        up="intermediate.dense",
        activation="intermediate.intermediate_act_fn",
        down="output.dense",
        last_norm="output.LayerNorm",
    ),
)
_DISTILBERT = Family(
    layers="transformer.layer",
    attention="attention",
    projections=DISTILBERT_NAMES,
    output="attention.out_lin",
    block=PostNormParts,
    parts_of_block=dict(
        norm="sa_layer_norm", up="ffn.lin1", activation="ffn.activation", down="ffn.lin2", last_norm="output_layer_norm"
    ),
)
_DEBERTA = replace(_BERT, projections=DEBERTA_NAMES, relative_positions=True, pads_right=True)
_MODERNBERT = Family(
    layers="layers",
    attention="attn",
    projections=("Wqkv",),
    output="attn.Wo",
    block=PreNormParts,
    parts_of_block=dict(norm="attn_norm", up="mlp.Wi", activation="mlp.act", down="mlp.Wo", last_norm="mlp_norm"),
    pads_right=True,
)
FAMILIES = dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta", "camembert"), _BERT) | {
    "distilbert": _DISTILBERT,
    "deberta-v2": _DEBERTA,  # and DeBERTa-v3
    "modernbert": _MODERNBERT,
}
# Heads that ignore padding, and models without a head ("Model"); then the heads that read only the first token.
_HEADS = ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification", "Model")
_FIRST_TOKEN_HEADS = ("ForSequenceClassification", "ForMultipleChoice")
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


def reads_first_token(model: Any) -> bool:
    """Return whether a model's head reads only the first token of each sequence."""
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
    return next(name for name, module in model.named_modules() if module is layers)  # type: ignore[no-any-return]
