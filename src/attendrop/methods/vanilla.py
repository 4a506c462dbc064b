"""Vanilla attention dropout: every position with one fixed probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from attendrop.attention import Plan
from attendrop.masks import real_rows
from attendrop.methods.base import Facts, Method, Pass
from attendrop.methods.compatibility import REPLACES_DROPOUT
from attendrop.methods.drawing import Drawing
from attendrop.methods.options import LAYERS, choice, fraction, option
from attendrop.methods.papers import WU_2021
from attendrop.scoring import Call, Edit

WHERE = ("scores", "weights")


@dataclass(frozen=True)
class Vanilla(Method):
    """Attention dropout with a fixed probability.

    In the scores, ``softmax(S + M) V`` with ``M = -inf`` where a position is dropped: what is kept shares the mass of
    what is not. In the weights, ``(A * U / (1 - p)) V``, what PyTorch calls attention dropout.

    Example:
        >>> with regularize(model, Vanilla(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a position is dropped, in (0, 1).
        where: ``"scores"``: of every valid position of every head, beside the model's own dropout. ``"weights"``: in
            place of the model's own attention dropout.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.sites.select_sites`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Table 3 of Wu, Zhao, Zhang (2021), which has 0.1 and 0.2; the definition of dropout in weights is that of
    Vaswani et al. (2017).
    """

    name: ClassVar[str] = "vanilla"
    summary: ClassVar[str] = "drops attention scores, or weights, with one fixed probability"
    paper: ClassVar[str] = "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, Table 3"
    bibtex: ClassVar[str] = WU_2021
    facts: ClassVar[Facts] = Facts(acts_on=("scores", "weights"))
    traits: ClassVar[Mapping[str, str]] = {REPLACES_DROPOUT: "where=weights"}

    p: float = option(0.1, fraction())
    where: str = option("scores", choice(*WHERE))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def has(self, trait: str) -> bool:
        return self.where == "weights" if trait == REPLACES_DROPOUT else super().has(trait)

    def plan(self, step: Pass) -> Plan:
        keys = {site.key for site in self.chosen(step.attachment.sites)}
        return Bernoulli(step, dict.fromkeys(keys, self.p)) if self.where == "scores" else _Weights(step, keys, self.p)


class Bernoulli(Drawing):
    """Drops each valid position of a layer's scores with the probability of that layer.

    Args:
        step: The micro-batch.
        probabilities: By the key of the layer.
    """

    def __init__(self, step: Pass, probabilities: dict[str, float]) -> None:
        super().__init__(step, probabilities.keys())
        self.probabilities = probabilities

    def make(self, call: Call) -> Edit:
        drop = self.draw(self.probabilities[call.site.key], call)
        drop = drop if call.valid is None else drop & call.valid
        self.report(call, drop, real_rows(call), call.valid)
        return Edit(drop=drop)


class _Weights(Drawing):
    """Dropout of weights, in place of the model's own."""

    def __init__(self, step: Pass, keys: set[str], p: float) -> None:
        super().__init__(step, keys)
        self.p = p

    def make(self, call: Call) -> Edit:
        drop = self.draw(self.p, call)
        self.report(call, drop if call.valid is None else drop & call.valid, real_rows(call), call.valid)
        scale = 1 / (1 - self.p)
        return Edit(dropout=0.0, weights=lambda weights: weights * drop.logical_not().to(weights.dtype).mul_(scale))
