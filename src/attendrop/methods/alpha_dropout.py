"""Alpha Dropout: hidden units set to the value at which SELUs saturate, mean and variance kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.plan import Plan
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, option, unit_interval

# -lambda * alpha, of the constants of the SELU: the limit of its value for large negative inputs.
SATURATED = -1.0507009873554805 * 1.6732632423543772


@dataclass(frozen=True)
class AlphaDropout(Method):
    """Alpha Dropout on the hidden units that the heads put out, before the output projection.

    Each unit of each token is set to ``alpha' = -1.7581`` with probability ``p``; then all units ``x`` become
    ``a x + b`` with ``a = (q + alpha'^2 q (1 - q))^(-1/2)``, ``b = -a (1 - q) alpha'`` and ``q = 1 - p``. Units of mean
    0 and variance 1 keep both.

    Example:
        >>> with regularize(model, AlphaDropout(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a unit is dropped, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Klambauer et al. (2017), https://arxiv.org/abs/1706.02515, section "New Dropout Technique", where 0.05 and
    0.1 are recommended. They drop after SELUs in networks that keep activations normalised; that it acts on attention
    is the AttendOut paper's comparison. What heads put out is not normalised, and is not normalised for it: of units
    with another mean or variance, it keeps neither exactly. The model's own dropout stays on.
    """

    name: ClassVar[str] = "alpha-dropout"
    summary: ClassVar[str] = "sets hidden units of heads to the value at which SELUs saturate"
    paper: ClassVar[str] = "Klambauer et al. (2017), Self-Normalizing Neural Networks"
    bibtex: ClassVar[str] = """@inproceedings{klambauer2017selfnormalizing,
  title     = {Self-Normalizing Neural Networks},
  author    = {Klambauer, G{\\"u}nter and Unterthiner, Thomas and Mayr, Andreas and Hochreiter, Sepp},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017},
  url       = {https://arxiv.org/abs/1706.02515}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("heads",), units="hidden units")
    order: ClassVar[int] = -1  # a head that is taken away puts out zeros, not a x + b of them

    p: float = option(0.1, unit_interval())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return _Saturating(self, context)


class _Saturating(RandomMaskPlan):
    """Drops hidden units in the chosen layers."""

    method: AlphaDropout

    def make(self, call: AttentionCall) -> AttentionEdit:
        return self.without_units(call, partial(self.sample_hidden, self.method.p, call), self._saturated)

    def _saturated(self, hidden: Tensor, drop: Tensor) -> Tensor:
        scale, shift = affine(self.method.p)
        return hidden.masked_fill(drop, SATURATED) * scale + shift


def affine(p: float) -> tuple[float, float]:
    """``a`` and ``b``, with which mean 0 and variance 1 are kept if units are dropped with probability ``p``."""
    q = 1 - p
    scale = (q + SATURATED**2 * q * (1 - q)) ** -0.5
    return scale, -scale * (1 - q) * SATURATED
