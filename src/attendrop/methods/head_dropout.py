"""Dropout of whole attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    option,
    unit_interval,
)


@dataclass(frozen=True)
class DropHead(Method):
    """Dropout of whole attention heads.

    Each head of each layer is dropped with probability ``p``, independently for each sequence: its output is zero
    before the output projection. The outputs of the others are multiplied by ``heads / kept heads``; all may be
    dropped.

    Args:
        p_start: Probability at the start of training, in (0, 1).
        p_end: Probability at the end of training, in (0, 1).
        turn: Fraction of the planned optimizer steps at which the probability is 0, in (0, 1).
        schedule: ``"v"``: linear from ``p_start`` to 0 at ``turn``, and from there to ``p_end``. ``"constant"``:
            ``p_start`` throughout; ``p_end`` and ``turn`` are unused.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, the schedule is ``"v"`` and the number of planned optimizer steps is unknown.

    Source: Zhou et al. (2020), https://arxiv.org/abs/2004.13342, section 3. Their V has its minimum at the end of the
    learning rate's warm-up: ``turn`` defaults to this library's default warm-up of 0.1; set it to your warm-up. The
    default of 0.2 is ours, as is the possibility that all heads of a layer are dropped.
    """

    info = MethodInfo(
        "drophead",
        "drops whole attention heads at random, by a V-shaped schedule",
        "Zhou et al. (2020), Scheduled DropHead: A Regularization Method for Transformer Models",
        link="https://arxiv.org/abs/2004.13342",
        acts_on=("heads",),
        units="heads",
    )

    p_start: float = option(0.2, unit_interval(), search=(0.1, 0.4))
    p_end: float = option(0.2, unit_interval())
    turn: float = option(0.1, unit_interval())
    schedule: str = option("v", choice("v", "constant"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def probability_at(self, progress: float) -> float:
        """Return the probability of the schedule ``"v"`` at a ``progress`` in [0, 1]."""
        if progress < self.turn:
            return self.p_start * (1 - progress / self.turn)
        return self.p_end * (progress - self.turn) / (1 - self.turn)

    def plan(self, context: StepContext) -> Plan:
        p = self.p_start if self.schedule == "constant" else self.probability_at(context.planned_progress())

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            drop = plan.sample_heads(p, call)
            kept = (~drop).sum(1, keepdim=True).double()
            return plan.without_heads(call, drop, call.shape[1] / kept.clamp(min=1))

        return RandomMaskPlan(self, context, make)
