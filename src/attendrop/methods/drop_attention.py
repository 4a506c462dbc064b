"""DropAttention: dropout of elements or columns of the attention weights, which are normalised again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    REPLACES_DROPOUT,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    choice,
    count,
    option,
    sample_mask,
    unit_interval,
    wide,
)
from attendrop.methods.common.random_mask import begin_chances, spread

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

    info = MethodInfo(
        "dropattention",
        "drops elements or columns of the attention weights, and normalises the rest",
        "Lin et al. (2019), DropAttention: A Regularization Method for Fully-Connected Self-Attention Networks",
        acts_on=("weights",),
        traits={REPLACES_DROPOUT: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("column", choice(*UNITS), search=UNITS)
    window: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._renormalise)

    def drop_mask(self, plan: RandomMaskPlan, call: AttentionCall) -> Tensor:
        """Sample the weights to drop in a layer, broadcastable to ``(batch, heads, query, key)``."""
        shape, origins, batch = call.shape, plan.origins(call), call.shape[0]
        if self.unit == "column":
            valid = None if call.valid is None else call.valid.any(-2, keepdim=True)
            call = replace(call, valid=valid)
            shape, origins = (batch, shape[1], 1, shape[3]), origins * torch.tensor([0, 1], device=call.device)
        chances = begin_chances(call, self.p, self.window)
        return spread(sample_mask(chances, plan.context.key, call.layer.key, shape, origins, call.device), self.window)

    def _renormalise(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
        kept = valid & ~self.drop_mask(plan, call)
        plan.report(call, ~kept)
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
