"""Queries that are not padding, as far as the attention mask and the batch tell."""

from __future__ import annotations

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attribution.label_positions import IGNORED
from attendrop.batches import Batch


def real_queries(call: AttentionCall, batch: Batch) -> Tensor:
    """Find the queries that are not padding, ``(batch, 1, query, 1)``.

    The mask of an attention layer does not tell that of a padded target in an encoder-decoder model, nor of a padded
    choice. Neither changes the loss.

    Args:
        call: The call of the layer.
        batch: Inputs of the model, with labels.
    """
    size, _, length, _ = call.shape
    rows = call.valid_queries()
    real = torch.ones(size, 1, length, 1, dtype=torch.bool, device=call.device)
    if rows is not None:
        real = real & rows.any(1, keepdim=True)
    mask: Tensor | None = batch.get("attention_mask")
    if mask is not None and mask.ndim == 3 and mask.shape[:2].numel() == size:  # (rows, choices, tokens)
        real = real & mask.bool().any(-1).view(-1, 1, 1, 1)
    targets = None if call.layer.kind == "encoder" else real_targets(batch)
    if targets is not None and targets.shape == (size, length):
        real = real & targets[:, None, :, None]
    return real


def real_targets(batch: Batch) -> Tensor | None:
    """Find the inputs of a decoder that are not padding, ``(batch, n)``; None if the batch does not tell.

    Models make them from the labels of tokens, or else from the text itself (BART as a classifier).
    """
    mask: Tensor | None = batch.get("decoder_attention_mask")
    if mask is not None:
        return mask.bool()
    labels: Tensor | None = batch.get("labels")
    if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
        return up_to_last(labels != IGNORED)
    mask = batch.get("attention_mask")
    return None if mask is None or mask.ndim != 2 or "decoder_input_ids" in batch else up_to_last(mask.bool())


def up_to_last(marked: Tensor) -> Tensor:
    """Mark the positions up to the last marked one in each row; later ones of a decoder change nothing before them."""
    return marked.flip(-1).cumsum(-1).flip(-1) > 0
