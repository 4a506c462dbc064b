"""The attention function that is registered with transformers, and which modules call it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attendrop.attention.compute import AttentionComputation
from attendrop.attention.edits import AttentionCall
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError


class _RegisteredName(str):
    """A registered name in a configuration; copies and pickles hold the implementation that it stands for instead."""

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


def _attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Map the modules whose forward looks its attention function up in the interface to their names."""
    found = {module: name for name, module in model.named_modules() if _uses_interface(module)}
    if not found:
        raise AttendropError(
            f"{type(model).__name__} is not supported: it does not route its attention through transformers' "
            "AttentionInterface, so attention masks would be lost without a word. docs/models.md lists the models that "
            "work; `attendrop doctor` tells for any."
        )
    return found


def _uses_interface(module: nn.Module) -> bool:
    code = getattr(_own_forward(module), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _own_forward(module: nn.Module) -> Any:
    return inspect.unwrap(type(module).forward)


def _attention_configs(model: nn.Module, modules: Mapping[nn.Module, str]) -> list[Any]:
    """The distinct configurations that masks are built and attention functions looked up by."""
    owners = [module for module in model.modules() if isinstance(module, PreTrainedModel)] + list(modules)
    configs = {id(owner.config): owner.config for owner in owners if hasattr(owner, "config")}
    return list(configs.values())


def _original(config: Any) -> str:
    """The attention implementation of a configuration, looking through an attachment."""
    name: str = config._attn_implementation
    return next((original for original, registered in _REGISTERED_AS.items() if registered == name), name)


def _refuse_reentrant_checkpointing(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        function = getattr(module, "_gradient_checkpointing_func", None)
        keywords = getattr(function, "keywords", None) or {}
        if getattr(module, "gradient_checkpointing", False) and keywords.get("use_reentrant"):
            raise AttendropError(
                "Reentrant activation checkpointing is on, under which no attribution can be computed. Switch to "
                "activation_checkpointing_kwargs={'use_reentrant': False}."
            )


def _attend(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Make the attention function that is registered in place of implementation ``base``."""

    def attention_forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        plan: Plan | None = kwargs.pop(PLAN_KEYWORD, None)
        if plan is not None:
            planned: tuple[Tensor, Tensor | None] | None
            planned = _follow(plan, module, query, key, value, attention_mask, kwargs)
            if planned is not None:
                return planned
        if base == "eager":
            own: types.FunctionType = _own_forward(module)
            function = own.__globals__["eager_attention_forward"]
        else:
            function = ALL_ATTENTION_FUNCTIONS[base]
        return function(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]

    return attention_forward


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _follow(
    plan: Plan,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None] | None:
    """Compute one attention layer as the plan wants it; None if it wants nothing there.

    A compiled model leaves its graph here: plans are ordinary Python, another one in each pass.
    """
    layer = plan.locate(module)
    if layer is None or not plan.wants(layer):
        return None
    computation = AttentionComputation(module, query, key, value, attention_mask, kwargs)
    edit = plan.edit(AttentionCall(layer, computation.shape, computation.valid, query.device))
    return None if edit is None else computation.attend(edit)


for _base, _name in _REGISTERED_AS.items():
    AttentionInterface.register(_name, _attend(_base))
    AttentionMaskInterface.register(_name, eager_mask if _base == "eager" else sdpa_mask)
