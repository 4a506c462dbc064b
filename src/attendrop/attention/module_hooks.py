"""Temporary hooks and forward functions, which copies of a module do not inherit; the plan of a pass in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError

_MARK = "_attendrop"
_CHECKPOINT = "_gradient_checkpointing_func"
_HOOKS = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model or a part of it was compiled, in place or as ``torch.compile`` wraps it."""
    marks = ("_compiled_call_impl", "_orig_mod")
    return any(getattr(module, mark, None) is not None for module in model.modules() for mark in marks)


@contextmanager
def hooks_are_guarded() -> Iterator[None]:
    """Let compiled code notice added and removed hooks, which it ignores by default; discard what was compiled."""
    import torch._dynamo

    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        torch.compiler.reset()
        yield


@contextmanager
def whole_graphs_refused() -> Iterator[None]:
    """Raise AttendropError where torch cannot compile a model as one graph, as ``fullgraph=True`` asks for."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "Unsupported" and "fullgraph=True" not in str(error):
            raise
        raise AttendropError(
            "The model was compiled with fullgraph=True, but methods act on it outside of its graph; compile it "
            "without."
        ) from error


class ModuleHooks:
    """Forward hooks and replaced forward functions, until :meth:`close`.

    Copies and pickles of a module leave them out: they would refer to the original.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._modules: list[nn.Module] = []

    def before(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward pre-hook."""
        self._mark(module, hook)
        self._handles.append(module.register_forward_pre_hook(hook, **options))

    def after(self, module: nn.Module, hook: Callable[..., Any], **options: Any) -> None:
        """Register a forward hook."""
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


@contextmanager
def recomputed_within(module: nn.Module, context: Callable[[], ContextDecorator]) -> Iterator[None]:
    """Recompute what the module itself checkpoints in this block within another ``context()``."""
    stock: Callable[..., Any] | None = vars(module).get(_CHECKPOINT)
    if stock is None:
        yield
        return

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return stock(context()(function), *args, **kwargs)

    setattr(module, _CHECKPOINT, checkpoint)
    try:
        yield
    finally:
        setattr(module, _CHECKPOINT, stock)


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


class RunningPlan:
    """The plan that a model was called with, for as long as the call lasts.

    Under activation checkpointing, layers run again in the backward pass. A model that passes keywords on to its layers
    then passes on the plan, too. In one that does not (``takes_keyword=False``), the keyword stops here, where layers
    that run again find the plan of their first run.
    """

    def __init__(self, model: nn.Module, *, takes_keyword: bool) -> None:
        self.model = model
        self.takes_keyword = takes_keyword
        self.plan: Plan | None = None  # also None outside a call
        self._hooks = ModuleHooks()
        self._open = False
        self._in_call = False
        self._checkpoints = ExitStack()

    def open(self) -> None:
        """Watch the calls of the model. Idempotent."""
        if self._open:
            return
        self._open = True

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            self._checkpoints.close()  # of a call that ended by a KeyboardInterrupt, after which torch calls no hook
            self.plan, self._in_call = kwargs.get(PLAN_KEYWORD), True
            if self.takes_keyword:
                return None
            for part in self.model.modules():
                self._checkpoints.enter_context(recomputed_within(part, partial(self._running, self.plan)))
            return args, {name: value for name, value in kwargs.items() if name != PLAN_KEYWORD}

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.plan, self._in_call = None, False
            self._checkpoints.close()

        self._hooks.before(self.model, enter, with_kwargs=True)
        self._hooks.after(self.model, leave, always_call=True)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._hooks.close()
        self.plan, self._open, self._in_call = None, False, False
        self._checkpoints.close()

    def of_layer(self) -> Plan | None:
        """Return the plan under which a layer runs; raise AttendropError if it runs again where that is not known."""
        if not self._in_call and torch._C._current_graph_task_id() != -1:
            raise AttendropError(
                f"The layers of {type(self.model).__name__} run again in the backward pass, where what was dropped is "
                "not known. Checkpoint activations with model.activation_checkpointing_enable(), or not at all."
            )
        return self.plan

    @contextmanager
    def _running(self, plan: Plan | None) -> Iterator[None]:
        before = self.plan, self._in_call
        self.plan, self._in_call = plan, True
        try:
            yield
        finally:
            self.plan, self._in_call = before
