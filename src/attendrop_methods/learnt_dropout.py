"""Attention dropout with a learnt probability or variance per layer."""

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
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    TrainingContext,
    count,
    normal,
    option,
    positive,
    unit_interval,
)
from attendrop_methods.own_parameters import (
    AntitheticPlan,
    LearntProbabilities,
    ValuePerLayer,
    own_parameter_rules,
    probability_rules,
    with_antithetic_pass,
)


class _ConcreteState(LearntProbabilities):
    """State with the log-odds of the probabilities."""

    method: ConcreteDropout

    def plan(self, context: StepContext) -> Plan:
        self.begin(context)
        logits = self.by_layer()

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            uniform, logit = plan.uniform(call), logits[call.layer.key]

            def relaxed(weights: Tensor) -> Tensor:
                exact = uniform.to(torch.promote_types(weights.dtype, torch.float32))
                kept = torch.sigmoid(-(logit + torch.logit(exact)) / self.method.temperature)  # 1 - z
                return weights * (kept / torch.sigmoid(-logit)).to(weights.dtype)

            return AttentionEdit(weights=relaxed)

        return RandomMaskPlan(self.method, context, make, logits.keys())


@dataclass(frozen=True)
class ConcreteDropout(Method):
    """Dropout of attention weights with a learnt probability per layer.

    A weight is multiplied by ``(1 - z) / (1 - p)`` with ``z = sigmoid((log p - log(1 - p) + log u - log(1 - u)) / t)``
    and ``u`` uniform in (0, 1): ``z`` is a relaxed sample close to 0 or 1, through which gradients reach ``p``. The
    penalty ``(l^2 / (2 (1 - p)) ||W||^2 - K H(p)) / N``, summed over layers, with the entropy ``H``, is added to the
    loss. The probabilities have their own Adam optimizer, and are not parameters of the model; ``reg.step()`` of a
    custom loop updates them.

    Args:
        p: Initial probability, in (0, 1).
        learning_rate: Learning rate of the log-odds of the probabilities, above 0.
        length_scale: Length scale ``l`` of the prior of the weights, above 0.
        entropy_weight: Weight ``K`` of the entropy, above 0, which pulls all probabilities towards 1/2 equally.
        num_train_rows: Number of training rows ``N``. 0: that of the training rows, which must then be known.
        temperature: Temperature ``t`` of the relaxation, above 0.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: The number of training rows is unknown; or, in training, a layer's value projection cannot be
            found.

    Source: Gal, Hron, Kendall (2017), https://arxiv.org/abs/1705.07832, sections 2 and 3, including ``t`` = 0.1, the
    initial probability of 0.1 and, from their code, ``l`` = 1e-4. There the input features of a layer are dropped, each
    with a row of ``W``, and ``K`` is their number. An attention weight has no row of ``W``, so ``K`` and ``W`` are our
    choice: ``K`` is 1, so that the prior of a probability counts as one row of data; ``W`` is the weight of the layer's
    value projection, including that of a LoRA adapter. A joint projection of queries, keys and values is supported if
    they have this order and the same width (GPT-2, ModernBERT). Their ``W`` is ours over ``1 - p``, since kept weights
    are scaled up. The learning rate is ours, because fine-tuning takes few steps. The model's own dropout stays
    enabled. In 60 steps on 160 rows of RTE, probabilities moved from 0.1 to between 0.10 and 0.15; differences between
    layers come from the gradient of the loss, even with shuffled labels, because the prior pulls all layers equally.
    """

    info = MethodInfo(
        "concrete-dropout",
        "learns the probability with which each layer drops attention weights",
        "Gal, Hron, Kendall (2017), Concrete Dropout",
        link="https://arxiv.org/abs/1705.07832",
        acts_on=("weights", "loss"),
        state="a probability for each layer, and its optimizer",
        rules=probability_rules("concrete-dropout"),
        reads_weights=True,
        needs_loss_scale=True,
    )
    state_class = _ConcreteState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    temperature: float = option(0.1, positive())
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _BernoulliState(LearntProbabilities):
    """State with the log-odds of the probabilities."""

    method: LearnableBernoulli

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        self.begin(context)
        log_odds = self.by_layer()
        loss, outputs, _ = with_antithetic_pass(
            context,
            compute_loss,
            lambda antithetic: AntitheticPlan(self.method, context, log_odds, antithetic=antithetic),
        )
        return loss + self.penalty(context, outputs), outputs


