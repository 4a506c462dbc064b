"""Parameters of a method, which are trained beside the model by an optimizer of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer
from attendrop.batches import Batch
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import EXCHANGES_WEIGHTS, SECOND_MODEL, Rule
from attendrop.methods.core.context import StepContext, TrainingContext


class OwnParameters(MethodState):
    """State with parameters that the gradient of the training loss reaches, and their Adam optimizer.

    Args:
        method: The method.
        training: The model and the processes.
        learning_rate: Learning rate of the parameters.

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

    Args:
        method: The method; ``num_train_rows`` and ``learning_rate`` are among its options.
        training: The model and its training rows.
        initial: Value at the start.

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
            self._begin([layer.key for layer in attention_layers], self.initial.repeat(len(attention_layers)))
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
            self._begin(list(learnt), self.learnt_from(torch.tensor(list(learnt.values()), dtype=torch.float64)))

    def _begin(self, keys: Sequence[str], values: Tensor) -> None:
        self.keys = list(keys)
        self.create({"values": values.float()})


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
