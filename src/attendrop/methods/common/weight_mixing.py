"""Base class of methods that mix weights with fixed values in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.projections import input_dim
from attendrop.batches import Batch
from attendrop.keyed_random import sample_parameter_mask
from attendrop.methods.common.parameter_override import ParameterOverride
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import StepContext, TrainingContext


class WeightMixing(MethodState):
    """State of a method that replaces random elements of weights by fixed values, with unchanged expectation.

    An element of ``W`` becomes its value in the target ``T`` with probability ``p``, and ``(W - p T) / (1 - p)``
    otherwise. One sample is used for all passes, micro-batches and processes of an optimizer step.

    Args:
        method: The method.
        training: The model.
        p: Probability of replacement, in (0, 1).
        by_neuron: Whether all weights of one input neuron are replaced together.
    """

    def __init__(self, method: Method, training: TrainingContext, p: float, *, by_neuron: bool = False) -> None:
        super().__init__(method)
        self.model = training.model
        self.p = p
        self.by_neuron = by_neuron
        self.names: list[str] | None = None
        self.targets: Mapping[str, Tensor] = {}
        self._swapped: list[ParameterOverride] = []
        self._waiting: list[nn.Module] = []
        self._seed_and_step = (0, 0)
        self._masks: dict[tuple[str, torch.device], Tensor] = {}

    def choose(self, context: StepContext) -> list[str]:
        """Return the names of the weights to act on."""
        raise NotImplementedError

    def batch(self, context: StepContext) -> Batch:
        if self.names is None:
            self.names = self.choose(context)
            for model in (self.model, *self._waiting):
                self._swapped.append(ParameterOverride(model, self.names, self._mixed))
        now = (context.key.seed, context.key.step)
        if now != self._seed_and_step:
            self._masks.clear()
        self._seed_and_step = now
        return context.batch

    def act_on_second_model(self, model: nn.Module) -> None:
        if self.names is None:
            self._waiting.append(model)
        else:
            self._swapped.append(ParameterOverride(model, self.names, self._mixed))

    def after_step(self, steps_taken: int) -> dict[str, float]:
        self._masks.clear()
        return {}

    def close(self) -> None:
        for swapped in self._swapped:
            swapped.close()
        self._masks.clear()

    def _mixed(self, name: str, weight: nn.Parameter) -> Tensor:
        key = name, weight.device
        if key not in self._masks:
            # Another network may run before this step's pass; it uses the masks of its own step.
            seed, step = self._seed_and_step
            shape = self._shape(name, weight)
            self._masks[key] = sample_parameter_mask(
                self.p, seed, step, f"{self.method.name}/{name}", shape, weight.device
            )
        target = self.targets.get(name)
        return _Mix.apply(weight, self._masks[key], target, self.p)  # type: ignore[no-any-return, no-untyped-call]

    def _shape(self, name: str, weight: Tensor) -> tuple[int, int]:
        """Return the shape of the mask, which is broadcast over the weight."""
        rows, columns = weight.shape
        if not self.by_neuron:
            return rows, columns
        return (rows, 1) if input_dim(self.model.get_submodule(name.rpartition(".")[0])) == 0 else (1, columns)


class _Mix(torch.autograd.Function):
    """Compute ``where(mask, T, (W - p T) / (1 - p))``; ``T`` is zero if None."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, target: Tensor | None, p: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.p = p
        kept = mask.logical_not().to(weight.dtype).mul_(1 / (1 - p))
        if target is None:
            return kept * weight
        target = target.to(weight)
        return torch.addcmul(target, weight - target, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (mask,) = ctx.saved_tensors
        kept = mask.logical_not().to(gradients[0].dtype).mul_(1 / (1 - ctx.p))
        return kept * gradients[0], None, None, None
