"""Passes of a model whose attention weights are multiplied by given factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from helpers import zoo
from helpers.plans import passed


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
