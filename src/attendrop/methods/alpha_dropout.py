"""Alpha Dropout: random hidden units set to the saturation value of SELUs, preserving mean and variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    option,
    unit_interval,
)

# -lambda * alpha, of the constants of the SELU: the limit of its value for large negative inputs.
SATURATED = -1.0507009873554805 * 1.6732632423543772


@dataclass(frozen=True)
class AlphaDropout(Method):
    """Alpha Dropout of the hidden units of the heads' outputs, before the output projection.

    Each unit of each token is set to ``alpha' = -1.7581`` with probability ``p``; then all units ``x`` become
    ``a x + b`` with ``a = (q + alpha'^2 q (1 - q))^(-1/2)``, ``b = -a (1 - q) alpha'`` and ``q = 1 - p``. This
    preserves mean 0 and variance 1.

    Example:
        >>> with regularize(model, AlphaDropout(p=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a unit is dropped, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Klambauer et al. (2017), https://arxiv.org/abs/1706.02515, section "New Dropout Technique", where 0.05 and
    0.1 are recommended. It was proposed for self-normalising networks, after SELUs; its use on attention follows a
    comparison in the AttendOut paper. The outputs of heads are not normalised, so that other means and variances are
    not exactly preserved. The model's own dropout stays enabled.
    """

    info = MethodInfo(
        "alpha-dropout",
        "sets hidden units of heads to the value at which SELUs saturate",
        "Klambauer et al. (2017), Self-Normalizing Neural Networks",
        acts_on=("heads",),
        units="hidden units",
        order=-1,  # before methods that drop heads: their outputs must be zero, not b
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._saturate)

    def _saturate(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        scale, shift = affine(self.p)
        return plan.without_units(
            call,
            partial(plan.sample_hidden, self.p, call),
            lambda hidden, drop: hidden.masked_fill(drop, SATURATED) * scale + shift,
        )


def affine(p: float) -> tuple[float, float]:
    """Return ``a`` and ``b``, which preserve mean 0 and variance 1 for drop probability ``p``."""
    q = 1 - p
    scale = (q + SATURATED**2 * q * (1 - q)) ** -0.5
    return scale, -scale * (1 - q) * SATURATED
