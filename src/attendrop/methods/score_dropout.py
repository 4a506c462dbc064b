"""Dropout of attention scores or weights with one probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    option,
    unit_interval,
)


@dataclass(frozen=True)
class Vanilla(Method):
    """Attention dropout with a fixed probability.

    In the scores, ``softmax(S + M) V`` with ``M = -inf`` at dropped positions, so that the kept positions share their
    mass. In the weights, ``(A * U / (1 - p)) V``, the attention dropout of PyTorch.

    Args:
        p: Probability that a position is dropped, in (0, 1).
        where: ``"scores"``: scores of all valid positions and heads, in addition to the model's own dropout.
            ``"weights"``: attention weights, in place of the model's own attention dropout.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Table 3 of Wu, Zhao, Zhang (2021), with 0.1 and 0.2; for weights, Vaswani et al. (2017).
    """

    info = MethodInfo(
        "vanilla",
        "drops attention scores, or weights, with one fixed probability",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, Table 3",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("scores", "weights"),
        traits={REPLACES_DROPOUT: "where=weights"},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    where: str = option("scores", choice("scores", "weights"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._drop)

    def _drop(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        drop = plan.sample(self.p, call)
        if self.where == "scores":
            return plan.drop_scores(call, drop)
        plan.report(call, drop)
        scale = 1 / (1 - self.p)
        return AttentionEdit(
            dropout=0.0, weights=lambda weights: weights * drop.logical_not().to(weights.dtype).mul_(scale)
        )
