"""Parameters of a method, trained beside the model by a separate optimizer: probabilities, networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.projections import ValueProjection, find_value_projection
from attendrop.attribution.finite_gradients import wide
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.methods.core.info import EXCHANGES_WEIGHTS, SECOND_MODEL, SKIPS_BLOCKS, Rule
from attendrop.model_support.batches import Batch


class OwnParameters(MethodState):
    """State with parameters that the gradient of the training loss reaches, and their Adam optimizer.

    Attributes:
        parameters: The parameters, by name; empty until :meth:`create`.
        optimizer: Their optimizer; None until :meth:`create`.
        loss_scale: Factor by which their gradients are multiplied under float16.
    """

    def __init__(self, method: Method, training: TrainingContext, learning_rate: float) -> None:
        super().__init__(method)
        self.training = training
        self.learning_rate = learning_rate
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss_scale = 1.0

    def create(self, initial: Mapping[str, Tensor]) -> None:
        """Create the parameters, with these values, and their optimizer."""
        device = next(self.training.model.parameters()).device
        self.parameters = {name: nn.Parameter(value.to(device, copy=True)) for name, value in initial.items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=self.learning_rate)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        found = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        if self.optimizer is None or not found:
            return {}
        processes = self.training.processes
        flat = torch.cat([gradient.flatten() for gradient in found])
        flat = processes.total(flat) / (processes.world_size * self.loss_scale)
        if flat.isfinite().all():  # skip steps that overflow under float16
            for gradient, own in zip(found, torch.split(flat, [each.numel() for each in found]), strict=True):
                gradient.copy_(own.view_as(gradient))
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {}

    def state_dict(self) -> dict[str, Any]:
        if self.optimizer is None:
            return {}
        parameters = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {"parameters": parameters, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if state:
            self.create(state["parameters"])
            assert self.optimizer is not None
            self.optimizer.load_state_dict(state["optimizer"])


class ValuePerLayer(OwnParameters):
    """State with one learnt number per selected attention layer, created at the first pass.

    Among the method's options are ``num_train_rows`` and ``learning_rate``; ``initial`` is the value at the start.

    Attributes:
        note: Name of the numbers in the log.
        num_train_rows: Number of training rows, by which the term of a prior is divided.
        keys: Keys of the layers.

    Raises:
        AttendropError: The number of training rows is unknown.
    """

    note = "probability"

    def __init__(self, method: Any, training: TrainingContext, initial: Tensor) -> None:
        super().__init__(method, training, method.learning_rate)
        self.initial = initial
        data: Any = training.train_data
        self.num_train_rows = method.num_train_rows or (len(data) if hasattr(data, "__len__") else 0)
        if not self.num_train_rows:
            raise AttendropError(
                f"Method '{method.name}' needs the number of training rows for the weight of its prior: pass "
                "train_data, or set num_train_rows."
            )
        self.keys: list[str] = []

    @property
    def values(self) -> nn.Parameter:
        """The learnt numbers, ``(layers,)``."""
        return self.parameters["values"]

    def by_layer(self) -> dict[str, Tensor]:
        """Return the learnt numbers by the key of their layer."""
        return dict(zip(self.keys, self.values, strict=True)) if self.keys else {}

    def reported(self, values: Tensor) -> Tensor:
        """Convert the learnt numbers to what logs and reports show."""
        raise NotImplementedError

    def learnt_from(self, reported: Tensor) -> Tensor:
        """Convert reported numbers back."""
        raise NotImplementedError

    def begin(self, context: StepContext) -> Sequence[AttentionLayer]:
        """Return the selected layers; the first call creates their numbers."""
        attention_layers = self.method.selected_layers(context.adapter.attention_layers)
        if self.optimizer is None:
            self._create([layer.key for layer in attention_layers], self.initial.repeat(len(attention_layers)))
        self.loss_scale = context.loss_scale
        for key, value in zip(self.keys, self.reported(self.values.detach()), strict=True):
            context.note(f"{self.note}/{key}", value)
        return attention_layers

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "layers": self.keys} if self.keys else {}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        super().load_state_dict(state, rank_state)
        self.keys = list(state.get("layers", []))

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report what was learnt for each layer."""
        learnt = self.reported(self.values.detach()).tolist() if self.keys else []
        return {self.method.source: dict(zip(self.keys, learnt, strict=True))}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        learnt: Mapping[str, float] = metrics.get(self.method.source, {})
        if learnt:
            self._create(list(learnt), self.learnt_from(torch.tensor(list(learnt.values()), dtype=torch.float64)))

    def _create(self, keys: list[str], values: Tensor) -> None:
        self.keys = keys
        self.create({"values": values.float()})


class LearntProbabilities(ValuePerLayer):
    """State with the log-odds of a drop probability per layer, and the penalty of their prior.

    The penalty is that of :class:`attendrop.ConcreteDropout`. Among the method's options are ``p``, ``length_scale``,
    ``entropy_weight`` and ``num_train_rows``.
    """

    method: Any

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method, training, torch.logit(torch.tensor(method.p, dtype=torch.float64)))
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
            total = total + self.method.length_scale**2 * norm - self.method.entropy_weight * entropy(logit)
        return total / self.num_train_rows


def own_parameter_rules(name: str) -> tuple[Rule, ...]:
    """Return the rules of a method whose own parameters belong to the weights of one model."""
    return (
        Rule(name, SECOND_MODEL, "The probabilities belong to one model, but two are trained."),
        Rule(
            name,
            EXCHANGES_WEIGHTS,
            "The model's weights are replaced during training, but the learnt probabilities are not.",
        ),
    )


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
