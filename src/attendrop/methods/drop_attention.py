"""DropAttention: dropout of elements or columns of the attention weights, which are normalised again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import wide
from attendrop.keyed_random import sample_mask
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.compatibility import REPLACES_DROPOUT
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, choice, count, option, unit_interval
from attendrop.methods.drop_block import begin_chances, spread

UNITS = ("column", "element")


@dataclass(frozen=True)
class DropAttention(Method):
    """Dropout of attention weights with normalised rescaling, in place of the model's own attention dropout.

    Some attention weights of each head are set to zero, and each row is divided by its sum: ``w / sum w``. No gradient
    is computed of the sum. ``unit="element"`` drops weights one by one; ``"column"`` drops a key for all queries.
    ``window`` is the number of neighbouring elements of a row, or of neighbouring columns, that are dropped together. A
    row that is left without any weight attends equally to its valid keys. One pass per step.

    Example:
        >>> with regularize(model, DropAttention(p=0.2, unit="column")) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Approximate fraction of dropped weights, in (0, 1), see :class:`attendrop.DropBlock`.
        unit: ``"column"`` or ``"element"``.
        window: Number of neighbours that are dropped together, 1 or more.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Lin et al. (2019), https://arxiv.org/abs/1907.11065, section 3: DropAttention(c) and DropAttention(e), and
    the normalised rescaling. The defaults are ours. A window starts at each position with the probability of DropBlock,
    which compensates for the positions where no window fits. The paper does not say what becomes of a row that is
    dropped whole. A column is dropped in one head of one sequence, as each has its own matrix of weights.
    """

    name: ClassVar[str] = "dropattention"
    summary: ClassVar[str] = "drops elements or columns of the attention weights, and normalises the rest"
    paper: ClassVar[str] = (
        "Lin et al. (2019), DropAttention: A Regularization Method for Fully-Connected Self-Attention Networks"
    )
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("weights",))
    traits: ClassVar[Mapping[str, str]] = {REPLACES_DROPOUT: ""}

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("column", choice(*UNITS), search=UNITS)
    window: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return _Renormalised(self, context)


class _Renormalised(RandomMaskPlan):
    """Plan that drops weights in the selected layers, and normalises the others."""

    method: DropAttention

    def make(self, call: AttentionCall) -> AttentionEdit:
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
        kept = valid & ~self.drop_mask(call)
        self.report(call, ~kept)
        number = valid.expand(call.shape).sum(-1, keepdim=True).clamp(min=1)

        def renormalised(weights: Tensor) -> Tensor:
            largest = torch.finfo(weights.dtype).max
            rest = wide(weights).masked_fill(~kept, 0)
            if rest.requires_grad:  # a gradient divided by a small sum may overflow; that of the scores is small again
                rest.register_hook(lambda gradient: gradient.clamp(-largest, largest))  # type: ignore[no-untyped-call]
            total = rest.detach().sum(-1, keepdim=True)
            lost = total == 0
            equal = valid.to(rest.dtype) / number
            return torch.where(lost, equal, rest / total.masked_fill(lost, 1)).to(weights.dtype)

        return AttentionEdit(weights=renormalised, dropout=0.0)

    def drop_mask(self, call: AttentionCall) -> Tensor:
        method = self.method
        shape, origins, batch = call.shape, self.origins(call), call.shape[0]
        if method.unit == "column":
            valid = None if call.valid is None else call.valid.any(-2, keepdim=True)
            call = dataclasses.replace(call, valid=valid)
            shape, origins = (batch, shape[1], 1, shape[3]), origins * torch.tensor([0, 1], device=call.device)
        chances = begin_chances(call, method.p, method.window)
        starts = sample_mask(chances, self.context.key, call.layer.key, shape, origins, call.device)
        return spread(starts, method.window)
