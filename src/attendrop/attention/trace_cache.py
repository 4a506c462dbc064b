"""What is remembered of a model from one adapter to the next: its modules by role, and traces of its passes."""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from attendrop.attention.interface import find_attention_modules
from attendrop.attention.tracing import Trace


@dataclass
class TraceCache:
    """Valid for as long as a model consists of the same modules.

    Attributes:
        modules: These, without the model itself, which would keep it alive.
        attention: Those that call the attention interface, with their names.
        checkpointing: Those that can checkpoint activations.
        traces: Traces of passes, by the names of their inputs and the attention implementations.
    """

    modules: list[nn.Module]
    attention: dict[nn.Module, str]
    checkpointing: list[nn.Module]
    traces: dict[tuple[Any, ...], Trace] = field(default_factory=dict)


_CACHES: weakref.WeakKeyDictionary[nn.Module, TraceCache] = weakref.WeakKeyDictionary()


def forget_traces(model: nn.Module) -> None:
    """Forget what is remembered of a model: of one whose modules refer to it, it would keep the model alive."""
    _CACHES.pop(model, None)


def trace_cache(model: nn.Module) -> TraceCache:
    """Return the cache of a model; a new one if there is none, or the modules are other ones by now."""
    cache, modules = _CACHES.get(model), list(model.modules())[1:]
    if cache is None or len(modules) != len(cache.modules) or not all(map(operator.is_, modules, cache.modules)):
        checkpointing = [module for module in modules if hasattr(module, "gradient_checkpointing")]
        cache = _CACHES[model] = TraceCache(modules, find_attention_modules(model), checkpointing)
    return cache
