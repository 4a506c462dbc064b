"""Gates of one on what heads and feed-forwards put out, whose gradients tell how much they matter."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from attendrop.attention import Plan
from attendrop.scoring import Call, Edit
from attendrop.sites import Site
from attendrop.structure import Block, BlockEdit


class Gates(Plan):
    """Multiplies what each head, and each feed-forward, puts out by a gate of one, for each row of the batch.

    Args:
        rows: Rows of the batch. If attention sees a multiple of it, a row has one gate for all that it stands for.
            None: what attention sees has a gate for each.
        heads: Whether heads have gates: of all sites, or of those with these keys.
        feed_forward: Whether feed-forwards have gates.
        by_token: Whether each token of a row has gates of its own.

    Attributes:
        gates: ``(rows, heads)`` by ``heads/SITE``, and ``(rows, 1)`` by ``feed_forward/BLOCK``: leaves of the graph.
            By token: ``(rows, n, heads)`` and ``(rows, n, 1)``.
    """

    def __init__(
        self,
        rows: int | None = None,
        *,
        heads: bool | Collection[str] = True,
        feed_forward: bool = False,
        by_token: bool = False,
    ) -> None:
        super().__init__()
        self.rows = rows
        self.heads = heads
        self.feed_forward = feed_forward
        self.by_token = by_token
        self.gates: dict[str, Tensor] = {}

    def wants(self, site: Site) -> bool:
        return self.heads if isinstance(self.heads, bool) else site.key in self.heads

    def edit(self, call: Call) -> Edit:
        return Edit(output=self._gated(f"heads/{call.site.key}", call.shape[1], (1,)))

    def block(self, block: Block) -> BlockEdit | None:
        if not self.feed_forward or not block.sites or block.feed_forward is None:
            return None
        return BlockEdit(feed_forward=self._gated(f"feed_forward/{block.key}", 1, ()))

    def sensitivity(self) -> dict[str, Tensor]:
        """The sum over all gates of the absolute gradients, ``(heads,)`` or ``(1,)``; zero where none came back."""
        return {
            key: (torch.zeros_like(gate) if gate.grad is None else gate.grad).abs().flatten(0, -2).sum(0)
            for key, gate in self.gates.items()
        }

    def _gated(self, key: str, units: int, width: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """Multiply ``(batch, n, units, ...)`` by a gate for each unit of each row, or of each token of it."""

        def gated(output: Tensor) -> Tensor:
            rows = output.shape[0] if self.rows is None or self.by_token else self.rows
            if key not in self.gates:
                dtype = torch.promote_types(output.dtype, torch.float32)
                shape = (rows, output.shape[1], units) if self.by_token else (rows, units)
                self.gates[key] = torch.ones(shape, dtype=dtype, device=output.device, requires_grad=True)
            each = self.gates[key].repeat_interleave(output.shape[0] // rows, 0)
            each = each if self.by_token else each[:, None]
            return output * each.view(*each.shape, *width).to(output.dtype)

        return gated
