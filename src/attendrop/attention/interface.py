"""Transformers' attention interface: the functions registered with it, and the switch of a model's configuration.

Nothing outside this package knows how transformers looks up attention and mask functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attendrop.attention.computation import follow
from attendrop.attention.graphs import fits_a_graph, follow_in_graph
from attendrop.attention.own_softmax import computes_softmax
from attendrop.attention.plan import PLAN_KEYWORD, carried_plan
from attendrop.errors import AttendropError


class _RegisteredName(str):
    """Registered name in a configuration; copies and pickles hold the original implementation instead."""

    original: str

    def __new__(cls, name: str, original: str) -> _RegisteredName:
        made = super().__new__(cls, name)
        made.original = original
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.original,)


# The name registered in place of each implementation that is supported. A name must not contain "sdpa", "flash" or
# "flex": transformers tests for these substrings.
_REGISTERED_AS = {"sdpa": _RegisteredName("attendrop", "sdpa"), "eager": _RegisteredName("attendrop_eager", "eager")}
# Registered for masks alone: a model that runs its own encoder is given its mask as the caller passed it.
UNCHANGED_MASK = "attendrop_packed"


def find_attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Map the modules that use the interface, or are known to compute attention themselves, to their names."""
    found = {}
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if "ALL_ATTENTION_FUNCTIONS" in getattr(code, "co_names", ()) or computes_softmax(module):
            found[module] = name
    if not found:
        raise AttendropError(
            f"{type(model).__name__} is not supported: it does not route its attention through transformers' "
            "AttentionInterface, so attention masks would be silently ignored. The project's docs/models.md "
            "lists the models that work; `attendrop doctor` checks any model."
        )
    return found


def attention_configs(model: nn.Module, modules: Iterable[nn.Module]) -> list[Any]:
    """List the distinct configurations of a model and its attention ``modules``."""
    owners = [module for module in model.modules() if isinstance(module, PreTrainedModel)] + list(modules)
    configs = {id(owner.config): owner.config for owner in owners if hasattr(owner, "config")}
    return list(configs.values())


def implementation_of(config: Any) -> str:
    """Return the original attention implementation of a configuration, even while routed to this library."""
    name: str = config._attn_implementation
    return next((original for original, registered in _REGISTERED_AS.items() if registered == name), name)


def route(config: Any) -> None:
    """Send attention through the function registered in place of the configured implementation."""
    use_implementation(config, _REGISTERED_AS[implementation_of(config)])


def use_implementation(config: Any, name: str | None) -> None:
    """Set the attention implementation; None: transformers chooses that of a model made from the configuration."""
    config._attn_implementation_internal = name


def check_implementations(model: nn.Module, modules: Collection[nn.Module], configs: Iterable[Any]) -> None:
    """Raise AttendropError if a model runs an attention implementation that no function is registered for."""
    originals = [implementation_of(config) for config in configs]
    for original in originals:
        if original == UNCHANGED_MASK:
            raise AttendropError(
                f"{type(model).__name__} is pruned, and its fast layers compute no attention weights; use the model "
                "that it was pruned from."
            )
        if original not in _REGISTERED_AS:
            raise AttendropError(
                f"{type(model).__name__} runs attention implementation '{original}', which cannot drop single "
                "attention positions. Load it with attn_implementation='sdpa'."
            )
    if "eager" in originals and any(getattr(module, "reorder_and_upcast_attn", False) for module in modules):
        raise AttendropError(
            f"{type(model).__name__} computes eager attention with reorder_and_upcast_attn, which bypasses "
            "the attention interface. Load it with attn_implementation='sdpa'."
        )


def refuse_unsavable(model: nn.Module, configs: Iterable[Any]) -> None:
    """Raise AttendropError if transformers would not save a configuration of a model while it is routed."""
    if any(getattr(config, "output_attentions", False) and implementation_of(config) == "eager" for config in configs):
        raise AttendropError(
            f"{type(model).__name__} has config.output_attentions on, with which no checkpoint can be saved in "
            "training. Set it to False; a call can be given output_attentions=True instead."
        )


def _eager_function(module: nn.Module) -> Any:
    """Return the eager function of the module's own file, of which a file may have several (Phi-4, Llama 4)."""
    forward: Any = inspect.unwrap(type(module).forward)
    name = next(name for name in forward.__code__.co_names if name.endswith("eager_attention_forward"))
    return forward.__globals__[name]


# A compiled model leaves its graph here.
_follow_outside = torch.compiler.disable(follow)  # type: ignore[no-untyped-call]


def _attention_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Make the attention function that is registered in place of implementation ``base``."""

    def attention_forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        tensors = query, key, value, attention_mask
        if (plan := carried_plan(kwargs)) is not None:
            del kwargs[PLAN_KEYWORD]
            if base == "sdpa" and fits_a_graph(module, kwargs):
                return follow_in_graph(plan, module, tensors, kwargs), None
            if (planned := _follow_outside(plan, module, tensors, kwargs, eager=base == "eager")) is not None:
                return planned  # type: ignore[no-any-return]
        function = _eager_function(module) if base == "eager" else ALL_ATTENTION_FUNCTIONS[base]
        return function(module, *tensors, **kwargs)  # type: ignore[no-any-return]

    return attention_forward


for _base, _name in _REGISTERED_AS.items():
    AttentionInterface.register(_name, _attention_function(_base))
    AttentionMaskInterface.register(_name, eager_mask if _base == "eager" else sdpa_mask)
AttentionMaskInterface.register(UNCHANGED_MASK, lambda *_, attention_mask=None, **__: attention_mask)
