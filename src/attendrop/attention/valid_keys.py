"""Valid keys of an attention call, read from the model's masks and biases."""

from __future__ import annotations

import torch
from torch import Tensor

# A mask hides a key if its entry is this far below the largest of its row. Models write -100 (Swin, beside a learned
# bias), -10000 or less; exp(-64) is 1e-28, and learned biases, such as T5's, spread over less.
_HIDDEN_BELOW = 64.0


def any_last(mask: Tensor) -> Tensor:
    """Compute ``mask.any(-1, keepdim=True)`` of a boolean mask; by the byte maximum a CPU is several times faster."""
    if mask.device.type != "cpu":
        return mask.any(-1, keepdim=True)
    return mask.contiguous().view(torch.uint8).amax(-1, keepdim=True).bool()


def valid_keys_and_bias(
    mask: Tensor | None, position_bias: Tensor | None, causal: bool, shape: tuple[int, int, int, int], query: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Split what the model passes into a boolean mask of valid keys and an additive bias, either None if absent.

    Masks come as booleans (SDPA), as numbers, hugely negative where a key is not valid (eager), or not at all, which
    means "all valid" or, in a causal layer, "not the future".
    """
    if mask is None:
        queries, keys = shape[2:]
        valid = None
        if causal and queries > 1:
            valid = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device).tril()
        return valid, position_bias
    if mask.dtype == torch.bool:
        return mask, position_bias
    return visible_keys(mask.detach()), mask if position_bias is None else mask + position_bias


def after_drop(valid: Tensor | None, drop: Tensor) -> tuple[Tensor, Tensor]:
    """Find the keys that rows attend to after positions are dropped; ``valid`` is None where all keys are.

    Returns:
        The keys, and the rows that are dropped whole, ``(..., query, 1)``: these attend to all their valid keys,
        equally. A row without any valid key is unchanged.
    """
    if valid is None:
        whole = ~any_last(~drop)
        return ~drop | whole, whole
    kept = valid & ~drop
    whole = ~any_last(kept) & any_last(valid)
    return torch.where(whole, valid, kept), whole


def hidden_keys(kept: Tensor, valid: Tensor | None) -> Tensor:
    """Find the scores to set to minus infinity: none in a row without any valid key, which would become NaN."""
    return ~kept if valid is None else ~kept & any_last(valid)


def real_tokens(mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Find the tokens that are not padding by a model's ``attention_mask``, boolean ``(sequences, n)``.

    ``tokens``, ``(sequences, n, ...)``, has their number and device. Without a mask, all are real. In one that is
    ready for scores, ``(sequences, 1, 1 or query, n)``, boolean or additive, a token is padding if no query sees it.
    """
    shape = tokens.shape[:2]
    if mask is not None and mask.ndim == 4:
        seen = mask if mask.dtype == torch.bool else visible_keys(mask.detach())
        return seen.any(1).any(1).expand(shape)
    if mask is not None and mask.numel() == shape.numel():  # several choices of a row are a dimension of the mask
        return mask.reshape(shape).bool()
    return torch.ones(shape, dtype=torch.bool, device=tokens.device)


def visible_keys(mask: Tensor) -> Tensor:
    """Find the keys that an additive mask, possibly with a bias, does not hide from softmax.

    A key is hidden if its entry is far below the largest of its row, whatever value a model uses for masking. A row
    whose entries are all far below zero has no valid key.
    """
    largest = mask.amax(-1, keepdim=True).clamp(min=0)
    return mask > largest - _HIDDEN_BELOW
