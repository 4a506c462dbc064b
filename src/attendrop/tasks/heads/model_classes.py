"""Model classes of this library: for the mean of an encoder's tokens, and for different numbers of choices.

Encoders such as MiniLM were trained so that the mean over the tokens holds the meaning of a text; their classes in
transformers read the first token. Where an architecture has the option itself, its own class is used. Classes for
multiple choice in transformers need as many choices in each row; here, padded choices are hidden.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_tuple

from attendrop.errors import AttendropError

# The name that ModernBERT and others give to the option.
_OPTION = "classifier_pooling"
# Ends like the names of transformers' classes, from which the loss is derived.
_SUFFIX = "MeanPoolingForSequenceClassification"


class MeanPooling:
    """Part of a model class: an encoder, and a linear layer on the mean of its last hidden states.

    The linear layer has a distinct name, so that other classes report it as missing from the weights instead of loading
    it as their own.
    """

    encoder_class: ClassVar[type[PreTrainedModel]]
    base_model: Any
    config: Any
    loss_function: Any

    def __init__(self, config: Any) -> None:
        setattr(config, _OPTION, "mean")
        super().__init__(config)  # type: ignore[call-arg]
        has_pooler = "add_pooling_layer" in inspect.signature(self.encoder_class.__init__).parameters
        encoder = self.encoder_class(config, **({"add_pooling_layer": False} if has_pooler else {}))
        setattr(self, self.base_model_prefix, encoder)  # type: ignore[attr-defined]
        self.dropout = nn.Dropout(_dropout(config))
        self.mean_classifier = nn.Linear(config.hidden_size, config.num_labels)
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


def mean_of_valid(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average hidden states ``(batch, length, hidden)`` over the tokens that a mask ``(batch, length)`` is not 0 at."""
    if attention_mask is None:
        return hidden.mean(1)
    if attention_mask.ndim != 2:
        raise AttendropError(
            f"The mean over tokens needs an attention_mask (batch, length), not {tuple(attention_mask.shape)}."
        )
    valid = attention_mask.bool()[..., None]
    total = hidden.masked_fill(~valid, 0).sum(1, dtype=torch.promote_types(hidden.dtype, torch.float32))
    return (total / valid.sum(1).clamp(min=1)).to(hidden.dtype)


def pools_mean(model: Any) -> bool:
    """Return whether a model is one of this module's classes."""
    return isinstance(model, MeanPooling)


def pooling_of(config: PreTrainedConfig) -> str:
    """Return what the classifier of a configuration reads: ``"mean"``, or ``"cls"``, what its class reads otherwise."""
    return "mean" if getattr(config, _OPTION, None) == "mean" else "cls"


def configure_pooling(config: PreTrainedConfig, pooling: str) -> None:
    """Write ``"cls"`` or ``"mean"`` into a configuration; refuse the mean of a model that is no encoder."""
    if pooling == pooling_of(config):
        return
    if pooling == "mean":
        _encoder_class(config)
        setattr(config, _OPTION, "mean")
    elif _has_option(config):
        setattr(config, _OPTION, getattr(type(config), _OPTION))
    else:
        delattr(config, _OPTION)


def mean_pooling_class(config: PreTrainedConfig) -> Any:
    """Return the class for a configuration that asks for the mean; None if a class of transformers does it."""
    if pooling_of(config) != "mean" or _has_option(config):
        return None
    return _mean_pooling(_encoder_class(config))


