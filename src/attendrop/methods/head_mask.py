"""HeadMask: a fixed number of attention heads masked."""

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
    """Masks a fixed fraction of the attention heads.

    Of the ``H`` heads of a layer, ``floor(fraction * H)`` are masked, at least one and at most ``H - 1``, for each
    sequence by itself: what they put out is zero before the output projection. Nothing is rescaled.

    Example:
        >>> with regularize(model, HeadMask(fraction=0.25)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        fraction: Fraction of a layer's heads that is masked, in (0, 1).
        select_by: ``"random"``: any of them. ``"importance"``: the most important ones, by ``|dL/dxi|``, where ``xi``
            is a gate of 1 that what a head puts out is multiplied by, and ``L`` the loss that the model itself computes
            of the sequence; that takes a pass forward and one backward, without parameter gradients.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, by importance, a batch has no labels.

    Source: Sun et al. (2020), https://arxiv.org/abs/2009.09672, which masks a fixed number of heads; the importance is
    that of Michel et al. (2019), https://arxiv.org/abs/1905.10650, without its mean over samples. The default of 1/8
    is one head of the eight in a layer of the base Transformer. That each layer and each sequence has a choice of
    its own is ours: so nothing depends on how a batch is cut.
    """

    name: ClassVar[str] = "headmask"
    summary: ClassVar[str] = "masks a fixed number of attention heads, random or important ones"
    paper: ClassVar[str] = (
        "Sun et al. (2020), Alleviating the Inequality of Attention Heads for Neural Machine Translation"
    )
    bibtex: ClassVar[str] = """@inproceedings{sun2022headmask,
  title     = {Alleviating the Inequality of Attention Heads for Neural Machine Translation},
  author    = {Sun, Zewei and Huang, Shujian and Dai, Xinyu and Chen, Jiajun},
  booktitle = {Proceedings of the 29th International Conference on Computational Linguistics},
  pages     = {5246--5250},
  year      = {2022},
  url       = {https://arxiv.org/abs/2009.09672}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("heads",),
        forward="1 (by importance: 2)",
        backward="1 (by importance: 1 + activations)",
        units="heads",
    )

    fraction: float = option(0.125, unit_interval())
    select_by: str = option("random", choice(*SELECT_BY))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def count(self, heads: int) -> int:
        """How many of so many heads are masked."""
        return max(0, min(heads - 1, max(1, int(floor_fraction(torch.tensor(heads), self.fraction)))))

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        importance: dict[str, Tensor] = {}
        if self.select_by == "importance":
            importance = head_importance(context.adapter, context.batch, attention_layers)
        return _MaskHeads(self, context, {layer.key for layer in attention_layers}, importance)


class _MaskHeads(RandomMaskPlan):
    """Masks the heads that rank first."""

    method: HeadMask

    def __init__(self, method: HeadMask, context: StepContext, keys: set[str], importance: dict[str, Tensor]) -> None:
        super().__init__(method, context, keys)
        self.importance = importance

    def make(self, call: AttentionCall) -> AttentionEdit:
        found = self.importance.get(call.layer.key)
        values = self.uniform_heads(call) if found is None else found[..., None, None]
        ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return self.without_heads(call, ranks < self.method.count(call.shape[1]))
