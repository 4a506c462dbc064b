"""Encoder families that have a fast pruned form, and how they name their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Family:
    """How a family of encoders calls its parts.

    Attributes:
        encoder: Attribute of the base model that runs the layers.
        names: Of the parts of a layer, see :class:`attendrop.pruning.packed_encoder.Parts`.
    """

    encoder: str
    names: tuple[str, ...]


_BERT = Family(
    "encoder",
    (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "intermediate.intermediate_act_fn",
        "output.dense",
        "output.LayerNorm",
    ),
)
_DISTILBERT = Family(
    "transformer",
    (
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.activation",
        "ffn.lin2",
        "output_layer_norm",
    ),
)
FAMILIES = dict.fromkeys(("bert", "roberta", "electra", "xlm-roberta", "camembert"), _BERT) | {
    "distilbert": _DISTILBERT
}
# Heads to which padding means nothing, and none ("Model"); of these, those that read nothing but the first token.
_HEADS = ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification", "Model")
_READ_FIRST = ("ForSequenceClassification", "ForMultipleChoice")


def has_fast_form(model: Any) -> bool:
    """Whether a model has a fast form, by its family and its head."""
    config = model.config
    if getattr(config, "is_decoder", False) or not type(model).__name__.endswith(_HEADS):
        return False
    if hasattr(model, "sequence_summary") and config.summary_type != "first":  # ELECTRA's choice reads padding then
        return False
    return config.model_type in FAMILIES


def _family(model: Any) -> Family:
    return FAMILIES[model.config.model_type]


def _layers(model: Any) -> nn.ModuleList:
    found: nn.ModuleList = getattr(model.base_model, _family(model).encoder).layer
    return found


def _layers_path(model: Any) -> str:
    layers = _layers(model)
    path: str = next(name for name, module in model.named_modules() if module is layers)
    return path
