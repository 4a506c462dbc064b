"""Initial state of the model and optimizer, for methods that restart training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import TrainingContext
from attendrop.support.models import trained_tensors


class InitialState:
    """Copy of the initial weights of a model that training changes, on the CPU, and of the state of its optimizer.

    Raises:
        AttendropError: The optimizer or the number of planned steps is unknown.
    """

    def __init__(self, method: Method, training: TrainingContext) -> None:
        if training.optimizer is None or training.total_steps is None:
            missing = "optimizer" if training.optimizer is None else "total_steps"
            raise AttendropError(
                f"Method '{method.name}' restarts training from the initial weights: pass {missing}, "
                f"regularize(..., {missing}={missing})."
            )
        self.model = training.model
        self.on_rewind = training.on_rewind
        self.optimizer: torch.optim.Optimizer = training.optimizer
        self.steps: int = training.total_steps
        self.weights: dict[str, Tensor] = {
            name: value.detach().to("cpu", copy=True) for name, value in trained_tensors(self.model).items()
        }
        self.optimizer_state: dict[int, Any] = copy.deepcopy(self.optimizer.state_dict()["state"])

    @torch.no_grad()
    def rewind(self) -> None:
        """Restore the initial weights and optimizer state. Learning rates are unchanged.

        Raises:
            AttendropError: The parameters that are trainable have changed since the start.
        """
        tensors = trained_tensors(self.model)
        if changed := tensors.keys() ^ self.weights.keys():
            name = min(changed)
            raise AttendropError(
                f"'{name}' was {'unfrozen' if name in tensors else 'frozen'} since training began, which cannot start "
                "again from such weights; freeze and unfreeze before training, or after it has started again."
            )
        for name, value in tensors.items():
            value.copy_(self.weights[name])
        self.optimizer.state.clear()
        if self.optimizer_state:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": self.optimizer_state, "param_groups": groups})
        for forget in self.on_rewind:
            forget()

    def forget(self) -> None:
        """Free the copies once they are no longer needed."""
        self.weights, self.optimizer_state = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the initial weights and optimizer state."""
        return {"weights": dict(self.weights), "optimizer": self.optimizer_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies of an interrupted run."""
        self.weights, self.optimizer_state = dict(state["weights"]), dict(state["optimizer"])
