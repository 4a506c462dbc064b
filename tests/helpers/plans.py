"""Plans that do the same at each attention layer, and models attached to plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from helpers import zoo


class Everywhere(Plan):
    """The same edit of each attention layer, with a record of the calls."""

    def __init__(self, edit: AttentionEdit | None) -> None:
        super().__init__()
        self.answer = edit
        self.calls: list[AttentionCall] = []

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        self.calls.append(call)
        return self.answer


class Weights(Plan):
    """Records the valid keys and the weights of each attention layer, by its key; may drop positions."""

    def __init__(self, drop: Tensor | None = None) -> None:
        super().__init__()
        self.drop = drop
        self.valid: dict[str, Tensor | None] = {}
        self.seen: dict[str, Tensor] = {}

    def edit(self, call: AttentionCall) -> AttentionEdit:
        def look(weights: Tensor) -> Tensor:
            self.seen[call.layer.key] = weights
            return weights

        self.valid[call.layer.key] = call.valid
        return AttentionEdit(drop=self.drop, weights=look)


def attached(model: Any, batch: zoo.Batch) -> ModelAdapter:
    """Attach a model, whose attention layers are found on a batch."""
    adapter = ModelAdapter(model)
    adapter.attach()
    adapter.trace(batch)
    return adapter


def passed(model: Any, batch: zoo.Batch, plan: Plan | None) -> Any:
    """The outputs of a pass with a plan."""
    with attached(model, batch) as adapter:
        return adapter.forward(batch, plan)


class Factors(Plan):
    """Plan that multiplies the weights of some layers by factors, by the layer's key."""

    def __init__(self, factors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.factors = self.layer_keys = factors

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(weights=lambda weights: weights * self.factors[call.layer.key])


def weighted(model: Any, batch: zoo.Batch, factors: Mapping[str, Tensor]) -> Any:
    """The outputs of a model with these factors."""
    return passed(model, batch, Factors(factors))
