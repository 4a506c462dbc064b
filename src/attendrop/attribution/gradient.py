"""Attributions: gradients, integrated gradients and attention weights of positions, and importances of heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attendrop.attention.blocks import Block
from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, BlockEdit, DropoutDraws, Plan
from attendrop.attribution.finite_gradients import (
    NOT_FINITE,
    all_true,
    finite_gradients,
    first_finite,
    gradients_of,
    is_finite,
    upcast,
)
from attendrop.attribution.predictions import Forward, fix_target
from attendrop.attribution.recording import GradientPlan, Keep, RecordPlan, isolated_pass
from attendrop.errors import AttendropError
from attendrop.support.models import Batch

if TYPE_CHECKING:
    from attendrop.attention.adapter import ModelAdapter

QUADRATURE_RULES = ("gauss_legendre", "riemann")
SCOPES = ("joint", "layerwise")


def _collect(
    kept: dict[str, Any], finite: list[Tensor], keep: Keep[Any], call: AttentionCall, attribution: Tensor
) -> None:
    """Keep what is kept of an attribution that a plan hands over, and whether it is finite."""
    finite.append(is_finite(attribution))
    kept |= zip([layer.key for layer in call.layers], keep(call, attribution), strict=True)


def gradient_attribution(
    adapter: ModelAdapter,
    batch: Batch,
    attention_layers: Sequence[AttentionLayer],
    target: str,
    *,
    units: str = "attention",
    inputs: Batch | None = None,
    forward: Forward | None = None,
    keep: Keep[Any] = AttentionCall.split,
    draws: DropoutDraws | None = None,
) -> dict[str, Any]:
    """Compute gradient attribution ``dF/dA`` (Eq. 5 of Yang et al., 2022) in one backward pass.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers to attribute to.
        target: ``"pseudo_label"``, ``"gold_label"`` or ``"loss"``, see :func:`fix_target`.
        units: What to attribute to, see :class:`attendrop.attribution.recording.RecordPlan`.
        inputs: Inputs for the model, if it is not given all of ``batch``: a trainer that computes the loss itself
            withholds the labels.
        forward: Runs the pass with a plan, and returns its outputs, such as the ``loss`` of a trainer; by default the
            model itself on ``inputs``.
        keep: Returns what to keep of the attributions in a call of a layer, or of several, for each of its layers; they
            have the shape of the units, in float32 or better. They are computed one after the other, so that those of
            all layers need not exist at once.
        draws: Draws of the model's attention dropout, shared with a later pass.

    Returns:
        What is kept, by the keys of the layers that ran, in the order of ``attention_layers``.

    Raises:
        AttendropError: The gradients are not finite; see :func:`attendrop.attribution.finite_gradients.first_finite`.
    """

    def attempt(factor: float) -> dict[str, Any] | None:
        kept, finite = dict[str, Any](), list[Tensor]()
        plan = GradientPlan(attention_layers, partial(_collect, kept, finite, keep), units, draws)
        with isolated_pass(adapter.model), torch.enable_grad():
            outputs = forward(plan) if forward else adapter.forward(inputs or batch, plan)
            score = fix_target(adapter.model, outputs, batch, target)(outputs)
            plan.differentiate(upcast(score).sum(), factor)
        return kept if all_true(finite) else None

    found = first_finite(attempt, adapter.model)
    return {layer.key: found[layer.key] for layer in attention_layers if layer.key in found}


def attention_attribution(
    adapter: ModelAdapter,
    inputs: Batch,
    attention_layers: Sequence[AttentionLayer],
    *,
    keep: Keep[Any] = AttentionCall.split,
    draws: DropoutDraws | None = None,
) -> dict[str, Any]:
    """Attribute to attention weights by their own size, ``A``, in one forward pass over ``inputs``.

    Other arguments and what is returned are as for :func:`gradient_attribution`; an attribution is ``(batch, heads,
    query, key)``. Raises AttendropError if the weights are not finite.
    """
    kept, finite = dict[str, Any](), list[Tensor]()
    with torch.no_grad(), forked_rng(adapter.model):
        adapter.forward(inputs, RecordPlan(attention_layers, partial(_collect, kept, finite, keep), draws=draws))
    if not all_true(finite):
        raise AttendropError(NOT_FINITE)
    return {layer.key: kept[layer.key] for layer in attention_layers if layer.key in kept}


@dataclass(eq=False)
class ScaledPlan(GradientPlan):
    """Replaces units by recorded ones, by layer key, times ``alpha``, and hands over their gradients."""

    recorded: Mapping[str, Tensor] = field(default_factory=dict)
    alpha: float = 1.0

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
    keep: Keep[Any] = AttentionCall.split,
) -> dict[str, Any]:
    """Compute integrated-gradient attribution ``A * integral of dF(alpha A)/dA``.

    Eq. 3 of Yang et al. (2022), after Hao et al. (2021). The model's dropout is off. The label is fixed by the pass
    with unscaled attention.

    With the ``scope`` ``"joint"``, all layers use ``alpha A`` at once, with ``A`` held constant; one pass per node.
    ``"layerwise"``: one layer is scaled at a time and the layers above recompute theirs, as in Hao et al. The integral
    has ``steps`` nodes on [0, 1], by the ``rule`` ``"gauss_legendre"``, or ``"riemann"`` (right end points, as in the
    papers). Other arguments, what is returned and the error are as for :func:`gradient_attribution`.
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
                for layer, own in zip(call.layers, call.split(gradient), strict=True):
                    key = layer.key
                    total[key] = total[key].add_(own, alpha=weight) if key in total else own * weight

            for group in groups:
                for alpha, weight in quadrature_nodes(rule, steps):
                    plan = ScaledPlan(group, partial(add, weight), units, recorded=recorded, alpha=alpha)
                    with torch.enable_grad():
                        plan.differentiate(upcast(score(run(plan))).sum(), factor)
            return total if all_true(map(is_finite, total.values())) else None

        integrals = first_finite(integral, adapter.model)
    return {key: keep(calls[key], recorded.pop(key) * integrals.pop(key))[0] for key in [layer.key for layer in ran]}


