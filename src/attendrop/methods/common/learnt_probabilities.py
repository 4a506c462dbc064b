"""Learnt drop probabilities of attention layers, and the prior of Concrete Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.projections import ValueProjection, find_value_projection
from attendrop.attribution.finite_gradients import wide
from attendrop.errors import AttendropError
from attendrop.methods.common.own_parameters import ValuePerLayer, own_parameter_rules
from attendrop.methods.core.compatibility import SKIPS_BLOCKS, Rule
from attendrop.methods.core.context import StepContext, TrainingContext


class LearntProbabilities(ValuePerLayer):
    """State with the log-odds of a drop probability per layer, and the penalty of their prior.

    The penalty is ``(l^2 / (2 (1 - p)) ||W||^2 - K H(p)) / N``, summed over layers, where ``W`` is the weight of the
    layer's value projection, and ``H`` the entropy of a Bernoulli variable.

    Args:
        method: The method; ``p``, ``length_scale``, ``entropy_weight`` and ``num_train_rows`` are among its options.
        training: The model and its training rows.
    """

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method, training, torch.logit(torch.tensor(method.p, dtype=torch.float64)))
        self.length_scale, self.entropy_weight = method.length_scale, method.entropy_weight
        self._projections: dict[str, ValueProjection] = {}

    def reported(self, values: Tensor) -> Tensor:
        return values.sigmoid()

    def learnt_from(self, reported: Tensor) -> Tensor:
        return torch.logit(reported)

    def begin(self, context: StepContext) -> Sequence[AttentionLayer]:
        attention_layers = super().begin(context)
        if not self._projections:
            self._projections = value_projections(context.adapter, attention_layers)
        return attention_layers

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        total = torch.zeros((), device=self.values.device)
        for key, logit in self.by_layer().items():
            weight = self._projections[key].weight()
            norm = wide(weight).square().sum() / (2 * torch.sigmoid(-logit))
            total = total + self.length_scale**2 * norm - self.entropy_weight * entropy(logit)
        return total / self.num_train_rows


def probability_rules(name: str) -> tuple[Rule, ...]:
    """Return the rules of a method with learnt probabilities and the penalty of their prior."""
    return (
        *own_parameter_rules(name),
        Rule(
            name,
            SKIPS_BLOCKS,
            "The penalty uses the weights of every block, including skipped ones, whose dropout is not applied and "
            "whose gradients DDP cannot reduce.",
        ),
    )


def entropy(logit: Tensor) -> Tensor:
    """Compute the entropy, in nats, of a Bernoulli variable with the given log-odds."""
    return -(torch.sigmoid(logit) * logsigmoid(logit) + torch.sigmoid(-logit) * logsigmoid(-logit))


def value_projections(adapter: ModelAdapter, attention_layers: Sequence[AttentionLayer]) -> dict[str, ValueProjection]:
    """Find the value projection of each attention layer, by the layer's key."""
    names = {module: name.rpartition(".")[2] for name, module in adapter.model.named_modules()}
    inputs = {key: modules for block in adapter.blocks for key, modules in block.input_projections.items()}
    found: dict[str, ValueProjection] = {}
    for layer in attention_layers:
        projection = find_value_projection((names[module], module) for module in inputs.get(layer.key, []))
        if projection is None:
            raise AttendropError(
                f"The value projection of {layer.name} cannot be found; choose other layers, or another method."
            )
        found[layer.key] = projection
    return found
