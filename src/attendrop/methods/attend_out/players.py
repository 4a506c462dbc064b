"""Base class of the two learners: the defender, and the policy by which the attacker's attention is dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import AttendropError, AttentionLayer, Batch, Plan, StepContext, TrainingContext
from attendrop.methods.attend_out.attacker import Count, Micro
from attendrop.methods.attend_out.defender import Defender
from attendrop.methods.attend_out.options import AttendOutOptions


class Players(ABC):
    """The defender, and a policy that drops the attacker's attention and learns from the rewards.

    Args:
        method: The options.
        training: The attacker and its optimizer.

    Attributes:
        defender: The second model.
        attention_layers: The layers to drop.
    """

    attention_layers: list[AttentionLayer]

    def __init__(self, method: AttendOutOptions, training: TrainingContext) -> None:
        assert training.optimizer is not None
        self.defender = Defender(
            training.model,
            training.optimizer,
            max_grad_norm=training.max_grad_norm,
            processes=training.processes,
            device=_device(method.defender_device, training),
        )

    @abstractmethod
    def attack(self, context: StepContext, micro: Micro, count: Count) -> Plan:
        """Return the plan of the attacker's pass.

        Args:
            context: The pass.
            micro: The micro-batch, in which what is drawn is recorded.
            count: Called with the drop probabilities of each layer.
        """

    @abstractmethod
    def learn(
        self, period: Sequence[Sequence[Micro]], rewards: Tensor, total: Callable[[Tensor], Tensor]
    ) -> dict[str, float]:
        """Learn from a period; return metrics to log.

        Args:
            period: Micro-batches of each step.
            rewards: Reward of each step, ``(steps,)``, the same in all processes.
            total: Sums a tensor over the processes.
        """

    @abstractmethod
    def final_report(self, model: torch.nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report what was learnt, for ``metrics.json``; see :meth:`MethodState.final_report`."""

    @abstractmethod
    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what a finished run has learnt, see :meth:`MethodState.restore`."""

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors trained beside the models, by the name of the file to save them in; none by default."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""


def _device(name: str, training: TrainingContext) -> torch.device | None:
    """Return the device of the defender; None for the attacker's. Raise AttendropError if there is no such device."""
    if not name:
        return None
    number = training.processes.world_size + training.processes.rank
    device = torch.device("cuda", number) if name == "next" else torch.device(name)
    if device.type != "cpu":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        count = torch.accelerator.device_count() if found is not None and found.type == device.type else 0
        if (device.index or 0) >= count:
            raise AttendropError(
                f"defender_device={name!r}: there is no device {device}; this machine has {count} of type "
                f"{device.type}. Leave the option empty to train both models on the same device."
            )
    return device
