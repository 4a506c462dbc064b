"""How much each attention position contributes to a prediction: gradient, integrated gradient, attention weight.

Every function returns ``{site key: attribution}`` with attributions of the shape of the units, which is ``(batch,
heads, query, key)`` for attention; a layer that the model skips in the pass (its own LayerDrop) has none. It leaves
parameters, their gradients, the model's mode and the global random state as they were. ``A`` is always the weights as
they multiply the values, after the model's own dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention import Attachment, Plan, evaluating, forked_rng
from attendrop.errors import AttendropError
from attendrop.gates import Gates
from attendrop.gradients import NOT_FINITE, all_finite, finite_gradients, gradients_of, wide
from attendrop.labels import aligned_labels
from attendrop.scoring import Call, Edit
from attendrop.sites import Site

Batch = Mapping[str, Any]
# From the outputs of a pass to what is attributed, one number for each sequence: shape (batch,).
Target = Callable[[Any], Tensor]

RULES = ("gauss_legendre", "riemann")
SCOPES = ("joint", "layerwise")


class Record(Plan):
    """Keeps the units of some sites, as nodes of the graph of the pass.

    Args:
        sites: Where.
        units: ``"attention"``: the weights ``A``; ``"hidden"``: what the heads put out, ``(batch, query, heads, dim)``.
    """

    def __init__(self, sites: Sequence[Site], units: str = "attention") -> None:
        super().__init__()
        self._wanted = [site.key for site in sites]
        self.units = units
        self.recorded: dict[str, Tensor] = {}

    @property
    def keys(self) -> list[str]:
        """The sites that ran, in the order in which they were asked for: a model may skip layers (LayerDrop)."""
        return [key for key in self._wanted if key in self.recorded]

    def wants(self, site: Site) -> bool:
        return site.key in self._wanted

    def edit(self, call: Call) -> Edit:
        keep = partial(self._keep, call.site.key)
        return Edit(weights=keep) if self.units == "attention" else Edit(output=keep)

    def _keep(self, key: str, units: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not units.requires_grad:
            units = units.detach().requires_grad_()
        self.recorded.setdefault(key, units)
        return units

    def in_order(self) -> list[Tensor]:
        """What was recorded, in the order of :attr:`keys`; under gradients, fit to differentiate by.

        Some models run some of their layers without gradients: nothing depends on what was recorded there.
        """
        found = [self.recorded[key] for key in self.keys]
        if not torch.is_grad_enabled():
            return found
        return [units if units.requires_grad else units.detach().requires_grad_() for units in found]


class Replace(Plan):
    """Uses given units at some sites; see :class:`Record`."""

    def __init__(self, given: Mapping[str, Tensor], units: str = "attention") -> None:
        super().__init__()
        self.given = given
        self.units = units

    def wants(self, site: Site) -> bool:
        return site.key in self.given

    def edit(self, call: Call) -> Edit:
        units = self.given[call.site.key]
        return Edit(replace=units) if self.units == "attention" else Edit(output=lambda _: units)


def gradient(
    attachment: Attachment,
    batch: Batch,
    sites: Sequence[Site],
    target: str,
    *,
    units: str = "attention",
    inputs: Batch | None = None,
) -> dict[str, Tensor]:
    """Gradient attribution ``dF/dA`` (Eq. 5 of Yang et al., 2022), of all sites in one backward pass.

    Args:
        attachment: The attached, probed model.
        batch: Its inputs, with labels.
        sites: Attention layers to attribute to.
        target: ``"pseudo_label"`` or ``"gold_label"``, see :func:`fix_target`.
        units: What is attributed to, see :class:`Record`.
        inputs: What to run the model on, if not all of ``batch``: a trainer that computes the loss itself withholds
            the labels.

    Raises:
        AttendropError: The gradients are not finite; see :func:`finite_gradients`.
    """

    def gradients(factor: float) -> dict[str, Tensor]:
        record = Record(sites, units)
        with _isolated(attachment.model), torch.enable_grad():
            outputs = attachment.forward(inputs or batch, record)
            score = fix_target(attachment.model, outputs, batch, target)(outputs)
            return gradients_of(wide(score).sum() * factor, record.keys, record.in_order())

    return finite_gradients(gradients)


def head_importance(attachment: Attachment, batch: Batch, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Importance ``|dL/dxi|`` of the heads of each sequence, ``(batch, heads)``, in one pass forward and one backward.

    ``xi`` is a gate of 1 on what a head puts out (Michel et al., 2019), ``L`` the loss that the model computes. That
    is a mean over the batch, so that values compare within a sequence alone.

    Args:
        attachment: The attached, probed model.
        batch: Its inputs, with labels.
        sites: Attention layers whose heads are asked for.

    Raises:
        AttendropError: The model returns no loss; or the gradients are not finite, see :func:`finite_gradients`.
    """

    def gradients(factor: float) -> dict[str, Tensor]:
        plan = Gates(heads={site.key for site in sites})
        with _isolated(attachment.model), torch.enable_grad():
            loss: Tensor | None = getattr(attachment.forward(batch, plan), "loss", None)
            if loss is None:
                raise AttendropError("The importance of heads is that for the loss, and the batch has no 'labels'.")
            return gradients_of(wide(loss) * factor, list(plan.gates), list(plan.gates.values()))

    return {key.partition("/")[2]: gradient.abs() for key, gradient in finite_gradients(gradients).items()}


