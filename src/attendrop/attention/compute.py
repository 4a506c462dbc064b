"""Computation of one attention layer: the model's masks and biases in one form, with edits applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv

from attendrop.attention.edits import AttentionEdit
from attendrop.errors import AttendropError

# Keywords that change the scores in a way that is not implemented here; a value other than None is refused.
_UNSUPPORTED_KEYWORDS = ("s_aux", "sinks", "indices", "block_indices", "cache")
# How far below the largest entry of its row a mask hides a key. Models write -100 (Swin, beside a learned bias), -10000
# or less; exp(-64) is 1e-28, and biases that are learned, such as T5's, spread over less.
_HIDDEN_BELOW = 64.0


class AttentionComputation:
    """One call of an attention layer, with the model's masks and biases brought to one form.

    Shapes: query ``(batch, heads, query, dim)``, key and value ``(batch, heads, key, dim)`` (heads of grouped-query
    models repeated), ``valid`` and ``bias`` broadcastable to ``(batch, heads, query, key)``.
    """

    def __init__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: Mapping[str, Any],
    ) -> None:
        for name in _UNSUPPORTED_KEYWORDS:
            if kwargs.get(name) is not None:
                raise AttendropError(
                    f"{type(module).__name__} passes '{name}' to its attention, which this library does not implement; "
                    "the model cannot be regularised."
                )
        self.query = query
        self.key = repeat_kv(key, query.shape[1] // key.shape[1])
        self.value = repeat_kv(value, query.shape[1] // value.shape[1])
        self.scale: float = query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else kwargs["scaling"]
        self.dropout: float = kwargs.get("dropout") or 0.0
        self.softcap: float | None = kwargs.get("softcap")
        self.shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        self.valid, self.bias = _valid_and_bias(mask, kwargs.get("position_bias"), bool(causal), self.shape, query)

    def attend(self, edit: AttentionEdit) -> tuple[Tensor, Tensor | None]:
        """Return the output ``(batch, query, heads, dim)`` and, where they were computed, the weights."""
        weights = None
        if edit.inputs is not None:
            self.query, self.key, self.value = edit.inputs(self.query, self.key, self.value)
        if edit.dropout is not None:
            self.dropout = edit.dropout
        if self._needs_weights(edit):
            weights = self._weights_after(edit)
            output = weights @ self.value
        elif edit.constant:
            output = self._uniform() @ self.value
            output = output.expand(*output.shape[:2], self.shape[2], -1)
        else:
            output = self._fused(edit.drop)
        if (weights is not None or edit.constant) and self.valid is not None:
            # To a row that the mask leaves no key at all (left padding under a causal mask) SDPA gives zeros.
            output = output.masked_fill(self._without_keys(self.valid), 0)
        output = output.transpose(1, 2).contiguous()
        return output if edit.output is None else edit.output(output), weights

    def _needs_weights(self, edit: AttentionEdit) -> bool:
        """Return whether the weights must be computed explicitly.

        On a CPU, SDPA with dropout is its slow reference path; the explicit form is faster and samples alike.
        """
        if edit.replace is not None or edit.weights is not None:
            return True
        if edit.constant:
            return self.dropout > 0
        return self.softcap is not None or (self.dropout > 0 and self.query.device.type == "cpu")

    def _weights_after(self, edit: AttentionEdit) -> Tensor:
        if edit.replace is not None:
            return edit.replace.to(self.value.dtype)
        if edit.constant:
            weights = functional.dropout(self._uniform().expand(self.shape), self.dropout)
        else:
            weights = self._weights(edit.drop)
        return weights if edit.weights is None else edit.weights(weights)

    def _fused(self, drop: Tensor | None) -> Tensor:
        query, valid, bias = self._masked(drop)
        mask = valid
        if bias is not None:
            mask = bias if valid is None else bias.masked_fill(self._hidden(valid), -torch.inf)
        return functional.scaled_dot_product_attention(
            query, self.key, self.value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )

    def _weights(self, drop: Tensor | None) -> Tensor:
        query, valid, bias = self._masked(drop)
        scores = (query * self.scale) @ self.key.transpose(-1, -2)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            # A row of minus infinity alone would be NaN.
            scores = scores + bias.clamp(min=torch.finfo(bias.dtype).min)
        if valid is not None:
            # Adding takes a CPU less time than filling in, and none in the backward pass.
            zero = torch.zeros((), dtype=scores.dtype, device=scores.device)
            scores += torch.where(self._hidden(valid), -torch.inf, zero)
        half = scores.dtype in (torch.float16, torch.bfloat16)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
        return functional.dropout(weights.to(self.value.dtype), self.dropout)

    def _uniform(self) -> Tensor:
        """Make equal weights, ``(batch or 1, 1, query or 1, key)``; zero in a row without any valid key."""
        if self.valid is None:
            return self.value.new_full((1, 1, 1, self.shape[3]), 1 / self.shape[3])
        # Half precision counts exactly to 256 only.
        weights = self.valid / self.valid.sum(-1, keepdim=True).clamp(min=1)
        return weights.to(self.value.dtype)

    def _hidden(self, valid: Tensor) -> Tensor:
        """Find the scores to set to minus infinity: none in a row without any valid key, which would become NaN."""
        return ~valid if self.valid is None else ~valid & any_last(self.valid)

    def _without_keys(self, valid: Tensor) -> Tensor:
        """Find the rows without any key; large finite negatives are keys: softmax of equal scores is uniform."""
        if self.bias is None:
            return ~any_last(valid)
        return self.bias.amax(-1, keepdim=True) == -torch.inf

    def _masked(self, drop: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply ``drop`` to query, valid keys and bias.

        A row that is dropped whole is made constant by taking its query and its bias to zero and its mask back to the
        valid keys: softmax of equal scores is exactly ``1/n_valid``. A row without any valid key stays as it was.
        """
        if drop is None:
            return self.query, self.valid, self.bias
        valid = self.valid
        kept = ~drop if valid is None else valid & ~drop
        constant = ~any_last(kept) if valid is None else ~any_last(kept) & any_last(valid)
        query = self.query.masked_fill(constant, 0)
        bias = None if self.bias is None else self.bias.expand(self.shape).masked_fill(constant, 0)
        if valid is None:
            return query, kept | constant, bias
        return query, torch.where(constant, valid, kept), bias


def any_last(mask: Tensor) -> Tensor:
    """Compute ``mask.any(-1, keepdim=True)`` of a boolean mask, by the byte maximum: several times faster on a CPU."""
    return mask.contiguous().view(torch.uint8).amax(-1, keepdim=True).bool()


def _valid_and_bias(
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
    return _visible(mask.detach()), mask if position_bias is None else mask + position_bias


def _visible(mask: Tensor) -> Tensor:
    """Find the keys that an additive mask, alone or with a bias, leaves visible to softmax.

    That depends on how far an entry is below the largest of its row, not on the number that a model writes there. In a
    row whose entries are all far below zero no key is valid.
    """
    largest = mask.amax(-1, keepdim=True).clamp(min=0)
    return mask > largest - _HIDDEN_BELOW
