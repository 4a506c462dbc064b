"""Edits of one call of an attention layer, or of one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from attendrop.attention.layers import AttentionLayer
from attendrop.errors import AttendropError


@dataclass(frozen=True)
class BlockEdit:
    """Changes at one block.

    Attributes:
        skip: Whether the block is left out: its output is its input.
        activations: Function that replaces the activations of the feed-forward, ``(batch, n, inner width)``.
        feed_forward: Function that replaces the output of the feed-forward's last projection, ``(batch, n, width)``.
        output: Function that replaces the hidden states that leave the block, ``(batch, n, width)``.
    """

    skip: bool = False
    activations: Callable[[Tensor], Tensor] | None = None
    feed_forward: Callable[[Tensor], Tensor] | None = None
    output: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention layer: shapes and valid keys.

    Attributes:
        layer: The attention layer.
        shape: ``(batch, heads, query, key)``.
        valid: Boolean, broadcastable to ``shape``, True where a key may be attended to; None means everywhere.
        device: Device of the scores.
    """

    layer: AttentionLayer
    shape: tuple[int, int, int, int]
    valid: Tensor | None
    device: torch.device

    def origins(self) -> Tensor:
        """Find the first query and the first key of each sequence that are not padding, ``(batch, 2)``.

        In self-attention both are the first key that any query may attend to; in cross-attention the first query is 0.
        """
        batch = self.shape[0]
        if self.valid is None:
            return torch.zeros(batch, 2, dtype=torch.long, device=self.device)
        first = self.valid.any(1).any(1).expand(batch, -1).int().argmax(-1)
        return torch.stack([torch.zeros_like(first) if self.layer.kind == "cross" else first, first], -1)

    def valid_queries(self) -> Tensor | None:
        """Find the query positions that are not padding, ``(batch, 1, query, 1)``; None means all, or not known.

        A position of self-attention is padding if nothing may attend to it.
        """
        if self.valid is None or self.layer.kind == "cross" or self.shape[2] != self.shape[3]:
            return None
        return self.valid.any(-2, keepdim=True).transpose(-1, -2)


@dataclass(frozen=True)
class AttentionEdit:
    """Changes in one call of an attention layer. ``replace`` excludes ``weights`` and ``constant``.

    Attributes:
        drop: Boolean, broadcastable to ``(batch, heads, query, key)``; True sets the score to minus infinity. A row
            whose valid keys are all dropped attends to all of them equally.
        weights: Function that replaces the attention weights, after softmax and the model's own dropout.
        replace: Attention weights to use; none are then computed, and the model's own dropout does not act.
        constant: Every row attends equally to its valid keys (Eq. 4 of Wu et al., 2021), as if all were dropped;
            queries and keys are not multiplied. The model's own dropout acts on the equal weights.
        output: Function that replaces the outputs of the heads, ``(batch, query, heads, dim)``, before the output
            projection.
        inputs: Function that replaces queries, keys and values, each ``(batch, heads, n, dim)``.
        dropout: Probability of the dropout of attention weights, in place of the model's own.
    """

    drop: Tensor | None = None
    weights: Callable[[Tensor], Tensor] | None = None
    replace: Tensor | None = None
    constant: bool = False
    output: Callable[[Tensor], Tensor] | None = None
    inputs: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    dropout: float | None = None


def chain(functions: Sequence[Callable[[Tensor], Tensor] | None]) -> Callable[[Tensor], Tensor] | None:
    """Compose functions in the order of their calls, without those that are None; None if all are."""
    found = [function for function in functions if function is not None]
    if len(found) < 2:
        return found[0] if found else None

    def call_all(tensor: Tensor) -> Tensor:
        for function in found:
            tensor = function(tensor)
        return tensor

    return call_all


def merge_edits(edits: Sequence[AttentionEdit]) -> AttentionEdit | None:
    """Combine several edits into one; None if there are none.

    Raises:
        AttendropError: Two set the same thing.
    """
    if len(edits) < 2:
        return edits[0] if edits else None
    dropouts = [edit.dropout for edit in edits if edit.dropout is not None]
    if len(dropouts) > 1 or any(edit.replace is not None for edit in edits):
        raise AttendropError("Two methods both decide on the attention weights of one layer; use one of them.")
    drops = [edit.drop for edit in edits if edit.drop is not None]
    inputs = [edit.inputs for edit in edits if edit.inputs is not None]

    def change(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for function in inputs:
            query, key, value = function(query, key, value)
        return query, key, value

    return AttentionEdit(
        drop=reduce(torch.logical_or, drops) if drops else None,
        weights=chain([edit.weights for edit in edits]),
        constant=any(edit.constant for edit in edits),
        output=chain([edit.output for edit in edits]),
        inputs=change if inputs else None,
        dropout=dropouts[0] if dropouts else None,
    )
