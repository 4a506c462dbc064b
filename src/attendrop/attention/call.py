"""One call of an attention layer, as plans see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attendrop.attention.layers import AttentionLayer


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
