"""Perturbations of the word embeddings of one pass, and the gradients of a loss that determine perturbations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attendrop.attention.edits import real_tokens
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of
from attendrop.methods.core.context import StepContext
from attendrop.randomness.keyed_random import SampleKey, uniform


class WordPlan(Plan):
    """Plan that changes the word embeddings of a pass once: in an encoder-decoder model, those of the encoder.

    ``change`` gets the word embeddings, ``(batch, n, width)``, and which tokens are not padding, ``(batch, n)``, and
    returns the changed embeddings.
    """

    acts_on = frozenset({"embeddings"})

    def __init__(self, context: StepContext, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.context = context
        self.change = change
        self._changed = False

    def embed(self, embedded: Tensor) -> Tensor:
        if self._changed:  # the decoder shares the embedding
            return embedded
        self._changed = True
        return self.change(embedded, real_tokens(self.context.inputs.get("attention_mask"), embedded))


def token_uniform(key: SampleKey, name: str, valid: Tensor) -> Tensor:
    """Sample a number from (0, 1) for each token, ``(batch, n)``, counted from the first that is ``valid``."""
    first = valid.int().argmax(-1)
    origins = torch.stack([torch.zeros_like(first), first], -1)
    rows, length = valid.shape
    return uniform(key, name, (rows, 1, 1, length), origins, valid.device).view(rows, length)


def loss_gradients(loss: Tensor, units: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Differentiate a model's loss, keeping its graph, with respect to ``units``, without overflow in float16.

    Zero where the loss does not depend on a unit. Raises AttendropError if the gradients are not finite.
    """
    keys, tensors = list(units), list(units.values())
    return finite_gradients(lambda factor: gradients_of(loss * factor, keys, tensors, keep_graph=True), model)
