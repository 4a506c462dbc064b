"""Multiple choice with rows of different numbers of choices: classes of transformers that hide padded choices.

The classes have the names, the weights and the inputs of those in transformers, and the same outputs where no choice is
padded.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

# Logit of a padded choice: its probability is 0 in any dtype, and differences of its log-probabilities stay finite.
PADDED = -1e4


class HidesPaddedChoices:
    """Part of a model class: a choice without a token that is not padding never wins, and does not enter the loss."""

    def choose(self, attention_mask: Tensor | None, labels: Tensor | None, **inputs: Any) -> MultipleChoiceModelOutput:
        """Compute the logits of the choices, and with ``labels`` the cross-entropy.

        Args:
            attention_mask: ``(rows, choices, tokens)``; None: nothing is padding.
            labels: Numbers of the correct choices, ``(rows,)``.
            **inputs: Other inputs of the model.
        """
        padded = None if attention_mask is None else ~attention_mask.bool().any(-1)
        if attention_mask is not None and padded is not None:
            attention_mask = attention_mask.clone()
            attention_mask[..., 0] += padded.to(attention_mask.dtype)  # softmax over no key at all is undefined
        outputs = super().forward(attention_mask=attention_mask, return_dict=True, **inputs)  # type: ignore[misc]
        logits = outputs.logits if padded is None else outputs.logits.masked_fill(padded, PADDED)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else functional.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def find_choice_class(name: str) -> Any:
    """Return the class that hides padded choices, by the name of the class of transformers; None for other models."""
    import transformers

    known = name in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values()
    return choice_class(getattr(transformers, name)) if known else None


@cache
def choice_class(stock: Any) -> Any:
    """Make a class that hides padded choices, from a class of transformers for multiple choice."""
    parts = {"__module__": __name__, "__doc__": stock.__doc__, "forward": _forward(stock)}
    return type(stock.__name__, (HidesPaddedChoices, stock), parts)


def _forward(stock: Any) -> Any:
    """Make a forward method with the signature of the class of transformers, where the trainer looks."""
    signature = inspect.signature(stock.forward)

    def forward(self: Any, *args: Any, **inputs: Any) -> Any:
        _, *names = signature.parameters
        named = dict(zip(names, args, strict=False)) | inputs
        return self.choose(named.pop("attention_mask", None), named.pop("labels", None), **named)

    either: Any = can_return_tuple(forward)  # type: ignore[no-untyped-call]
    either.__signature__ = signature
    return either
