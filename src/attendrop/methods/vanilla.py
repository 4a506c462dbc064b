"""Vanilla attention dropout with one fixed probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.plan import Plan
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.compatibility import REPLACES_DROPOUT
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, choice, option, unit_interval

WHERE = ("scores", "weights")


@dataclass(frozen=True)
class Vanilla(Method):
    """Attention dropout with a fixed probability.

    In the scores, ``softmax(S + M) V`` with ``M = -inf`` at dropped positions, so that the kept positions share their
    mass. In the weights, ``(A * U / (1 - p)) V``, the attention dropout of PyTorch.

    Example:
        >>> with regularize(model, Vanilla(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a position is dropped, in (0, 1).
        where: ``"scores"``: scores of all valid positions and heads, in addition to the model's own dropout.
            ``"weights"``: attention weights, in place of the model's own attention dropout.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Table 3 of Wu, Zhao, Zhang (2021), with 0.1 and 0.2; dropout of weights is defined as in Vaswani et al.
    (2017).
    """

    name: ClassVar[str] = "vanilla"
    summary: ClassVar[str] = "drops attention scores, or weights, with one fixed probability"
    paper: ClassVar[str] = "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, Table 3"
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("scores", "weights"))
    traits: ClassVar[Mapping[str, str]] = {REPLACES_DROPOUT: "where=weights"}

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    where: str = option("scores", choice(*WHERE))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def has(self, trait: str) -> bool:
        return self.where == "weights" if trait == REPLACES_DROPOUT else super().has(trait)

    def plan(self, context: StepContext) -> Plan:
        if self.where == "weights":
            return _Weights(self, context)
        return Bernoulli(
            self, context, {layer.key: self.p for layer in self.selected_layers(context.adapter.attention_layers)}
        )


class Bernoulli(RandomMaskPlan):
    """Plan that drops each valid position of a layer's scores with the probability of that layer.

    Args:
        method: The method.
        context: The micro-batch.
        probabilities: Drop probabilities by layer key.
    """

    def __init__(self, method: Method, context: StepContext, probabilities: dict[str, float]) -> None:
        super().__init__(method, context, probabilities.keys())
        self.probabilities = probabilities

    def drop_mask(self, call: AttentionCall) -> Tensor:
        return self.sample(self.probabilities[call.layer.key], call)


class _Weights(RandomMaskPlan):
    """Plan for dropout of weights, in place of the model's own."""

    method: Vanilla

    def make(self, call: AttentionCall) -> AttentionEdit:
        drop = self.sample(self.method.p, call)
        self.report(call, drop)
        scale = 1 / (1 - self.method.p)
        return AttentionEdit(
            dropout=0.0, weights=lambda weights: weights * drop.logical_not().to(weights.dtype).mul_(scale)
        )
