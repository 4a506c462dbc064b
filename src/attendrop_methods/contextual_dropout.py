"""Contextual dropout: attention dropout with probabilities that a small network derives from what is attended to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    ComputeLoss,
    Method,
    MethodInfo,
    RandomMaskPlan,
    SampleKey,
    StepContext,
    count,
    evaluating,
    forked_rng,
    option,
    positive,
    row_shares,
    unit_interval,
    upcast,
)
from attendrop_methods.own_parameters import AntitheticPlan, OwnParameters, own_parameter_rules, with_antithetic_pass


class _NetworksState(OwnParameters):
    """State with the networks and the priors of the layers."""

    method: ContextualDropout

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        method = self.method
        keys = {layer.key for layer in method.selected_layers(context.adapter.attention_layers)}
        if self.optimizer is None:
            self._create(context, keys)
        self.loss_scale = context.loss_scale
        loss, outputs, plan = with_antithetic_pass(
            context,
            compute_loss,
            lambda antithetic: _NetworksPlan(method, context, keys, self.parameters, antithetic=antithetic),
        )
        shares = row_shares(context.model, outputs, context.batch)
        for key, queries in plan.queries.items():
            log_odds, prior = plan.log_odds(key), self.parameters[f"{key}/prior"]
            weights = query_weights(queries, shares)
            context.note(f"probability/{key}", (weights * log_odds.detach().sigmoid().mean(1)).sum())
            divergence = (weights * bernoulli_divergence(log_odds, prior).sum(1)).sum()
            loss = loss + method.prior_weight * divergence.to(loss.dtype)
        return loss, outputs

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        learnt = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {self.method.source: learnt} if learnt else {}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        source = self.method.source
        if source not in tensors:
            raise AttendropError(f"The run kept no {source}.safetensors, so what it drops is not known.")
        self.create(tensors[source])

    def _create(self, context: StepContext, keys: set[str]) -> None:
        """Create the networks, of the sizes that a pass in evaluation mode, in which no layer is skipped, shows."""
        sizes: dict[str, tuple[int, int]] = {}

        def read(_: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            def seen(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                sizes[call.layer.key] = (value.shape[1], value.shape[1] * value.shape[3])
                return query, key, value

            return AttentionEdit(inputs=seen)

        with torch.no_grad(), forked_rng(context.model), evaluating(context.model):
            context.adapter.forward(context.inputs, RandomMaskPlan(self.method, context, read, keys))
        hidden, logit = self.method.hidden, torch.logit(torch.tensor(self.method.p))
        initial: dict[str, Tensor] = {}
        for key, (heads, width) in sizes.items():
            generator = torch.Generator().manual_seed(SampleKey(context.key.seed, 0, 0, 1).seeds(key, 1)[0] >> 1)
            initial[f"{key}/first"] = torch.randn(hidden, width, generator=generator) / width**0.5
            initial[f"{key}/first bias"] = torch.zeros(hidden)
            initial[f"{key}/second"] = torch.zeros(heads, hidden)
            initial[f"{key}/second bias"] = logit.repeat(heads)
            initial[f"{key}/prior"] = logit
        self.create(initial)


@dataclass(frozen=True)
class ContextualDropout(Method):
    """Dropout of attention weights with a probability for each head and query, derived from the values it may read.

    In each layer a network of two linear layers, ``W2 leaky_relu(W1 c + b1) + b2``, computes the log-odds of each
    head's probability from ``c``, the normalised mean of the layer's values over the keys that a query may attend to.
    This is one mean for the whole sequence, except in causal attention, where no mean depends on later tokens. A weight
    is dropped if ``u < p``, with ``u`` uniform in (0, 1), and divided by ``1 - p`` otherwise. The networks are trained
    by the ARM estimator, from an additional pass with ``1 - u`` in place of ``u``, see
    :class:`attendrop_methods.LearnableBernoulli`. The penalty is ``prior_weight`` times the mean over the queries of a
    row, without padding, of ``KL(Bernoulli(p) || Bernoulli(p0))``, summed over heads and layers, where the prior ``p0``
    is learnt for each layer; rows are weighted as in the loss. Two forward passes and one backward pass per step;
    ``reg.step()`` of a custom loop updates the networks.

    Args:
        p: Probability of all heads and queries at the start, in (0, 1).
        hidden: Number of hidden units of a network, 1 or more.
        learning_rate: Learning rate of the networks and priors, above 0.
        prior_weight: Weight of the divergence from the prior, 0 or more.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, there are no labels.

    Source: Fan et al. (2021), https://arxiv.org/abs/2103.04181, section 2: contextual Bernoulli dropout with a
    learnable prior; their Gaussian form is not included. Here the networks read the values of a layer, without passing
    gradients on to the model, and one probability serves all keys of a query, where theirs compute several. The weights
    of the last linear layer start at zero, and its bias at the log-odds of ``p``. All defaults are ours. The estimator
    compares plain losses of rows, without label smoothing or class weights. The model's own dropout stays enabled, with
    the same sample in both passes.
    """

    info = MethodInfo(
        "contextual-dropout",
        "learns networks that derive the drop probabilities of heads from what they may attend to",
        "Fan et al. (2021), Contextual Dropout: An Efficient Sample-Dependent Dropout Module",
        link="https://arxiv.org/abs/2103.04181",
        acts_on=("weights", "loss"),
        forward="2",
        state="a small network for each layer, and their optimizer",
        rules=own_parameter_rules("contextual-dropout"),
        needs_loss_scale=True,
    )
    state_class = _NetworksState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    hidden: int = option(16, count())
    learning_rate: float = option(0.001, positive())
    prior_weight: float = option(0.01, positive(zero=True))
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _NetworksPlan(AntitheticPlan):
    """Plan that drops with the probabilities that the networks compute, given their parameters by name."""

    def __init__(
        self,
        method: Method,
        context: StepContext,
        keys: set[str],
        parameters: Mapping[str, Tensor],
        *,
        antithetic: bool,
    ) -> None:
        super().__init__(method, context, keys, antithetic=antithetic)
        self.parameters = parameters
        self.contexts: dict[str, Tensor] = {}

    def make(self, call: AttentionCall) -> AttentionEdit:
        def read(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            self.contexts[call.layer.key] = mean_values(call, value.detach())
            return query, key, value

        return replace(super().make(call), inputs=read)

    def log_odds(self, key: str) -> Tensor:
        first, bias, second, second_bias = (
            self.parameters[f"{key}/{name}"] for name in ("first", "first bias", "second", "second bias")
        )
        context = self.contexts[key]
        with torch.autocast(context.device.type, enabled=False):  # both within the model and after its pass
            hidden = functional.leaky_relu(functional.linear(context, first, bias))
            return functional.linear(hidden, second, second_bias).transpose(1, 2)


def mean_values(call: AttentionCall, value: Tensor) -> Tensor:
    """Compute the normalised mean of ``value``, ``(batch, heads, key, dim)``, over the valid keys of each query.

    It is ``(batch, query, width)``; ``(batch, 1, width)`` if all keys are valid.
    """
    value = upcast(value).transpose(1, 2).flatten(2)
    valid = torch.ones(1, 1, value.shape[1], device=value.device) if call.valid is None else call.valid.any(1)
    with torch.autocast(value.device.type, enabled=False):
        mean = valid.to(value.dtype) @ value / valid.sum(-1, keepdim=True).clamp(min=1)
    mean = mean.float()
    return functional.layer_norm(mean, mean.shape[-1:])


def query_weights(queries: Tensor, shares: Tensor) -> Tensor:
    """Divide the ``shares`` of rows in the loss, ``(rows,)``, among their queries that are not padding.

    Both are ``(batch, query)``; the sequences of a row (its choices) are adjacent.
    """
    weights = queries / queries.sum(-1, keepdim=True).clamp(min=1)
    real = queries.any(-1).view(len(shares), -1)
    return weights * (shares[:, None] * real / real.sum(-1, keepdim=True).clamp(min=1)).view(-1, 1)


def bernoulli_divergence(log_odds: Tensor, prior: Tensor) -> Tensor:
    """Compute ``KL(P || Q)`` of two Bernoulli variables with the given log-odds."""
    kept, dropped = functional.logsigmoid(-log_odds), functional.logsigmoid(log_odds)
    return dropped.exp() * (dropped - functional.logsigmoid(prior)) + kept.exp() * (
        kept - functional.logsigmoid(-prior)
    )
