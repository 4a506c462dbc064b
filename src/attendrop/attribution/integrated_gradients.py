"""Integrated-gradient attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.isolation import evaluating
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of, wide
from attendrop.attribution.recording import RecordPlan, isolated_pass
from attendrop.attribution.targets import fix_target
from attendrop.batches import Batch

QUADRATURE_RULES = ("gauss_legendre", "riemann")
SCOPES = ("joint", "layerwise")


class ReplacePlan(Plan):
    """Uses given units in some attention layers; see :class:`RecordPlan`."""

    acts_on = frozenset({"attention"})

    def __init__(self, given: Mapping[str, Tensor], units: str = "attention") -> None:
        super().__init__()
        self.given = given
        self.units = units

    def wants(self, layer: AttentionLayer) -> bool:
        return layer.key in self.given

    def edit(self, call: AttentionCall) -> AttentionEdit:
        units = self.given[call.layer.key]
        return AttentionEdit(replace=units) if self.units == "attention" else AttentionEdit(output=lambda _: units)


def integrated_gradient_attribution(
    adapter: ModelAdapter,
    batch: Batch,
    attention_layers: Sequence[AttentionLayer],
    target: str,
    *,
    scope: str = "joint",
    rule: str = "gauss_legendre",
    steps: int = 8,
    units: str = "attention",
    inputs: Batch | None = None,
) -> dict[str, Tensor]:
    """Compute integrated-gradient attribution ``A * integral of dF(alpha A)/dA``.

    Eq. 3 of Yang et al. (2022), after Hao et al. (2021). The model's dropout is off. The label is fixed by the pass
    with unscaled attention.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers to attribute to.
        target: See :func:`fix_target`.
        scope: ``"joint"``: all layers use ``alpha A`` at once, with ``A`` held constant; one pass per node.
            ``"layerwise"``: one layer is scaled at a time and the layers above recompute theirs, as in Hao et al.
        rule: ``"gauss_legendre"``, or ``"riemann"`` (right end points, as in the papers).
        steps: Number of nodes on [0, 1].
        units: What to attribute to, see :class:`RecordPlan`.
        inputs: See :func:`attendrop.attribution.gradient.gradient_attribution`.

    Raises:
        AttendropError: The gradients are not finite; see :func:`finite_gradients`.
    """
    record = RecordPlan(attention_layers, units)
    with isolated_pass(adapter.model), evaluating(adapter.model):
        with torch.no_grad():
            outputs = adapter.forward(inputs or batch, record)
            score = fix_target(adapter.model, outputs, batch, target)
            recorded = dict(zip(record.keys, record.in_order(), strict=True))
        groups = [list(recorded)] if scope == "joint" else [[key] for key in recorded]

        def integral(factor: float) -> dict[str, Tensor]:
            total: dict[str, Tensor] = {}
            for group in groups:
                for alpha, weight in quadrature_nodes(rule, steps):
                    leaves = [(recorded[key] * alpha).requires_grad_() for key in group]
                    plan = ReplacePlan(dict(zip(group, leaves, strict=True)), units)
                    with torch.enable_grad():
                        scores = score(adapter.forward(inputs or batch, plan))
                        found = gradients_of(wide(scores).sum() * factor, group, leaves)
                    for key in group:
                        total[key] = total.get(key, 0) + weight * wide(found[key])
            return total

        integrals = finite_gradients(integral)
    return {key: recorded[key] * integrals[key] for key in recorded}


def quadrature_nodes(rule: str, steps: int) -> list[tuple[float, float]]:
    """Return the points on [0, 1], with weights that sum to 1, of an integration rule with ``steps`` points."""
    if rule == "riemann":
        return [(k / steps, 1 / steps) for k in range(1, steps + 1)]
    points, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(weight) / 2) for x, weight in zip(points, weights, strict=True)]
