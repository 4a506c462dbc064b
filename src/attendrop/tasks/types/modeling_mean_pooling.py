"""Classifier on the mean of an encoder's last hidden states.

A copy of this file is saved beside the weights of such models: transformers has no class for them, and loads this one
with ``trust_remote_code=True``. So it imports torch and transformers only.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple


class MeanPoolingConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a classifier on the mean of an encoder's last hidden states.

    Args:
        encoder: Configuration of the encoder, also as a dict with its ``model_type``.
        options: Those of any configuration; the classes (``id2label``, ``label2id``) and ``problem_type`` are the
            encoder's if not given.
    """

    model_type = "attendrop_mean_pooling"
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012 (as in transformers)

    def __init__(self, encoder: Any, **options: Any) -> None:
        given = dict(encoder) if isinstance(encoder, dict) else encoder.to_dict()
        self.encoder: PreTrainedConfig = CONFIG_MAPPING[given["model_type"]](**given)
        of_encoder = {name: getattr(self.encoder, name) for name in ("id2label", "label2id", "problem_type")}
        super().__init__(**of_encoder | options)


class MeanPooling:
    """Part of a model class: an encoder, and a linear layer on the mean of its last hidden states.

    The linear layer has a distinct name, so that other classes report it as missing from the weights instead of loading
    it as their own.
    """

    base_model: Any
    config: Any
    loss_function: Any

    def add_encoder(self, config: Any) -> None:
        """Add the encoder of a configuration, without a pooler, and the linear layer; the end of ``__init__``."""
        found = MODEL_MAPPING[type(config)]
        encoder_class: Any = found[0] if isinstance(found, tuple) else found
        has_pooler = "add_pooling_layer" in inspect.signature(encoder_class.__init__).parameters
        encoder = encoder_class(config, **({"add_pooling_layer": False} if has_pooler else {}))
        self.base_model_prefix = encoder.base_model_prefix
        setattr(self, self.base_model_prefix, encoder)
        # The dropout of the family's own classifiers.
        own = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
        rates = (getattr(config, name, None) for name in (*own, "hidden_dropout_prob", "hidden_dropout", "dropout"))
        self.dropout = nn.Dropout(float(next((rate for rate in rates if rate is not None), 0.1)))
        self.mean_classifier = nn.Linear(config.hidden_size, self.config.num_labels)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **inputs: Any,
    ) -> SequenceClassifierOutput:
        """Compute logits, and with ``labels`` the loss of the configured ``problem_type``."""
        outputs = self.base_model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.mean_classifier(self.dropout(mean_of_valid(outputs.last_hidden_state, attention_mask)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.get("hidden_states"), attentions=outputs.get("attentions")
        )


class MeanPoolingForSequenceClassification(MeanPooling, PreTrainedModel):  # type: ignore[no-untyped-call]
    """Classifier on the mean of the last hidden states of any encoder of transformers."""

    config_class = MeanPoolingConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, config: MeanPoolingConfig) -> None:
        super().__init__(config)
        self.add_encoder(config.encoder)

    forward = can_return_tuple(MeanPooling.forward)  # type: ignore[no-untyped-call]


def mean_of_valid(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average hidden states ``(batch, length, hidden)`` over the tokens that a mask ``(batch, length)`` is not 0 at."""
    if attention_mask is None:
        return hidden.mean(1)
    if attention_mask.ndim != 2:
        raise ValueError(
            f"The mean over tokens needs an attention_mask (batch, length), not {tuple(attention_mask.shape)}."
        )
    valid = attention_mask.bool()[..., None]
    total = hidden.masked_fill(~valid, 0).sum(1, dtype=torch.promote_types(hidden.dtype, torch.float32))
    return (total / valid.sum(1).clamp(min=1)).to(hidden.dtype)
