"""Attention under an edit, for layers that call transformers' attention interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import repeat_kv

from attendrop.attention.plan import (
    AttentionCall,
    AttentionEdit,
    Plan,
    ReadyMask,
    after_drop,
    hidden_keys,
    visible_keys,
)
from attendrop.errors import AttendropError
from attendrop.randomness.candidates import any_last, pack, unpack
from attendrop.randomness.device_path import on_cpu

# Queries, keys, values, and the mask.
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]
# Keywords that change the scores in a way that is not implemented here; a value other than None is refused.
_UNSUPPORTED_KEYWORDS = ("s_aux", "sinks", "indices", "block_indices", "cache")


class AttentionComputation:
    """One call of an attention layer, with the model's masks and biases in a uniform format.

    Shapes: query ``(batch, heads, query, dim)``, key and value ``(batch, heads, key, dim)`` (heads of grouped-query
    models repeated), ``valid`` and ``bias`` broadcastable to ``(batch, heads, query, key)``.

    Eager attention is causal by its mask alone, and returns its weights, which the model may hand to its caller.
    """

    def __init__(self, module: nn.Module, tensors: Inputs, kwargs: dict[str, Any], *, eager: bool) -> None:
        query, key, value, mask = tensors
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
        self.eager = eager
        # Masks come as booleans (SDPA), as numbers, hugely negative where a key is not valid (eager), or not at all:
        # then all are valid, or in a causal layer those that are not in the future.
        self.valid, self.bias = mask, kwargs.get("position_bias")
        if mask is None:
            causal, (queries, keys) = kwargs.get("is_causal"), self.shape[2:]
            causal = not eager and bool(getattr(module, "is_causal", True) if causal is None else causal)
            if causal and queries > 1:
                self.valid = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device).tril()
        elif mask.dtype != torch.bool:
            self.valid = visible_keys(mask.detach())
            self.bias = mask if self.bias is None else mask + self.bias

    def attend(self, edit: AttentionEdit) -> tuple[Tensor, Tensor | None]:
        """Return the output ``(batch, query, heads, dim)`` and, where they were computed, the weights."""
        self.dropout = self.dropout if edit.dropout is None else edit.dropout
        if edit.inputs is not None:
            self.query, self.key, self.value = edit.inputs(self.query, self.key, self.value)
        if edit.values is not None:
            edit.values(self.value)
        weights = None
        explicit = self.eager or edit.weights is not None
        if edit.constant:
            explicit |= self.dropout > 0
        else:  # on a CPU, SDPA with dropout is its slow reference path; the explicit form is faster and samples alike
            explicit |= self.softcap is not None or (self.dropout > 0 and on_cpu(self.query.device))
        if explicit:
            weights = edit.drop_weights(self._weights(edit), self.dropout)
            output = weights @ self.value
        elif edit.constant:
            output = self._uniform() @ self.value
            output = output.expand(*output.shape[:2], self.shape[2], -1)
        else:
            output = self._fused(edit)
        if (weights is not None or edit.constant) and self.valid is not None:
            # For a row without any valid key (left padding under a causal mask), SDPA returns zeros. Large finite
            # negatives are keys: softmax of equal scores is uniform.
            lost = ~any_last(self.valid) if self.bias is None else self.bias.amax(-1, keepdim=True) == -torch.inf
            output = output.masked_fill(lost, 0)
        output = output.transpose(1, 2).contiguous()
        return output if edit.output is None else edit.output(output), weights

    def _fused(self, edit: AttentionEdit) -> Tensor:
        drop, queries, keys, width = edit.drop, *self.shape[2:], self.query.shape[-1]
        # Whether the kernel runs again in the backward pass: a mask would take more memory than its inputs.
        recomputes = torch.is_grad_enabled() and queries * keys > (queries + 2 * keys) * width
        if drop is None or not recomputes or (edit.ready is not None and self.bias is None):
            return self._scaled_dot_product(edit, drop)
        bits = pack(drop.expand(self.shape))
        return checkpoint(  # type: ignore[no-any-return]
            lambda *_: self._scaled_dot_product(edit, unpack(*bits)),
            self.query,
            self.key,
            self.value,
            use_reentrant=False,
            preserve_rng_state=self.dropout > 0,
        )

    def _scaled_dot_product(self, edit: AttentionEdit, drop: Tensor | None) -> Tensor:
        if drop is not None and self.bias is None:
            ready = edit.ready or ReadyMask.of(
                self.valid, drop, self.shape, self.query.dtype, whole_rows=not edit.in_part
            )
            # A product keeps the layout of the queries, so that the output need not be copied.
            query = self.query if ready.queries is None else self.query * ready.queries
            mask: Tensor | None = ready.additive
        else:
            query, mask, bias = self._masked(edit, drop)
            if bias is not None:
                mask = bias if mask is None else bias.masked_fill(hidden_keys(mask, self.valid), -torch.inf)
        return functional.scaled_dot_product_attention(
            query, self.key, self.value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )

    def _weights(self, edit: AttentionEdit) -> Tensor:
        if edit.constant:
            return self._uniform().expand(self.shape)
        query, valid, bias = self._masked(edit, edit.drop)
        scores = (query * self.scale) @ self.key.transpose(-1, -2)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            # A row of minus infinity alone would be NaN.
            scores = scores + bias.clamp(min=torch.finfo(bias.dtype).min)
        if valid is not None:
            if edit.in_part and edit.drop is not None:  # which is at valid keys only
                hidden = edit.drop if self.valid is None else edit.drop | hidden_keys(self.valid, self.valid)
            else:
                hidden = hidden_keys(valid, self.valid)
            # On a CPU, adding takes less time than filling in, and none in the backward pass; infinity times 0 is NaN.
            scores.add_(hidden.view(torch.uint8).to(scores.dtype), alpha=torch.finfo(scores.dtype).min)
        half = scores.dtype in (torch.float16, torch.bfloat16)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
        return weights.to(self.value.dtype)

    def _uniform(self) -> Tensor:
        """Make equal weights, ``(batch or 1, 1, query or 1, key)``; zero in a row without any valid key."""
        if self.valid is None:
            return self.value.new_full((1, 1, 1, self.shape[3]), 1 / self.shape[3])
        exact = torch.promote_types(self.value.dtype, torch.float32)  # half precision counts exactly to 256 only
        weights = self.valid / self.valid.sum(-1, keepdim=True, dtype=exact).clamp(min=1)
        return weights.to(self.value.dtype)

    def _masked(self, edit: AttentionEdit, drop: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply ``drop`` to query, valid keys and bias.

        A row that is dropped whole is made constant by setting its query and its bias to zero and its mask to the valid
        keys: softmax of equal scores is exactly ``1/n_valid``. A row without any valid key is unchanged.
        """
        if drop is None:
            return self.query, self.valid, self.bias
        if edit.in_part:
            return self.query, ~drop if self.valid is None else self.valid & ~drop, self.bias
        kept, whole = after_drop(self.valid, drop)
        bias = None if self.bias is None else self.bias.expand(self.shape).masked_fill(whole, 0)
        return self.query.masked_fill(whole, 0), kept, bias


def follow(
    plan: Plan, module: nn.Module, tensors: Inputs, kwargs: dict[str, Any], *, eager: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Compute one attention layer under the plan; None if the plan changes nothing there."""
    layer = plan.locate(module)
    if layer is None or not plan.wants(layer):
        return None
    computation = AttentionComputation(module, tensors, kwargs, eager=eager)
    query, mask = computation.query, tensors[3]
    if computation.valid is not None and computation.valid is not mask:
        computation.valid = plan.shared(mask, computation.valid)
    edit = plan.edit(AttentionCall(layer, computation.shape, computation.valid, query.device, query.dtype))
    return None if edit is None else computation.attend(edit)
