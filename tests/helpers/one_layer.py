"""The edit that a method makes of one attention layer, without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attendrop import Method
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import RunningStatistics, StepContext
from attendrop.randomness.keyed_random import SampleKey


def context_of(rows: int, layer: int = 0, step: int = 0) -> StepContext:
    """The context of a model whose only attention layer is that of an encoder."""
    adapter: Any = SimpleNamespace(attention_layers=[AttentionLayer("a", "encoder", layer)])
    key, model = SampleKey(0, step, 0, rows), torch.nn.Identity()
    return StepContext(model, {}, key, RunningStatistics(), "method", adapter=adapter)


def edit_of(
    method: Method | MethodState, shape: tuple[int, int, int, int], valid: Tensor | None = None, layer: int = 0
) -> AttentionEdit:
    """What a method's plan makes of a layer in which queries attend to keys, ``(batch, heads, query, key)``."""
    context = context_of(shape[0], layer)
    plan = method.plan(context)
    edit = plan.edit(AttentionCall(context.adapter.attention_layers[0], shape, valid, torch.device("cpu")))
    return edit
