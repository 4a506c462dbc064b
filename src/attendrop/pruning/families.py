"""Encoder families that have a fast pruned form, and how they name their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from attendrop.attention.projections import BERT_NAMES, DEBERTA_NAMES, DISTILBERT_NAMES, ProjectionNames
from attendrop.tasks.heads.mean_pooling import pools_mean


@dataclass(frozen=True)
class Family:
    """Names of the parts of an encoder.

    Attributes:
        encoder: Attribute of the base model that runs the layers.
        attention: The module of a layer that holds the projections to queries, keys and values.
        projections: Their names in it.
        output: The output projection of attention.
        norm: The layer norm after attention.
        up, activation, down: The feed-forward part.
        last_norm: The layer norm after it.
        attention_inputs: If attention is more than the softmax of products: function that makes the keyword arguments
            of a layer's own attention module from the model's encoder, the hidden states ``(batch, length, hidden)``
            and the mask ``(batch, length)``.
        reads_states: Whether the model takes its output from the hidden states that the encoder returns.
        unsupported: Attribute of the encoder that the fast form does not run; models that have it keep the plain form.
    """

    encoder: str
    attention: str
    projections: ProjectionNames
    output: str
    norm: str
    up: str
    activation: str
    down: str
    last_norm: str
    attention_inputs: Callable[[Any, Tensor, Tensor], dict[str, Any]] | None = None
    reads_states: bool = False
    unsupported: str | None = None

    @property
    def query(self) -> str:
        """Name of the query projection in a layer."""
        return f"{self.attention}.{self.projections.query}"

    @property
    def key(self) -> str:
        """Name of the key projection in a layer."""
        return f"{self.attention}.{self.projections.key}"

    @property
    def value(self) -> str:
        """Name of the value projection in a layer."""
        return f"{self.attention}.{self.projections.value}"


_BERT = Family(
    encoder="encoder",
    attention="attention.self",
    projections=BERT_NAMES,
    output="attention.output.dense",
    norm="attention.output.LayerNorm",
    up="intermediate.dense",
    activation="intermediate.intermediate_act_fn",
    down="output.dense",
    last_norm="output.LayerNorm",
)
_DISTILBERT = Family(
    encoder="transformer",
    attention="attention",
    projections=DISTILBERT_NAMES,
    output="attention.out_lin",
    norm="sa_layer_norm",
    up="ffn.lin1",
    activation="ffn.activation",
    down="ffn.lin2",
    last_norm="output_layer_norm",
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
FAMILIES = dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta", "camembert"), _BERT) | {
    "distilbert": _DISTILBERT,
    "deberta-v2": _DEBERTA,  # and DeBERTa-v3
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
    encoder, unsupported = getattr(model.base_model, family_of(model).encoder), family_of(model).unsupported
    return unsupported is None or getattr(encoder, unsupported) is None


def reads_first_token(model: Any) -> bool:
    """Tell whether a model's head reads only the first token of each sequence."""
    return type(model).__name__.endswith(_FIRST_TOKEN_HEADS) and not pools_mean(model)


def family_of(model: Any) -> Family:
    """Return the family of a model that has a fast form."""
    return FAMILIES[model.config.model_type]


def encoder_layers(model: Any) -> nn.ModuleList:
    """Return the encoder layers of a model that has a fast form."""
    found: nn.ModuleList = getattr(model.base_model, family_of(model).encoder).layer
    return found


def encoder_layers_path(model: Any) -> str:
    """Return the qualified name of :func:`encoder_layers`."""
    layers = encoder_layers(model)
    path: str = next(name for name, module in model.named_modules() if module is layers)
    return path
