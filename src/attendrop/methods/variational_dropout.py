"""Variational dropout: Gaussian noise of attention weights, with a learnt variance per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.plan import Plan
from attendrop.keyed_random import normal
from attendrop.methods.common.own_parameters import ValuePerLayer, own_parameter_rules
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import Rule
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, count, option, positive, unit_interval

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

    name: ClassVar[str] = "variational-dropout"
    summary: ClassVar[str] = "multiplies attention weights by Gaussian noise, and learns its variance in each layer"
    paper: ClassVar[str] = (
        "Kingma, Salimans, Welling (2015), Variational Dropout and the Local Reparameterization Trick"
    )
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("weights", "loss"), state="a variance for each layer, and its optimizer"
    )
    adds_penalty: ClassVar[bool] = True
    needs_loss_scale: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = own_parameter_rules("variational-dropout")

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
        return _Gaussian(self.method, context, self.by_layer())

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        return self.method.kl_weight * divergence(self.values).sum() / self.num_train_rows

    def after_step(self, steps_taken: int) -> dict[str, float]:
        metrics = super().after_step(steps_taken)
        if self.keys:
            self.values.data.clamp_(max=0.0)
        return metrics


class _Gaussian(RandomMaskPlan):
    """Plan that multiplies the weights of each layer by Gaussian samples.

    Args:
        method: The method.
        context: The micro-batch.
        logs: Logarithms of the variances, by layer key.
    """

    def __init__(self, method: Method, context: StepContext, logs: Mapping[str, Tensor]) -> None:
        super().__init__(method, context, logs.keys())
        self.logs = logs

    def make(self, call: AttentionCall) -> AttentionEdit:
        sampled = normal(self.context.key, call.layer.key, call.shape, self.origins(call), call.device)

        def noisy(weights: Tensor) -> Tensor:
            deviation = (self.logs[call.layer.key] / 2).exp()
            return weights * (1 + deviation * sampled).to(weights.dtype)

        return AttentionEdit(weights=noisy)


def divergence(log_alpha: Tensor) -> Tensor:
    """Compute Eq. 14, negated and without its constant, from the logarithm of a variance of at most 1."""
    alpha = log_alpha.exp()
    first, second, third = _COEFFICIENTS
    return -(log_alpha / 2 + first * alpha + second * alpha**2 + third * alpha**3)