def attention(attachment: Attachment, inputs: Batch, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Attention attribution: ``A`` itself. Takes one pass forward and none backward.

    Raises:
        AttendropError: The weights are not finite.
    """
    record = Record(sites)
    with torch.no_grad(), forked_rng(attachment.model):
        attachment.forward(inputs, record)
    found = dict(zip(record.keys, record.in_order(), strict=True))
    if not all_finite(found.values()):
        raise AttendropError(NOT_FINITE)
    return found


def integrated_gradient(
    attachment: Attachment,
    batch: Batch,
    sites: Sequence[Site],
    target: str,
    *,
    scope: str = "joint",
    rule: str = "gauss_legendre",
    steps: int = 8,
    units: str = "attention",
    inputs: Batch | None = None,
) -> dict[str, Tensor]:
    """Integrated-gradient attribution ``A * integral of dF(alpha A)/dA``.

    Eq. 3 of Yang et al. (2022), after Hao et al. (2021). The model's dropout is off throughout. The label is fixed by
    the pass with unscaled attention.

    Args:
        attachment: The attached, probed model.
        batch: Its inputs, with labels.
        sites: Attention layers to attribute to.
        target: See :func:`fix_target`.
        scope: ``"joint"``: all sites use ``alpha A`` at once, with ``A`` held constant; one pass per node.
            ``"layerwise"``: one site is scaled at a time and the layers above recompute theirs, as in Hao et al.
        rule: ``"gauss_legendre"``, or ``"riemann"`` (right end points, as in the papers).
        steps: Number of nodes on [0, 1].
        units: What is attributed to, see :class:`Record`.
        inputs: See :func:`gradient`.

    Raises:
        AttendropError: The gradients are not finite; see :func:`finite_gradients`.
    """
    record = Record(sites, units)
    with _isolated(attachment.model), evaluating(attachment.model):
        with torch.no_grad():
            outputs = attachment.forward(inputs or batch, record)
            score = fix_target(attachment.model, outputs, batch, target)
            recorded = dict(zip(record.keys, record.in_order(), strict=True))
        groups = [list(recorded)] if scope == "joint" else [[key] for key in recorded]

        def integral(factor: float) -> dict[str, Tensor]:
            total: dict[str, Tensor] = {}
            for group in groups:
                for alpha, share in nodes(rule, steps):
                    leaves = [(recorded[key] * alpha).requires_grad_() for key in group]
                    plan = Replace(dict(zip(group, leaves, strict=True)), units)
                    with torch.enable_grad():
                        scores = score(attachment.forward(inputs or batch, plan))
                        found = gradients_of(wide(scores).sum() * factor, group, leaves)
                    for key in group:
                        total[key] = total.get(key, 0) + share * wide(found[key])
            return total

        integrals = finite_gradients(integral)
    return {key: recorded[key] * integrals[key] for key in recorded}


def nodes(rule: str, steps: int) -> list[tuple[float, float]]:
    """Points on [0, 1] and their shares, which sum to 1, of a rule of integration with ``steps`` points."""
    if rule == "riemann":
        return [(k / steps, 1 / steps) for k in range(1, steps + 1)]
    points, shares = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(share) / 2) for x, share in zip(points, shares, strict=True)]


def fix_target(model: nn.Module, outputs: Any, batch: Batch, target: str) -> Target:
    """Decide what is attributed, from the outputs of a pass, and return it as a function of the outputs of any pass.

    ====================================  ==========================================================================
    classification, multiple choice       the logit of the target class
    several labels per text               log-likelihood of the target labels
    regression                            the negative squared error on the gold value, whatever ``target``
    token-level, sequence-to-sequence     log-likelihood of the target tokens at the positions that have a label
    question answering (spans)            the logits of the target's first and last token
    ====================================  ==========================================================================

    Args:
        model: The model, for its kind.
        outputs: What it returned, with ``logits``.
        batch: What it was given. Gold labels and regression need ``labels``.
        target: ``"pseudo_label"``: what the model predicts in ``outputs`` (Eq. 4); ``"gold_label"``.

    Raises:
        AttendropError: Labels are needed and missing, or the outputs are of no known form.
    """
    if hasattr(outputs, "start_logits"):
        return _span_target(outputs, batch, target)
    logits: Tensor | None = getattr(outputs, "logits", None)
    if logits is None or logits.ndim not in (2, 3):
        form = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise AttendropError(
            f"{type(model).__name__} returns {form}; attribution needs (batch, ...) or (batch, n, ...)."
        )
    labels = batch.get("labels")
    problem = getattr(model.config, "problem_type", None)
    if logits.ndim == 3:
        return _token_target(logits, aligned_labels(model, logits, batch), batch, target)
    if logits.shape[-1] == 1 or problem == "regression":
        gold = _required(labels, "regression").reshape(logits.shape)
        return lambda outputs: -(outputs.logits - gold.to(outputs.logits.dtype)).square().sum(-1)
    if problem == "multi_label_classification":
        chosen = _required(labels, "gold_label") if target == "gold_label" else (logits > 0)
        sign = chosen.to(logits.dtype) * 2 - 1
        return lambda outputs: functional.logsigmoid(sign * outputs.logits).sum(-1)
    chosen = _required(labels, "gold_label") if target == "gold_label" else logits.detach().argmax(-1)
    picked = chosen.reshape(-1, 1)
    return lambda outputs: Tensor.squeeze(outputs.logits.gather(-1, picked), -1)


def _span_target(outputs: Any, batch: Batch, target: str) -> Target:
    if target == "gold_label":
        first = _required(batch.get("start_positions"), "gold_label", "start_positions")
        last = _required(batch.get("end_positions"), "gold_label", "end_positions")
    else:
        first, last = outputs.start_logits.argmax(-1), outputs.end_logits.argmax(-1)

    def pick(logits: Tensor, position: Tensor) -> Tensor:
        return logits.gather(-1, position.clamp(0, logits.shape[-1] - 1)[:, None]).squeeze(-1)

    def score(outputs: Any) -> Tensor:
        return pick(outputs.start_logits, first) + pick(outputs.end_logits, last)

    return score


def _token_target(logits: Tensor, labels: Tensor | None, batch: Batch, target: str) -> Target:
    if labels is not None:
        scored = labels != -100
    elif batch.get("attention_mask") is not None and batch["attention_mask"].shape == logits.shape[:2]:
        scored = batch["attention_mask"].bool()
    else:
        scored = torch.ones_like(logits[..., 0], dtype=torch.bool)
    chosen = _required(labels, "gold_label") if target == "gold_label" else logits.detach().argmax(-1)
    chosen = chosen.where(scored, 0)[..., None]

    def score(outputs: Any) -> Tensor:
        likelihood = functional.log_softmax(outputs.logits, dim=-1).gather(-1, chosen).squeeze(-1)
        return torch.where(scored, likelihood, 0).sum(-1)

    return score


def _required(labels: Tensor | None, purpose: str, name: str = "labels") -> Tensor:
    if labels is None:
        raise AttendropError(f"The batch has no '{name}', which attribution needs here ({purpose}).")
    return labels


@contextmanager
def _isolated(model: nn.Module) -> Iterator[None]:
    """Run extra passes without a trace: parameters take no part in the graph, random states are put back.

    Without parameters in it the graph begins at the lowest attributed layer and keeps fewer activations.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with forked_rng(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
