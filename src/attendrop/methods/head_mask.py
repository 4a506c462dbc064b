"""HeadMask: masking of a fixed number of attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.plan import Plan
from attendrop.attribution.head_importance import head_importance
from attendrop.candidates import floor_fraction
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, choice, option, unit_interval

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

    name: ClassVar[str] = "headmask"
    summary: ClassVar[str] = "masks a fixed number of attention heads, random or important ones"
    paper: ClassVar[str] = (
        "Sun et al. (2020), Alleviating the Inequality of Attention Heads for Neural Machine Translation"
    )
    info: ClassVar[MethodInfo] = MethodInfo(
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
        return _MaskHeads(self, context, {layer.key for layer in attention_layers}, importance)


class _MaskHeads(RandomMaskPlan):
    """Plan that masks the heads of highest rank."""

    method: HeadMask

    def __init__(self, method: HeadMask, context: StepContext, keys: set[str], importance: dict[str, Tensor]) -> None:
        super().__init__(method, context, keys)
        self.importance = importance

    def make(self, call: AttentionCall) -> AttentionEdit:
        found = self.importance.get(call.layer.key)
        values = self.uniform_heads(call) if found is None else found[..., None, None]
        ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return self.without_heads(call, ranks < self.method.count(call.shape[1]))
