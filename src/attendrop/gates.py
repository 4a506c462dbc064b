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

    Attributes:
        gates: ``(rows, heads)`` by ``heads/SITE``, and ``(rows, 1)`` by ``feed_forward/BLOCK``: leaves of the graph.
    """

    def __init__(
        self, rows: int | None = None, *, heads: bool | Collection[str] = True, feed_forward: bool = False
    ) -> None:
        super().__init__()
        self.rows = rows
        self.heads = heads
        self.feed_forward = feed_forward
        self.gates: dict[str, Tensor] = {}

    def wants(self, site: Site) -> bool:
        return self.heads if isinstance(self.heads, bool) else site.key in self.heads

    def edit(self, call: Call) -> Edit:
        return Edit(output=self._gated(f"heads/{call.site.key}", (1, call.shape[1], 1)))

    def block(self, block: Block) -> BlockEdit | None:
        if not self.feed_forward or not block.sites or block.feed_forward is None:
            return None
        return BlockEdit(feed_forward=self._gated(f"feed_forward/{block.key}", (1, 1)))

    def sensitivity(self) -> dict[str, Tensor]:
        """The sum over rows of the absolute gradients, ``(heads,)`` or ``(1,)``; zero where none came back."""
        return {
            key: torch.zeros_like(gate[0]).detach() if gate.grad is None else gate.grad.abs().sum(0)
            for key, gate in self.gates.items()
        }

    def _gated(self, key: str, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """Multiply ``(batch, ...)`` by a gate of ``shape`` for each row."""

        def gated(output: Tensor) -> Tensor:
            rows = output.shape[0] if self.rows is None else self.rows
            if key not in self.gates:
                dtype = torch.promote_types(output.dtype, torch.float32)
                self.gates[key] = torch.ones(rows, max(shape), dtype=dtype, device=output.device, requires_grad=True)
            each = self.gates[key].repeat_interleave(output.shape[0] // rows, 0)
            return output * each.view(-1, *shape).to(output.dtype)

        return gated
