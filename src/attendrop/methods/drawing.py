"""What plans that drop attention at random have in common."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from attendrop.attention import Plan
from attendrop.masks import DrawKey, draw, origins_of, uniform
from attendrop.methods.base import Pass
from attendrop.scoring import Call, Edit
from attendrop.sites import Site


def dropout(values: Tensor, p: float, key: DrawKey, name: str, origins: Tensor) -> Tensor:
    """Set elements of ``(batch, heads, rows, columns)`` to zero with probability ``p``, and divide others by ``1 - p``.

    See :func:`attendrop.masks.draw`.
    """
    batch, heads, rows, columns = values.shape
    return values.masked_fill(draw(p, key, name, (batch, heads, rows, columns), origins, values.device), 0) / (1 - p)


class Drawing(Plan):
    """A plan that draws what is dropped at some sites, and reports it.

    The edit of each site is made when the site first runs, and kept: under activation checkpointing it runs again.

    Args:
        step: The micro-batch.
        keys: Keys of the sites to act on.
    """

    def __init__(self, step: Pass, keys: Collection[str]) -> None:
        super().__init__()
        self.step = step
        self.keys = keys
        self.edits: dict[str, Edit] = {}
        self._origins: dict[str, tuple[Tensor | None, Tensor]] = {}

    def wants(self, site: Site) -> bool:
        return site.key in self.keys

    def edit(self, call: Call) -> Edit:
        key = call.site.key
        if key not in self.edits:
            self.edits[key] = self.make(call)
        return self.edits[key]

    def make(self, call: Call) -> Edit:
        """Make the edit of a site."""
        raise NotImplementedError

    def origins(self, call: Call) -> Tensor:
        """:func:`attendrop.masks.origins_of`; layers of a kind mostly share their mask."""
        kind, batch = call.site.kind, call.shape[0]
        mask, origins = self._origins.get(kind, (None, None))
        if origins is None or mask is not call.valid or len(origins) != batch:
            origins = origins_of(call)
            self._origins[kind] = (call.valid, origins)
        return origins

    def draw(self, p: float | Tensor, call: Call) -> Tensor:
        """Draw each position of each head with probability ``p``, ``(batch, heads, query, key)``."""
        return draw(p, self.step.key, call.site.key, call.shape, self.origins(call), call.device)

    def draw_heads(self, p: float | Tensor, call: Call) -> Tensor:
        """Draw each head of each sequence with probability ``p``, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        origins = torch.zeros(batch, 2, dtype=torch.long, device=call.device)
        return draw(p, self.step.key, call.site.key, (batch, heads, 1, 1), origins, call.device)

    def uniform_heads(self, call: Call) -> Tensor:
        """Draw a number from (0, 1) for each head of each sequence, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        origins = torch.zeros(batch, 2, dtype=torch.long, device=call.device)
        return uniform(self.step.key, call.site.key, (batch, heads, 1, 1), origins, call.device)

    def draw_hidden(self, p: float, call: Call, units: int) -> Tensor:
        """Draw each hidden unit of each query with probability ``p``, ``(batch, 1, query, units)``."""
        origins = self.origins(call) * torch.tensor([1, 0], device=call.device)  # units are counted from the first
        shape = (call.shape[0], 1, call.shape[2], units)
        return draw(p, self.step.key, call.site.key, shape, origins, call.device)

    def uniform(self, call: Call) -> Tensor:
        """Draw a number from (0, 1) for each position of each head, ``(batch, heads, query, key)``."""
        return uniform(self.step.key, call.site.key, call.shape, self.origins(call), call.device)

    def without_heads(self, call: Call, drop: Tensor, scale: float | Tensor = 1.0) -> Edit:
        """Take whole heads away, multiply the others by ``scale``, and report how many heads of sequences went.

        Args:
            call: The site.
            drop: ``(batch, heads, 1, 1)``, True at what is dropped.
            scale: Broadcastable to ``drop``.
        """
        self.step.report(call.site.key, drop.sum(), torch.full((), drop.numel(), device=drop.device))
        factor = (~drop * scale).transpose(1, 2)
        return Edit(output=lambda output: output * factor.to(output.dtype))

    def report(self, call: Call, drop: Tensor, rows: Tensor | None, valid: Tensor | None) -> None:
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
        self.step.report(call.site.key, (dropped * rows).sum(), possible)