def is_encoder(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is of an encoder of text, whose tokens all see one another."""
    kind = config.model_type
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    one_way = causal or config.is_encoder_decoder or getattr(config, "is_decoder", False)
    return not one_way and type(config) in MODEL_MAPPING and hasattr(config, "hidden_size")


def _has_option(config: PreTrainedConfig) -> bool:
    return hasattr(type(config), _OPTION)


def _encoder_class(config: PreTrainedConfig) -> Any:
    if not is_encoder(config):
        raise AttendropError(
            f"pooling 'mean' is for encoders, which {config.model_type} is not; with pooling 'cls' its classifier "
            "reads what it was designed to read."
        )
    found = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


@cache
def _mean_pooling(encoder: Any) -> Any:
    """Make the class for an encoder, beside its other classes: a subclass of what these have in common."""
    family = next(cls for cls in encoder.__mro__[1:] if "base_model_prefix" in vars(cls))  # ALBERT's encoder, too
    name = encoder.__name__.removesuffix("Model") + _SUFFIX
    *own, _ = inspect.signature(MeanPooling.forward).parameters.values()
    others = [
        parameter if parameter.kind is parameter.VAR_KEYWORD else parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(encoder.forward).parameters.values()
        if parameter.name not in {each.name for each in own}
    ]
    parts = {
        "__module__": __name__,
        "__doc__": f"{encoder.__name__} with a linear layer on the mean of its last hidden states.",
        "encoder_class": encoder,
        "forward": _signed(MeanPooling.forward, inspect.Signature([*own, *others])),
    }
    return type(name, (MeanPooling, family), parts)


def _signed(forward: Any, signature: inspect.Signature) -> Any:
    """Return a forward method, which may also return a tuple, with a signature, where the trainer looks for inputs."""
    either: Any = can_return_tuple(forward)  # type: ignore[no-untyped-call]
    either.__signature__ = signature
    return either


def _dropout(config: PreTrainedConfig) -> float:
    """Return the dropout of the family's own classifiers."""
    own = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
    found = (getattr(config, name, None) for name in (*own, "hidden_dropout_prob", "hidden_dropout", "dropout"))
    return float(next((value for value in found if value is not None), 0.1))


def __getattr__(name: str) -> Any:
    """Find a class that is made here, as pickle does by its name."""
    encoder = getattr(transformers, f"{name.removesuffix(_SUFFIX)}Model", None) if name.endswith(_SUFFIX) else None
    found = choice_class(name) if encoder is None else _mean_pooling(encoder)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


# Logit of a padded choice: its probability is 0 in any dtype, and differences of its log-probabilities stay finite.
PADDED = -1e4


@cache
def choice_class(name: str | None) -> Any:
    """Return the class that hides padded choices, by the name of the class of transformers; None for other models.

    A choice without a token that is not padding never wins, and does not enter the loss, the cross-entropy. The mask is
    ``(rows, choices, tokens)``, labels are ``(rows,)``; both may be left out.
    """
    if name is None or name not in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        return None
    stock = getattr(transformers, name)
    signature = inspect.signature(stock.forward)

    def forward(self: Any, *args: Any, **inputs: Any) -> MultipleChoiceModelOutput:
        _, *names = signature.parameters
        inputs |= dict(zip(names, args, strict=False))
        mask, labels = inputs.pop("attention_mask", None), inputs.pop("labels", None)
        padded = None if mask is None else ~mask.bool().any(-1)
        if padded is not None:
            mask = mask.clone()
            mask[..., 0] += padded.to(mask.dtype)  # softmax over no key at all is undefined
        outputs = stock.forward(self, **inputs | {"attention_mask": mask, "return_dict": True})
        logits = outputs.logits if padded is None else outputs.logits.masked_fill(padded, PADDED)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else functional.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    parts = {"__module__": __name__, "__doc__": stock.__doc__, "forward": _signed(forward, signature)}
    return type(name, (stock,), parts)


def saved_model_class(name: str, model_type: str) -> Any:
    """Return the class of this library, otherwise that of transformers, that a saved model names; None if unknown."""
    found = choice_class(name)
    if name.endswith(_SUFFIX) and model_type in CONFIG_MAPPING and is_encoder(config := CONFIG_MAPPING[model_type]()):
        found = _mean_pooling(_encoder_class(config))
    return found if found is not None and found.__name__ == name else getattr(transformers, name, None)
