"""Temporary changes of a model: hooks and forward functions, and the isolation of extra passes.

All of them end with a block or by ``close``, also after an exception, and copies of a module do not inherit them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attendrop.errors import AttendropError

_MARK = "_attendrop"
_CHECKPOINT = "_gradient_checkpointing_func"
_HOOKS = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}


@contextmanager
def replaced_attribute(thing: object, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an object within the block, by one of the instance."""
    before = {key: old for key, old in vars(thing).items() if key == name}
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name)
        vars(thing).update(before)


def recomputed_within(module: nn.Module, context: Callable[[], ContextDecorator]) -> AbstractContextManager[None]:
    """Recompute what the module itself checkpoints in this block within another ``context()``."""
    stock: Callable[..., Any] | None = vars(module).get(_CHECKPOINT)
    if stock is None:
        return nullcontext()

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return stock(context()(function), *args, **kwargs)

    return replaced_attribute(module, _CHECKPOINT, checkpoint)


@contextmanager
def forked_rng(model: nn.Module) -> Iterator[None]:
    """Restore the random states of torch, numpy and Python, and the model's buffers, after an extra pass.

    The buffers are put aside rather than written back, which would invalidate a graph that has saved them. One that a
    module replaces by another (rotary embeddings do for longer inputs) stays replaced.
    """
    devices = [*dict.fromkeys(each.device for each in model.parameters() if each.device.type not in ("cpu", "meta"))]
    python, numpy = random.getstate(), np.random.get_state()
    copies: dict[Tensor, Tensor] = {}
    places = [(m, name, buffer) for m in model.modules() for name, buffer in m._buffers.items() if buffer is not None]
    with torch.random.fork_rng(devices=devices, device_type=devices[0].type if devices else "cuda"):
        for module, name, buffer in places:
            module._buffers[name] = copies.setdefault(buffer, buffer.clone())
        try:
            yield
        finally:
            for module, name, buffer in places:
                if module._buffers.get(name) is copies[buffer]:
                    module._buffers[name] = buffer
            random.setstate(python)
            np.random.set_state(numpy)
            if not torch.is_grad_enabled():  # older versions of PyTorch would train through the cached weights
                torch.clear_autocast_cache()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode within the block, and restore its mode afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def in_full_precision(model: nn.Module) -> Iterator[None]:
    """Run a model without autocast within the block, also one whose ``forward`` accelerate wrapped to switch it on."""
    prepared = "_original_forward" in vars(model)
    wrapper = vars(model).pop("forward") if prepared else None
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        if prepared:
            vars(model)["forward"] = wrapper


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled models uncompiled within the block: for a pass that is differentiated by what an edit reads."""
    found: AbstractContextManager[Any] = nullcontext()
    if "torch._dynamo" in sys.modules:  # otherwise nothing was compiled yet, and importing it takes seconds
        found = torch.compiler.set_stance("force_eager")
    return found


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model or a part of it was compiled, in place or as ``torch.compile`` wraps it."""
    marks = ("_compiled_call_impl", "_orig_mod")
    return any(getattr(module, mark, None) is not None for module in model.modules() for mark in marks)


@dataclass
class ModuleHooks:
    """Forward hooks and replaced forward functions, until :meth:`close`.

    Copies and pickles of a module leave them out: they would refer to the original.
    """

    _handles: list[Any] = field(default_factory=list)
    _modules: list[nn.Module] = field(default_factory=list)
    _replaced: list[nn.Module] = field(default_factory=list)  # those of them whose forward function was

    def before(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward pre-hook."""
        self._mark(module, hook)
        self._handles.append(module.register_forward_pre_hook(hook, **options))

    def after(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward hook."""
        self._mark(module, hook)
        self._handles.append(module.register_forward_hook(hook, **options))

    def replace_forward(self, model: nn.Module, functions: Mapping[nn.Module, Callable[..., Any]]) -> None:
        """Replace the forward functions of modules of a model; raise AttendropError if one was replaced already."""
        if any("forward" in vars(module) for module in functions):
            raise AttendropError(f"The layers of {type(model).__name__} are wrapped already; unwrap them first.")
        for module, forward in functions.items():
            self._mark(module, forward)
            module.forward = forward
            self._replaced.append(module)

    def close(self) -> None:
        """Remove all hooks and forward functions. Idempotent."""
        for handle in self._handles:
            handle.remove()
        for module in self._replaced:
            if hasattr(vars(module).get("forward"), _MARK):  # nobody else has wrapped it since
                del module.forward
        for module in self._modules:
            left = [vars(module).get("forward"), *(hook for name in _HOOKS for hook in getattr(module, name).values())]
            if not any(hasattr(function, _MARK) for function in left):
                module.__dict__.pop("__getstate__", None)
        self._handles, self._modules, self._replaced = [], [], []

    def _mark(self, module: nn.Module, function: Callable[..., Any]) -> None:
        setattr(function, _MARK, True)
        # Both copy and pickle ask an object for its state.
        module.__dict__["__getstate__"] = partial(_stock_state, module)
        self._modules.append(module)


def _stock_state(module: nn.Module) -> dict[str, Any]:
    """Return the state of a module without the hooks and forward functions of this file."""
    state = dict(vars(module))
    del state["__getstate__"]
    if hasattr(state.get("forward"), _MARK):
        del state["forward"]
    for name, flags in _HOOKS.items():
        ours = {number for number, hook in state[name].items() if hasattr(hook, _MARK)}
        for each in (name, *flags):
            kept = [(number, value) for number, value in state[each].items() if number not in ours]
            state[each] = type(state[each])(kept)
    return state
