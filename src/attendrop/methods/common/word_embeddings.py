"""Changes of the word embeddings of one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from attendrop.attention.plan import Plan
from attendrop.batches import Batch
from attendrop.keyed_random import SampleKey, normal, uniform
from attendrop.methods.core.context import StepContext

NOISES = ("uniform", "normal")


class WordPlan(Plan):
    """Plan that changes the word embeddings of a pass once: in an encoder-decoder model, those of the encoder.

    A subclass overrides :meth:`change`.

    Args:
        context: The micro-batch.
    """

    acts_on = frozenset({"embeddings"})

    def __init__(self, context: StepContext) -> None:
        super().__init__()
        self.context = context
        self._changed = False

    def embed(self, embedded: Tensor) -> Tensor:
        if self._changed:  # the decoder shares the embedding
            return embedded
        self._changed = True
        return self.change(embedded, valid_tokens(self.context.batch, embedded))

    def change(self, embedded: Tensor, valid: Tensor) -> Tensor:
        """Change embeddings ``(batch, n, width)``; ``valid`` is ``(batch, n)``, False at padding."""
        raise NotImplementedError


class Perturbation(WordPlan):
    """Plan that adds a perturbation ``(batch, n, width)`` to the word embeddings.

    Args:
        context: The micro-batch.
        added: The perturbation; None to only keep the embeddings, as :attr:`embedded`.
    """

    def __init__(self, context: StepContext, added: Tensor | None = None) -> None:
        super().__init__(context)
        self.added = added
        self.embedded: Tensor | None = None
        self.valid: Tensor | None = None

    def change(self, embedded: Tensor, valid: Tensor) -> Tensor:
        self.embedded, self.valid = embedded, valid
        return embedded if self.added is None else embedded + self.added.to(embedded.dtype)


def valid_tokens(batch: Batch, embedded: Tensor) -> Tensor:
    """Return which tokens of ``embedded``, ``(batch, n, width)``, are not padding, ``(batch, n)``."""
    mask = batch.get("attention_mask")
    if mask is None or mask.numel() != embedded.shape[0] * embedded.shape[1]:
        return torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
    valid: Tensor = mask.reshape(embedded.shape[:2]).bool()  # several choices per row are a dimension of the mask
    return valid


def word_noise(kind: str, key: SampleKey, name: str, valid: Tensor, width: int) -> Tensor:
    """Sample noise for each element of word embeddings, ``(batch, n, width)``, in float32; zero at padding.

    Args:
        kind: ``"uniform"``, from (-1, 1); or ``"normal"``, with a standard deviation of 1.
        key: Key of the samples.
        name: Name of the samples.
        valid: Tokens that are not padding, ``(batch, n)``.
        width: Width of the embeddings.
    """
    batch, length = valid.shape
    first = valid.int().argmax(-1)
    origins = torch.stack([first, torch.zeros_like(first)], -1)
    shape = (batch, 1, length, width)
    if kind == "uniform":
        sampled = uniform(key, name, shape, origins, valid.device) * 2 - 1
    else:
        sampled = normal(key, name, shape, origins, valid.device)
    return sampled.squeeze(1) * valid[..., None]
