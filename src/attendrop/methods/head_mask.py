"""HeadMask: masking of a fixed number of attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    choice,
    floor_fraction,
    head_importance,
    option,
    unit_interval,
)

SELECT_BY = ("random", "importance")


@dataclass(frozen=True)
class HeadMask(Method):
    """Masking of a fixed fraction of the attention heads.

    Of the ``H`` heads of a layer, ``floor(fraction * H)`` are masked, at least one and at most ``H - 1``, independently
    for each sequence: their outputs are zero before the output projection. Nothing is rescaled.

    Example:
        >>> with regularize(model, HeadMask(fraction=0.25)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        fraction: Fraction of a layer's heads to mask, in (0, 1).
        select_by: ``"random"``: random heads. ``"importance"``: the most important heads, by ``|dL/dxi|``, where ``xi``
            = 1 is a gate that multiplies the output of a head, and ``L`` the model's own loss on the sequence; this
            takes one forward and one backward pass, without parameter gradients.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, with ``"importance"``, a batch has no labels.

    Source: Sun et al. (2020), https://arxiv.org/abs/2009.09672, which masks a fixed number of heads; the importance is
    that of Michel et al. (2019), https://arxiv.org/abs/1905.10650, without its mean over samples. The default of 1/8
    is one of the eight heads in a layer of the base Transformer. Selecting heads for each layer and sequence separately
    is ours, so that results do not depend on the split into micro-batches.
    """

    info = MethodInfo(
        "headmask",
        "masks a fixed number of attention heads, random or important ones",
        "Sun et al. (2020), Alleviating the Inequality of Attention Heads for Neural Machine Translation",
        acts_on=("heads",),
        forward="1 (by importance: 2)",
        backward="1 (by importance: 1 + activations)",
        units="heads",
    )

    fraction: float = option(0.125, unit_interval(), search=(0.25, 0.5))
    select_by: str = option("random", choice(*SELECT_BY))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def count(self, heads: int) -> int:
        """Return the number of masked heads, given the number of heads."""
        return max(0, min(heads - 1, max(1, int(floor_fraction(torch.tensor(heads), self.fraction)))))

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        importance: dict[str, Tensor] = {}
        if self.select_by == "importance":
            importance = head_importance(context.adapter, context.batch, attention_layers)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            found = importance.get(call.layer.key)
            values = plan.uniform_heads(call) if found is None else found[..., None, None]
            ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            return plan.without_heads(call, ranks < self.count(call.shape[1]))

        return RandomMaskPlan(self, context, make, {layer.key for layer in attention_layers})
