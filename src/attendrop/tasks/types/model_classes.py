"""Model classes of this library: for the mean of an encoder's tokens, and for different numbers of choices.

Encoders such as MiniLM were trained so that the mean over the tokens holds the meaning of a text; their classes in
transformers read the first token. Where an architecture has the option itself, its own class is used. Classes for
multiple choice in transformers need as many choices in each row; here, padded choices are hidden.
"""

from __future__ import annotations

import inspect
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from torch.nn import functional
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
)
from transformers.utils.generic import can_return_tuple

from attendrop.errors import AttendropError
from attendrop.tasks.types import modeling_mean_pooling
from attendrop.tasks.types.modeling_mean_pooling import (
    MeanPooling,
    MeanPoolingConfig,
    MeanPoolingForSequenceClassification,
)

# The name that ModernBERT and others give to the option.
_OPTION = "classifier_pooling"
# Ends like the names of transformers' classes, from which the loss is derived.
_SUFFIX = "MeanPoolingForSequenceClassification"
# Attribute of the configuration of an encoder whose vector of a text is the hidden state of the first token.
FIRST_TOKEN = "attendrop_first_token"
MODELING_FILE = Path(modeling_mean_pooling.__file__)  # saved beside the weights of classifiers of the mean
# So transformers loads folders of these classes, too, and never with code that it finds there.
AutoConfig.register(MeanPoolingConfig.model_type, MeanPoolingConfig)
AutoModelForSequenceClassification.register(MeanPoolingConfig, MeanPoolingForSequenceClassification)


class _FamilyMeanPooling(MeanPooling):
    """Part of a class for a family of encoders, which keeps the family's configuration while it is in memory."""

    def __init__(self, config: Any) -> None:
        setattr(config, _OPTION, "mean")
        super().__init__(config)  # type: ignore[call-arg]
        self.add_encoder(config)

    def save_pretrained(
        self, save_directory: str | Path, is_main_process: bool = True, push_to_hub: bool = False, **options: Any
    ) -> None:
        """Save the model as a ``MeanPoolingForSequenceClassification``, with the file that defines this class.

        A class of transformers would take a folder of its own family for its own, and give it a random head.
        """
        if push_to_hub:
            raise AttendropError("save_pretrained of a classifier of the mean does not upload; use push_to_hub().")
        super().save_pretrained(save_directory, is_main_process, **options)  # type: ignore[misc]
        if is_main_process:
            saved, module = MeanPoolingConfig(self.config.to_diff_dict(), dtype=self.config.dtype), MODELING_FILE.stem
            saved.architectures = [MeanPoolingForSequenceClassification.__name__]
            saved.auto_map = {
                "AutoConfig": f"{module}.{MeanPoolingConfig.__name__}",
                "AutoModelForSequenceClassification": f"{module}.{MeanPoolingForSequenceClassification.__name__}",
            }
            saved.save_pretrained(save_directory)
            shutil.copyfile(MODELING_FILE, Path(save_directory, MODELING_FILE.name))


def read_config(place: str) -> PreTrainedConfig:
    """Load the configuration of a model, given its folder or hub id; of a classifier of the mean, its family's."""
    config: Any = AutoConfig.from_pretrained(place, trust_remote_code=False)
    return config.encoder if isinstance(config, MeanPoolingConfig) else config


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
    elif hasattr(type(config), _OPTION):
        setattr(config, _OPTION, getattr(type(config), _OPTION))
    else:
        delattr(config, _OPTION)


def mean_pooling_class(config: PreTrainedConfig) -> Any:
    """Return the class for a configuration that asks for the mean; None if a class of transformers does it."""
    if pooling_of(config) != "mean" or hasattr(type(config), _OPTION):
        return None
    return _mean_pooling(_encoder_class(config))


def is_encoder(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is of an encoder of text, whose tokens all see one another."""
    kind = config.model_type
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    one_way = causal or config.is_encoder_decoder or getattr(config, "is_decoder", False)
    return not one_way and type(config) in MODEL_MAPPING and hasattr(config, "hidden_size")


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
    *own, _ = inspect.signature(MeanPooling.forward).parameters.values()
    others = [
        parameter if parameter.kind is parameter.VAR_KEYWORD else parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(encoder.forward).parameters.values()
        if parameter.name not in {each.name for each in own}
    ]
    parts = {
        "__module__": __name__,
        "__doc__": f"{encoder.__name__} with a linear layer on the mean of its last hidden states.",
        "forward": _signed(MeanPooling.forward, inspect.Signature([*own, *others])),
    }
    return type(encoder.__name__.removesuffix("Model") + _SUFFIX, (_FamilyMeanPooling, family), parts)


def _signed(forward: Any, signature: inspect.Signature) -> Any:
    """Return a forward method, which may also return a tuple, with a signature, where the trainer looks for inputs."""
    either: Any = can_return_tuple(forward)  # type: ignore[no-untyped-call]
    either.__signature__ = signature
    return either


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

    return type(
        name, (stock,), {"__module__": __name__, "__doc__": stock.__doc__, "forward": _signed(forward, signature)}
    )


def saved_model_class(name: str, model_type: str) -> Any:
    """Return the class of this library, otherwise that of transformers, that a saved model names; None if unknown."""
    found = choice_class(name)
    if name.endswith(_SUFFIX) and model_type in CONFIG_MAPPING and is_encoder(config := CONFIG_MAPPING[model_type]()):
        found = _mean_pooling(_encoder_class(config))
    return found if found is not None and found.__name__ == name else getattr(transformers, name, None)