@dataclass(frozen=True)
class LearnableBernoulli(Method):
    """Dropout of attention weights with a probability per layer, learnt by the ARM estimator.

    A weight is dropped if ``u < p``, with ``u`` uniform in (0, 1), and divided by ``1 - p`` otherwise. The gradient of
    the log-odds of ``p`` comes from an additional pass with ``1 - u`` in place of ``u``: it is the sum over sequences
    and positions, without padding, of ``(f - f') (1/2 - u)``, where ``f`` and ``f'`` are the losses of the sequence in
    both passes; the gradient through ``1 / (1 - p)`` is added. Penalty and optimizer are those of
    :class:`attendrop_methods.ConcreteDropout`. Two forward passes and one backward pass per step.

    Args:
        p: Initial probability, in (0, 1).
        learning_rate: Learning rate of the log-odds, above 0.
        length_scale: Length scale of the prior of the weights, above 0.
        entropy_weight: Weight of the entropy, above 0.
        num_train_rows: Number of training rows. 0: that of the training rows, which must then be known.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: The number of training rows is unknown; or, in training, a layer's value projection cannot be
            found, or there are no labels.

    Source: Boluki et al. (2020), https://arxiv.org/abs/2002.05155, sections 2 and 3, with the estimator of Yin and Zhou
    (2019), https://arxiv.org/abs/1807.11143. There, hidden units and feature maps are dropped; here, attention weights,
    with one probability for each layer. All defaults are ours. ``f`` is the plain loss of a row, without label
    smoothing or class weights. The estimate is unbiased but noisy: thousands of sampled positions share one loss per
    sequence. The model's own dropout stays enabled, with the same sample in both passes.
    """

    info = MethodInfo(
        "learnable-bernoulli",
        "learns each layer's attention dropout probability from pairs of opposite samples",
        "Boluki et al. (2020), Learnable Bernoulli Dropout for Bayesian Deep Learning",
        link="https://arxiv.org/abs/2002.05155",
        acts_on=("weights", "loss"),
        forward="2",
        state="a probability for each layer, and its optimizer",
        rules=probability_rules("learnable-bernoulli"),
        reads_weights=True,
        needs_loss_scale=True,
    )
    state_class = _BernoulliState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _VariationalState(ValuePerLayer):
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


@dataclass(frozen=True)
class VariationalDropout(Method):
    """Gaussian noise on attention weights with a learnt variance per layer.

    A weight is multiplied by a sample of ``N(1, alpha)``. ``alpha`` is learnt by gradient descent, through the sample
    ``1 + sqrt(alpha) e`` with ``e`` from ``N(0, 1)``, and limited to 1. The penalty ``K D(alpha) / N``, summed over
    layers, is added to the loss, where ``D = -(log(alpha) / 2 + c1 alpha + c2 alpha^2 + c3 alpha^3)`` approximates the
    Kullback-Leibler divergence from the log-uniform prior, up to a constant. The variances have their own Adam
    optimizer, as the probabilities of :class:`attendrop_methods.ConcreteDropout` do.

    Args:
        alpha: Initial variance, in (0, 1]. Dropout with probability ``p`` has the variance ``p / (1 - p)``.
        learning_rate: Learning rate of the logarithms of the variances, above 0.
        kl_weight: Weight ``K`` of the divergence, above 0.
        num_train_rows: Number of training rows ``N``. 0: that of the training rows, which must then be known.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: The number of training rows is unknown.

    Source: Kingma, Salimans, Welling (2015), https://arxiv.org/abs/1506.02557, section 3 (independent noise of the
    inputs of a linear layer, as in Gaussian dropout) and Eq. 14, including the limit of 1. There, the inputs are hidden
    units, and ``K`` is the number of weights of the layer; here they are the attention weights, and ``K`` is 1, so that
    the prior of a variance counts as one row of data. Samples are of single weights, without the local
    reparametrisation of the sum. Rows are not normalised again, and weights may become negative. The defaults are ours:
    0.11 is the variance of dropout with 0.1. The model's own dropout stays enabled.
    """

    info = MethodInfo(
        "variational-dropout",
        "multiplies attention weights by Gaussian noise, and learns its variance in each layer",
        "Kingma, Salimans, Welling (2015), Variational Dropout and the Local Reparameterization Trick",
        link="https://arxiv.org/abs/1506.02557",
        acts_on=("weights", "loss"),
        state="a variance for each layer, and its optimizer",
        rules=own_parameter_rules("variational-dropout"),
        needs_loss_scale=True,
    )
    state_class = _VariationalState

    alpha: float = option(0.11, unit_interval(one=True), search=(0.05, 0.25))
    learning_rate: float = option(0.01, positive())
    kl_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)


def divergence(log_alpha: Tensor) -> Tensor:
    """Compute Eq. 14, negated and without its constant, from the logarithm of a variance of at most 1."""
    alpha = log_alpha.exp()
    first, second, third = 1.16145124, -1.50204118, 0.58629921  # fitted by the authors for variances up to 1
    return -(log_alpha / 2 + first * alpha + second * alpha**2 + third * alpha**3)