def quadrature_nodes(rule: str, steps: int) -> list[tuple[float, float]]:
    """Return the points on [0, 1], with weights that sum to 1, of an integration rule with ``steps`` points."""
    if rule == "riemann":
        return [(k / steps, 1 / steps) for k in range(1, steps + 1)]
    points, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(weight) / 2) for x, weight in zip(points, weights, strict=True)]


@dataclass(eq=False)
class GatePlan(Plan):
    """Multiplies the output of each head and feed-forward by a gate of one, for each of the ``rows`` of the batch.

    All sequences of a row that attention sees share one; without ``rows``, each has its own, and ``by_token`` each
    token. Heads of the layers with ``layer_keys`` have gates (None: of all), ``feed_forward`` says if the
    feed-forwards do. ``gates`` are ``(rows, heads)`` by ``heads/LAYER``, and ``(rows, 1)`` by ``feed_forward/BLOCK``;
    ``(rows, n, ...)`` by token.
    """

    rows: int | None = None
    layer_keys: Collection[str] | None = None
    feed_forward: bool = False
    by_token: bool = False
    gates: dict[str, Tensor] = field(default_factory=dict)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(output=self._gated(f"heads/{call.layer.key}", call.shape[1], (1,)))

    def block(self, block: Block) -> BlockEdit | None:
        if not self.feed_forward or not block.attention_layers or block.feed_forward is None:
            return None
        return BlockEdit(feed_forward=self._gated(f"feed_forward/{block.key}", 1, ()))

    def _gated(self, key: str, units: int, width: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """Multiply ``(batch, n, units, ...)`` by a gate for each unit of each row, or of each token of it."""

        def gated(output: Tensor) -> Tensor:
            rows = output.shape[0] if self.rows is None or self.by_token else self.rows
            if key not in self.gates:
                dtype = torch.promote_types(output.dtype, torch.float32)
                shape = (rows, output.shape[1], units) if self.by_token else (rows, units)
                self.gates[key] = torch.ones(shape, dtype=dtype, device=output.device, requires_grad=True)
            each = self.gates[key].repeat_interleave(output.shape[0] // rows, 0)
            each = each if self.by_token else each[:, None]
            return output * each.view(*each.shape, *width).to(output.dtype)

        return gated


def head_importance(
    adapter: ModelAdapter, batch: Batch, attention_layers: Sequence[AttentionLayer], forward: Forward | None = None
) -> dict[str, Tensor]:
    """Compute the importance ``|dL/dxi|`` of the heads of each sequence, ``(batch, heads)``.

    ``xi`` is a gate of 1 on the output of a head (Michel et al., 2019), ``L`` the loss. This is a mean over the batch,
    so values compare within a sequence only. Takes one forward and one backward pass.

    Args:
        adapter: The attached and traced model.
        batch: Inputs, with labels.
        attention_layers: Attention layers whose heads to rank.
        forward: See :func:`gradient_attribution`.

    Raises:
        AttendropError: The model returns no loss; or the gradients are not finite, see :func:`finite_gradients`.
    """

    def gradients(factor: float) -> dict[str, Tensor]:
        plan = GatePlan(layer_keys={layer.key for layer in attention_layers})
        with isolated_pass(adapter.model), torch.enable_grad():
            outputs = forward(plan) if forward else adapter.forward(batch, plan)
            loss: Tensor | None = getattr(outputs, "loss", None)
            if loss is None:
                raise AttendropError("Head importance is computed from the loss, and the batch has no 'labels'.")
            return gradients_of(upcast(loss) * factor, list(plan.gates), list(plan.gates.values()))

    found = finite_gradients(gradients, adapter.model)
    return {key.partition("/")[2]: gradient.abs() for key, gradient in found.items()}
