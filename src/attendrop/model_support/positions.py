"""How many positions a model has."""

from __future__ import annotations

from typing import Any

_EMBEDDINGS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")


def position_limit(model: Any) -> int | None:
    """Return the greatest number of tokens that a model's embedding of positions allows; those of patches do not count.

    None if the model has no such embedding: rotary and relative positions have no end.
    """
    from torch import nn

    limits = [
        module.num_embeddings - _reserved(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _EMBEDDINGS and "vis" not in name
    ]
    return min(limits, default=None)


def _reserved(embedding: Any) -> int:
    """Return how many rows no token takes: RoBERTa's begin after the id of the padding, BART's after an offset."""
    if embedding.padding_idx is None:
        return int(getattr(embedding, "offset", 0))
    return int(embedding.padding_idx) + 1
