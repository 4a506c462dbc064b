"""Temporary hooks and forward functions, which copies of a module do not inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

from attendrop.errors import AttendropError

_MARK = "_attendrop"
_HOOKS = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}


class ModuleHooks:
    """Forward hooks and replaced forward functions, until :meth:`close`.

    A hook of a copied or pickled module would refer to the original. So copies and pickles leave out what is registered
    here.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._modules: list[nn.Module] = []

    def before(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward pre-hook, with the options of ``register_forward_pre_hook``."""
        self._mark(module, hook)
        self._handles.append(module.register_forward_pre_hook(hook, **options))

    def after(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward hook, with the options of ``register_forward_hook``."""
        self._mark(module, hook)
        self._handles.append(module.register_forward_hook(hook, **options))

    def replace_forward(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Replace the forward function of a module."""
        self._mark(module, forward)
        module.forward = forward

    def close(self) -> None:
        """Remove all hooks and forward functions. Idempotent."""
        for handle in self._handles:
            handle.remove()
        for module in self._modules:
            if _marked(module.__dict__.get("forward")):
                del module.forward
            if not any(_marked(hook) for name in _HOOKS for hook in getattr(module, name).values()):
                module.__dict__.pop("__getstate__", None)
        self._handles, self._modules = [], []

    def _mark(self, module: nn.Module, function: Callable[..., Any]) -> None:
        setattr(function, _MARK, True)
        # Both copy and pickle ask an object for its state.
        module.__dict__["__getstate__"] = partial(_stock_state, module)
        self._modules.append(module)


def refuse_wrapped(model: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Raise AttendropError if the forward function of one of a model's modules was replaced."""
    if any("forward" in vars(module) for module in modules):
        raise AttendropError(f"The layers of {type(model).__name__} are wrapped already; unwrap them first.")


def _marked(function: Any) -> bool:
    return hasattr(function, _MARK)


def _stock_state(module: nn.Module) -> dict[str, Any]:
    """Return the state of a module without the hooks and forward functions of this file."""
    state = dict(vars(module))
    del state["__getstate__"]
    if _marked(state.get("forward")):
        del state["forward"]
    for name, flags in _HOOKS.items():
        ours = {number for number, hook in state[name].items() if _marked(hook)}
        for each in (name, *flags):
            kept = [(number, value) for number, value in state[each].items() if number not in ours]
            state[each] = type(state[each])(kept)
    return state
