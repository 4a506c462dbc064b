"""Integrated-gradient attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.hooks import evaluating
from attendrop.attention.layers import AttentionLayer
from attendrop.attribution.finite_gradients import all_finite, first_finite, wide
from attendrop.attribution.recording import GradientPlan, Keep, RecordPlan, isolated_pass, keep_all
from attendrop.attribution.targets import Forward, fix_target
from attendrop.support.models import Batch

QUADRATURE_RULES = ("gauss_legendre", "riemann")
SCOPES = ("joint", "layerwise")


class ScaledPlan(GradientPlan):
    """Replaces units by recorded ones, by layer key, times ``alpha``, and hands over their gradients."""

    def __init__(self, recorded: Mapping[str, Tensor], alpha: float, *args: Any) -> None:
        super().__init__(*args)
        self.recorded = recorded
        self.alpha = alpha

    def edit(self, call: AttentionCall) -> AttentionEdit:
        edit, scaled = super().edit(call), self.recorded[call.layer.key] * self.alpha
        if self.units == "attention":
            return replace(edit, weights=lambda _: scaled)
        watch = edit.output
        assert watch is not None
        return replace(edit, output=lambda _: watch(scaled))


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
    forward: Forward | None = None,
    keep: Keep[Any] = keep_all,
) -> dict[str, Any]:
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
        units: What to attribute to, see :class:`attendrop.attribution.recording.ObservePlan`.
        inputs: See :func:`attendrop.attribution.gradient.gradient_attribution`.
        forward: See there.
        keep: See there.

    Returns:
        What is kept, by the keys of the layers that ran, in the order of ``attention_layers``.

    Raises:
        AttendropError: The gradients are not finite; see :func:`attendrop.attribution.finite_gradients.first_finite`.
    """
    run = forward or partial(adapter.forward, inputs or batch)
    recorded: dict[str, Tensor] = {}
    calls: dict[str, AttentionCall] = {}

    def record(call: AttentionCall, found: Tensor) -> None:
        recorded[call.layer.key], calls[call.layer.key] = found, call

    with isolated_pass(adapter.model), evaluating(adapter.model):
        with torch.set_grad_enabled(forward is not None):  # which may run another model as well, without gradients
            outputs = run(RecordPlan(attention_layers, record, units))
            score = fix_target(adapter.model, outputs, batch, target)
        ran = [layer for layer in attention_layers if layer.key in recorded]
        groups = [ran] if scope == "joint" else [[layer] for layer in ran]

        def integral(factor: float) -> dict[str, Tensor] | None:
            total: dict[str, Tensor] = {}

            def add(weight: float, call: AttentionCall, gradient: Tensor) -> None:
                key = call.layer.key
                total[key] = total[key].add_(gradient, alpha=weight) if key in total else gradient * weight

            for group in groups:
                for alpha, weight in quadrature_nodes(rule, steps):
                    plan = ScaledPlan(recorded, alpha, group, partial(add, weight), units)
                    with torch.enable_grad():
                        plan.differentiate(wide(score(run(plan))).sum(), factor)
            return total if all_finite(total.values()) else None

        integrals = first_finite(integral, adapter.model)
    return {key: keep(calls[key], recorded.pop(key) * integrals.pop(key)) for key in [layer.key for layer in ran]}


def quadrature_nodes(rule: str, steps: int) -> list[tuple[float, float]]:
    """Return the points on [0, 1], with weights that sum to 1, of an integration rule with ``steps`` points."""
    if rule == "riemann":
        return [(k / steps, 1 / steps) for k in range(1, steps + 1)]
    points, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(weight) / 2) for x, weight in zip(points, weights, strict=True)]
