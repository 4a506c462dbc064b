"""Learnable Bernoulli Dropout: attention dropout with a probability per layer, learnt from pairs of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
    LAYERS,
    AntitheticPlan,
    ComputeLoss,
    LearntProbabilities,
    Method,
    MethodInfo,
    MethodState,
    StepContext,
    TrainingContext,
    count,
    option,
    positive,
    unit_interval,
    with_antithetic_pass,
)
from attendrop.methods.common.own_parameters import probability_rules


@dataclass(frozen=True)
class LearnableBernoulli(Method):
    """Dropout of attention weights with a probability per layer, learnt by the ARM estimator.

    A weight is dropped if ``u < p``, with ``u`` uniform in (0, 1), and divided by ``1 - p`` otherwise. The dropout is
    not relaxed, as it is in :class:`attendrop.ConcreteDropout`. The gradient of the log-odds of ``p`` comes from an
    additional pass with ``1 - u`` in place of ``u``: it is the sum over sequences and positions, without padding, of
    ``(f - f') (1/2 - u)``, where ``f`` and ``f'`` are the losses of the sequence in both passes; the gradient through
    ``1 / (1 - p)`` is added. The penalty ``(l^2 / (2 (1 - p)) ||W||^2 - K H(p)) / N``, summed over layers, is that of
    Concrete Dropout. Two forward passes and one backward pass per step.

    Example:
        >>> with regularize(model, LearnableBernoulli(), train_data=loader) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     reg.step()  # updates the probabilities

    Args:
        p: Initial probability, in (0, 1).
        learning_rate: Learning rate of the log-odds, above 0.
        length_scale: Length scale ``l`` of the prior of the weights, above 0.
        entropy_weight: Weight ``K`` of the entropy, above 0.
        num_train_rows: Number of training rows ``N``. 0: determined from the training rows, which must then be known.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; the number of training rows is unknown; or, in training, a
            layer's value projection cannot be found, or there are no labels.

    Source: Boluki et al. (2020), https://arxiv.org/abs/2002.05155, sections 2 and 3, with the estimator of Yin and Zhou
    (2019), https://arxiv.org/abs/1807.11143. There, hidden units and feature maps are dropped; here, attention weights,
    with one probability for each layer. All defaults are ours. ``f`` is the plain loss of a row, without label
    smoothing or class weights. The estimate is unbiased but noisy: a step samples thousands of positions for each
    probability, and one loss per sequence tells of them all. The model's own dropout stays enabled, with the same
    sample in both passes.
    """

    info = MethodInfo(
        "learnable-bernoulli",
        "learns, from pairs of opposite samples, with which probability each layer drops attention",
        "Boluki et al. (2020), Learnable Bernoulli Dropout for Bayesian Deep Learning",
        acts_on=("weights", "loss"),
        forward="2",
        state="a probability for each layer, and its optimizer",
        traits={DECIDES_PASSES: ""},
        rules=probability_rules("learnable-bernoulli"),
        adds_penalty=True,
        reads_weights=True,
        needs_loss_scale=True,
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _Learning(self, training)


class _Learning(LearntProbabilities):
    """State with the log-odds of the probabilities."""

    method: LearnableBernoulli

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        self.begin(context)
        log_odds = self.by_layer()
        loss, outputs, _ = with_antithetic_pass(
            context, compute_loss, lambda antithetic: _Dropped(self.method, context, log_odds, antithetic=antithetic)
        )
        return loss + self.penalty(context, outputs), outputs


class _Dropped(AntitheticPlan):
    """Plan with one probability per layer."""

    def __init__(
        self, method: Method, context: StepContext, log_odds: Mapping[str, Tensor], *, antithetic: bool
    ) -> None:
        super().__init__(method, context, log_odds.keys(), antithetic=antithetic)
        self._log_odds = log_odds

    def log_odds(self, key: str) -> Tensor:
        return self._log_odds[key]
