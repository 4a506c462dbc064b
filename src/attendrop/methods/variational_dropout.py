"""Variational dropout: Gaussian noise of attention weights, with a learnt variance per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    StepContext,
    TrainingContext,
    ValuePerLayer,
    count,
    normal,
    option,
    positive,
    unit_interval,
)
from attendrop.methods.common.own_parameters import own_parameter_rules

# The cubic of Eq. 14, fitted by the authors for alpha up to 1.
_COEFFICIENTS = (1.16145124, -1.50204118, 0.58629921)


@dataclass(frozen=True)
class VariationalDropout(Method):
    """Gaussian noise of attention weights with a learnt variance per layer.

    A weight is multiplied by a sample of ``N(1, alpha)``. ``alpha`` is learnt by gradient descent, through the sample
    ``1 + sqrt(alpha) e`` with ``e`` from ``N(0, 1)``, and limited to 1. The penalty ``K D(alpha) / N``, summed over
    layers, is added to the loss, where ``D = -(log(alpha) / 2 + c1 alpha + c2 alpha^2 + c3 alpha^3)`` approximates the
    Kullback-Leibler divergence from the log-uniform prior, up to a constant. The variances have their own Adam
    optimizer, and are not parameters of the model. One pass per step.

    Example:
        >>> with regularize(model, VariationalDropout(), train_data=loader) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     reg.step()  # updates the variances

    Args:
        alpha: Initial variance, in (0, 1]. Dropout with probability ``p`` has the variance ``p / (1 - p)``.
        learning_rate: Learning rate of the logarithms of the variances, above 0.
        kl_weight: Weight ``K`` of the divergence, above 0.
        num_train_rows: Number of training rows ``N``. 0: determined from the training rows, which must then be known.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or the number of training rows is unknown.

    Source: Kingma, Salimans, Welling (2015), https://arxiv.org/abs/1506.02557, section 3 (independent noise of the
    inputs of a linear layer, as in Gaussian dropout) and Eq. 14, including the limit of 1. There, the inputs are hidden
    units, and ``K`` is the number of weights of the layer; here they are the attention weights that multiply the
    values, and ``K`` is 1, so that the prior of a variance counts as one row of data, as for
    :class:`attendrop.ConcreteDropout`. Samples are of single weights, without the local reparametrisation of the sum.
    Rows are not normalised again, and weights may become negative. The defaults are ours: 0.11 is the variance of
    dropout with 0.1. The model's own dropout stays enabled; set it to 0 to use this one only.
    """

    info = MethodInfo(
        "variational-dropout",
        "multiplies attention weights by Gaussian noise, and learns its variance in each layer",
        "Kingma, Salimans, Welling (2015), Variational Dropout and the Local Reparameterization Trick",
        acts_on=("weights", "loss"),
        state="a variance for each layer, and its optimizer",
        rules=own_parameter_rules("variational-dropout"),
        adds_penalty=True,
        needs_loss_scale=True,
    )

    alpha: float = option(0.11, unit_interval(one=True), search=(0.05, 0.25))
    learning_rate: float = option(0.01, positive())
    kl_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _Learning(self, training)


class _Learning(ValuePerLayer):
    """State with the logarithms of the variances."""

    method: VariationalDropout
    note = "variance"

    def __init__(self, method: VariationalDropout, training: TrainingContext) -> None:
        super().__init__(method, training, torch.tensor(method.alpha, dtype=torch.float64).log())

    def reported(self, values: Tensor) -> Tensor:
        return values.exp()

    def learnt_from(self, reported: Tensor) -> Tensor:
        return reported.log()

    def plan(self, context: StepContext) -> Plan:
        self.begin(context)
        logs = self.by_layer()

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            key = call.layer.key
            sampled = normal(context.key, key, call.shape, plan.origins(call), call.device)
            return AttentionEdit(
                weights=lambda weights: weights * (1 + (logs[key] / 2).exp() * sampled).to(weights.dtype)
            )

        return RandomMaskPlan(self.method, context, make, logs.keys())

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        return self.method.kl_weight * divergence(self.values).sum() / self.num_train_rows

    def after_step(self, steps_taken: int) -> dict[str, float]:
        metrics = super().after_step(steps_taken)
        if self.keys:
            self.values.data.clamp_(max=0.0)
        return metrics


def divergence(log_alpha: Tensor) -> Tensor:
    """Compute Eq. 14, negated and without its constant, from the logarithm of a variance of at most 1."""
    alpha = log_alpha.exp()
    first, second, third = _COEFFICIENTS
    return -(log_alpha / 2 + first * alpha + second * alpha**2 + third * alpha**3)
