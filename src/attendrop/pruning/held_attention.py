"""Constant attention that is imposed while a model runs, where no weights make it constant."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.example_inputs import example_inputs
from attendrop.attention.layers import select_self_attention
from attendrop.attention.module_hooks import ModuleHooks
from attendrop.attention.plan import PLAN_KEYWORD, ConstantAttention, Plan
from attendrop.attention.tracing import forget_traces


class HeldAttention:
    """Constant attention in some layers of a model, in each of its passes, for as long as the model exists.

    Copies of the model run its own attention.

    Args:
        model: A transformers model.
        layers: Numbers of the layers, from 0.

    Attributes:
        layers: These numbers, in ascending order.
        attention_layers: The model's prunable attention layers.
    """

    def __init__(self, model: Any, layers: Collection[int]) -> None:
        self._adapter = ModelAdapter(model)
        self.attention_layers = select_self_attention(self._adapter.trace(example_inputs(model)), "all")
        self.layers = tuple(sorted(layers))
        self._adapter.attach()
        self._plan = self._new_plan()
        self._hook(model)
        forget_traces(model)

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Begin a pass of the model, as a hook."""
        self._plan = self._new_plan()

    def _hook(self, model: Any) -> None:
        """Give attention modules the plan themselves: an encoder also runs without its model, in generation."""

        def give_plan(module: nn.Module, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**keywords, PLAN_KEYWORD: self._plan}

        hooks = ModuleHooks()
        hooks.before(model.base_model, self)
        for name in {self.attention_layers[number].name.partition("#")[0] for number in self.layers}:
            hooks.before(model.get_submodule(name), give_plan, with_kwargs=True)

    def _new_plan(self) -> Plan:
        """Make the plan of a pass, which counts the calls of modules that several layers share."""
        return self._adapter.bind(ConstantAttention(self.attention_layers[number].key for number in self.layers))


def held_attention(model: Any) -> HeldAttention | None:
    """Return the constant attention that is imposed on a model, if any."""
    hooks = model.base_model._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, HeldAttention)), None)
