"""What plans that drop attention at random have in common."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.methods.context import StepContext
from attendrop.sampling import SampleKey, sample_mask, uniform


def dropout(values: Tensor, p: float, key: SampleKey, name: str, origins: Tensor) -> Tensor:
    """Set elements of ``(batch, heads, rows, columns)`` to zero with probability ``p``, and divide others by ``1 - p``.

    See :func:`attendrop.sampling.draw`.
    """
    batch, heads, rows, columns = values.shape
    return values.masked_fill(sample_mask(p, key, name, (batch, heads, rows, columns), origins, values.device), 0) / (
        1 - p
    )


class RandomMaskPlan(Plan):
    """A plan that draws what is dropped at some sites, and reports it.

    The edit of each site is made when the site first runs, and kept: under activation checkpointing it runs again.

    Args:
        context: The micro-batch.
        keys: Keys of the sites to act on.
    """

    acts_on = frozenset({"attention"})

    def __init__(self, context: StepContext, keys: Collection[str]) -> None:
        super().__init__()
        self.context = context
        self.keys = keys
        self.edits: dict[str, AttentionEdit] = {}
        self._origins: dict[str, tuple[Tensor | None, Tensor]] = {}

    def wants(self, layer: AttentionLayer) -> bool:
        return layer.key in self.keys

    def edit(self, call: AttentionCall) -> AttentionEdit:
        key = call.layer.key
        if key not in self.edits:
            self.edits[key] = self.make(call)
        return self.edits[key]

    def make(self, call: AttentionCall) -> AttentionEdit:
        """Make the edit of a site."""
        raise NotImplementedError

    def origins(self, call: AttentionCall) -> Tensor:
        """Return ``call.origins()``, remembered by kind: layers of a kind mostly share their mask."""
        kind, batch = call.layer.kind, call.shape[0]
        mask, origins = self._origins.get(kind, (None, None))
        if origins is None or mask is not call.valid or len(origins) != batch:
            origins = call.origins()
            self._origins[kind] = (call.valid, origins)
        return origins

    def sample(self, p: float | Tensor, call: AttentionCall) -> Tensor:
        """Draw each position of each head with probability ``p``, ``(batch, heads, query, key)``."""
        return sample_mask(p, self.context.key, call.layer.key, call.shape, self.origins(call), call.device)

    def sample_heads(self, p: float | Tensor, call: AttentionCall) -> Tensor:
        """Draw each head of each sequence with probability ``p``, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        origins = torch.zeros(batch, 2, dtype=torch.long, device=call.device)
        return sample_mask(p, self.context.key, call.layer.key, (batch, heads, 1, 1), origins, call.device)

    def uniform_heads(self, call: AttentionCall) -> Tensor:
        """Draw a number from (0, 1) for each head of each sequence, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        origins = torch.zeros(batch, 2, dtype=torch.long, device=call.device)
        return uniform(self.context.key, call.layer.key, (batch, heads, 1, 1), origins, call.device)

    def sample_hidden(self, p: float, call: AttentionCall, units: int) -> Tensor:
        """Draw each hidden unit of each query with probability ``p``, ``(batch, 1, query, units)``."""
        origins = self.origins(call) * torch.tensor([1, 0], device=call.device)  # units are counted from the first
        shape = (call.shape[0], 1, call.shape[2], units)
        return sample_mask(p, self.context.key, call.layer.key, shape, origins, call.device)

    def uniform(self, call: AttentionCall) -> Tensor:
        """Draw a number from (0, 1) for each position of each head, ``(batch, heads, query, key)``."""
        return uniform(self.context.key, call.layer.key, call.shape, self.origins(call), call.device)

    def without_heads(self, call: AttentionCall, drop: Tensor, scale: float | Tensor = 1.0) -> AttentionEdit:
        """Take whole heads away, multiply the others by ``scale``, and report how many heads of sequences went.

        Args:
            call: The site.
            drop: ``(batch, heads, 1, 1)``, True at what is dropped.
            scale: Broadcastable to ``drop``.
        """
        self.context.report(call.layer.key, drop.sum(), torch.full((), drop.numel(), device=drop.device))
        factor = (~drop * scale).transpose(1, 2)
        return AttentionEdit(output=lambda output: output * factor.to(output.dtype))

    def report(self, call: AttentionCall, drop: Tensor, rows: Tensor | None, valid: Tensor | None) -> None:
        """Count what was dropped, of the valid positions in the ``rows`` where something could be (None: in all).

        Args:
            call: The site.
            drop: ``(batch, heads, query, key)``, True at what was dropped; False where ``valid`` is.
            rows: Broadcastable to ``(batch, heads, query, 1)``.
            valid: Broadcastable to ``drop``; None for everywhere.
        """
        columns = torch.tensor(drop.shape[-1]) if valid is None else valid.sum(-1, keepdim=True)
        # Bytes add up faster than booleans. Padding rows have candidates where attention weights themselves rank them.
        dropped = drop.view(torch.uint8).sum(-1, keepdim=True, dtype=torch.int32)
        if rows is None:
            rows = torch.ones(1, dtype=torch.bool, device=drop.device)
        possible = (rows * columns.to(drop.device)).expand(*drop.shape[:-1], 1).sum()
        self.context.report(call.layer.key, (dropped * rows).sum(), possible)
