"""Importance of heads and feed-forwards: gradients of gates on their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.edits import AttentionCall, AttentionEdit, BlockEdit
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of, wide
from attendrop.attribution.recording import isolated_pass
from attendrop.attribution.targets import Forward
from attendrop.errors import AttendropError
from attendrop.support.models import Batch


class GatePlan(Plan):
    """Multiplies the output of each head and feed-forward by a gate of one, for each row of the batch.

    Args:
        rows: Number of rows of the batch. If attention sees a multiple of it, all sequences of a row share one gate.
            None: each sequence that attention sees has its own.
        heads: Whether heads have gates; or the keys of the attention layers whose heads have gates.
        feed_forward: Whether feed-forwards have gates.
        by_token: Whether each token has gates of its own.

    Attributes:
        gates: ``(rows, heads)`` by ``heads/LAYER``, and ``(rows, 1)`` by ``feed_forward/BLOCK``: leaves of the graph.
            By token: ``(rows, n, heads)`` and ``(rows, n, 1)``.
    """

    acts_on = frozenset({"attention", "blocks"})

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

    def wants(self, layer: AttentionLayer) -> bool:
        return self.heads if isinstance(self.heads, bool) else layer.key in self.heads

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(output=self._gated(f"heads/{call.layer.key}", call.shape[1], (1,)))

    def block(self, block: Block) -> BlockEdit | None:
        if not self.feed_forward or not block.attention_layers or block.feed_forward is None:
            return None
        return BlockEdit(feed_forward=self._gated(f"feed_forward/{block.key}", 1, ()))

    def sensitivity(self) -> dict[str, Tensor]:
        """Sum the absolute gradients over rows (and tokens), ``(heads,)`` or ``(1,)``; zero without a gradient."""
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


def head_importance(
    adapter: ModelAdapter,
    batch: Batch,
    attention_layers: Sequence[AttentionLayer],
    forward: Forward | None = None,
) -> dict[str, Tensor]:
    """Compute the importance ``|dL/dxi|`` of the heads of each sequence, ``(batch, heads)``.

    ``xi`` is a gate of 1 on the output of a head (Michel et al., 2019), ``L`` the loss. This is a mean over the batch,
    so values compare within a sequence only. Takes one forward and one backward pass.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers whose heads to rank.
        forward: See :func:`attendrop.attribution.gradient.gradient_attribution`.

    Raises:
        AttendropError: The model returns no loss; or the gradients are not finite, see :func:`finite_gradients`.
    """

    def gradients(factor: float) -> dict[str, Tensor]:
        plan = GatePlan(heads={layer.key for layer in attention_layers})
        with isolated_pass(adapter.model), torch.enable_grad():
            outputs = forward(plan) if forward else adapter.forward(batch, plan)
            loss: Tensor | None = getattr(outputs, "loss", None)
            if loss is None:
                raise AttendropError("Head importance is computed from the loss, and the batch has no 'labels'.")
            return gradients_of(wide(loss) * factor, list(plan.gates), list(plan.gates.values()))

    found = finite_gradients(gradients, adapter.model)
    return {key.partition("/")[2]: gradient.abs() for key, gradient in found.items()}
