"""The plan of a forward pass in progress, for parts of a model that are not handed keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from attendrop.attention.module_hooks import ModuleHooks
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError

_CHECKPOINT = "_gradient_checkpointing_func"


class RunningPlan:
    """The plan that a model was called with, for as long as the call lasts.

    Under activation checkpointing, layers run again in the backward pass. A model that hands keywords on to its layers
    hands on the plan then, too. In one that does not (``takes_keyword=False``), the keyword ends here, and layers that
    run again find the plan of their first run here.

    Args:
        model: The model.
        takes_keyword: Whether the forward pass of the model takes the plan as a keyword.

    Attributes:
        plan: The plan; None outside a call, and in a call without a plan.
    """

    def __init__(self, model: nn.Module, *, takes_keyword: bool) -> None:
        self.model = model
        self.takes_keyword = takes_keyword
        self.plan: Plan | None = None
        self._hooks = ModuleHooks()
        self._open = False
        self._in_call = False
        self._checkpoints: list[tuple[Any, Callable[..., Any]]] = []

    def open(self) -> None:
        """Watch the calls of the model. Idempotent."""
        if self._open:
            return
        self._open = True

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            self.plan, self._in_call = kwargs.get(PLAN_KEYWORD), True
            if self.takes_keyword:
                return None
            self._enter_checkpoints()
            return args, {name: value for name, value in kwargs.items() if name != PLAN_KEYWORD}

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.plan, self._in_call = None, False
            for checkpointing, stock in self._checkpoints:
                setattr(checkpointing, _CHECKPOINT, stock)
            self._checkpoints = []

        self._hooks.before(self.model, enter, with_kwargs=True)
        self._hooks.after(self.model, leave, always_call=True)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._hooks.close()
        self._open = False

    def of_layer(self) -> Plan | None:
        """Return the plan under which a layer of a model that takes no keyword runs.

        Raises:
            AttendropError: The layer runs again in a backward pass, and its plan is not known.
        """
        if not self._in_call and torch._C._current_graph_task_id() != -1:
            raise AttendropError(
                f"The layers of {type(self.model).__name__} run again in the backward pass, where what was dropped is "
                "not known. Checkpoint activations with model.gradient_checkpointing_enable(), or not at all."
            )
        return self.plan

    def _enter_checkpoints(self) -> None:
        """Let what is checkpointed in this call run again under its plan."""
        for module in self.model.modules():
            stock = vars(module).get(_CHECKPOINT)
            if stock is not None:
                self._checkpoints.append((module, stock))
                setattr(module, _CHECKPOINT, partial(self._checkpoint, stock, self.plan))

    def _checkpoint(
        self, stock: Callable[..., Any], plan: Plan | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        return stock(self._running(plan)(function), *args, **kwargs)

    @contextmanager
    def _running(self, plan: Plan | None) -> Iterator[None]:
        before = self.plan, self._in_call
        self.plan, self._in_call = plan, True
        try:
            yield
        finally:
            self.plan, self._in_call = before
