"""Hooks on the call of a model within a function that computes a loss: its arguments and its outputs.

Such a function may be the user's, which does not know of plans. The plan is still passed as a keyword of the forward
pass: it is added by a hook on the module that the function calls, which may be a wrapper of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError


class ModelCall:
    """The call of a model within a function, to which a plan is passed, and its ``outputs``.

    Calls without gradients, in a function that runs with gradients, are ignored. With a plan, or ``once``, there must
    be exactly one call.
    """

    def __init__(self, plan: Plan | None, *, once: bool) -> None:
        self.plan = plan
        self.once = once or plan is not None
        self.outputs: Any = None
        self._calls = 0
        self._with_gradients = torch.is_grad_enabled()

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Watch for the call within the block; raise AttendropError if one is needed and there is none, or several."""
        hooks = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if self.once and not self._calls:
            raise AttendropError(_NOT_CALLED)

    def _enter(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if torch.is_grad_enabled() is not self._with_gradients:
            return None
        self._calls += 1
        if self.once and self._calls > 1:
            raise AttendropError(
                "The loss was computed from two calls of the model, but the method acts on one; compute it from one, "
                "on all rows."
            )
        if self.plan is None:
            return None
        return args, {**kwargs, PLAN_KEYWORD: self.plan}

    def _leave(self, model: nn.Module, args: Any, outputs: Any) -> None:
        if torch.is_grad_enabled() is self._with_gradients and self._calls == 1:
            self.outputs = outputs


def model_arguments(compute: Callable[[], Any], model: nn.Module) -> dict[str, Any]:
    """Return the arguments, by name, that a function passes to the model; the function is interrupted at that call."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        unwrapped: Any = getattr(module, "module", module)  # of DistributedDataParallel
        raise _Called(dict(zip(inspect.signature(unwrapped.forward).parameters, args, strict=False)) | kwargs)

    hook = model.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        compute()
    except _Called as call:
        return dict(call.args[0])
    finally:
        hook.remove()
    raise AttendropError(_NOT_CALLED)


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


class _Called(BaseException):
    """Exception that exits a function at its call of the model; ``except Exception`` does not catch it."""


_NOT_CALLED = (
    "The loss was computed without a call of the model that compute_loss was given, so the method could not act; call "
    "model(**inputs) in it."
)
