"""Temporary changes of a model: hooks and forward functions, and the isolation of extra passes.

All of them end with a block or by ``close``, also after an exception, and copies of a module do not inherit them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attendrop.attention.blocks import ModelStructure, hidden_states
from attendrop.attention.edits import BlockEdit
from attendrop.attention.plan import PLAN_KEYWORD, Plan
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


@contextmanager
def forked_rng(model: nn.Module) -> Iterator[None]:
    """Restore the random states of torch, numpy and Python, and the model's buffers, after an extra pass.

    The buffers are put aside rather than written back, which would invalidate a graph that has saved them. One that a
    module replaces by another (rotary embeddings do for longer inputs) stays replaced. Weights that autocast cast
    without gradients are not used again.
    """
    device = next(model.parameters()).device
    devices = [] if device.type == "cpu" else [device]
    python, numpy = random.getstate(), np.random.get_state()
    copies: dict[Tensor, Tensor] = {}
    places = [(m, name, buffer) for m in model.modules() for name, buffer in m._buffers.items() if buffer is not None]
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
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
    """Run a model without autocast within the block, in the precision of its weights.

    This includes models whose ``forward`` accelerate has wrapped for mixed precision, which would switch autocast on
    again.
    """
    prepared = "_original_forward" in vars(model)
    wrapper = vars(model).pop("forward") if prepared else None
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        if prepared:
            vars(model)["forward"] = wrapper


def in_precision_of(prepared: nn.Module, model: nn.Module) -> AbstractContextManager[None]:
    """Run a copy of a model within the block in the mixed precision that accelerate has wrapped the model for."""
    function = getattr(vars(prepared).get("forward"), "__func__", None)
    if function is None or "_original_forward" not in vars(prepared):
        return nullcontext()
    return replaced_attribute(model, "forward", MethodType(function, model))


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model or a part of it was compiled, in place or as ``torch.compile`` wraps it."""
    marks = ("_compiled_call_impl", "_orig_mod")
    return any(getattr(module, mark, None) is not None for module in model.modules() for mark in marks)


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

    def replace_forward(self, model: nn.Module, functions: Mapping[nn.Module, Callable[..., Any]]) -> None:
        """Replace the forward functions of modules of a model; raise AttendropError if one was replaced already."""
        if any("forward" in vars(module) for module in functions):
            raise AttendropError(f"The layers of {type(model).__name__} are wrapped already; unwrap them first.")
        for module, forward in functions.items():
            self._mark(module, forward)
            module.forward = forward

    def close(self) -> None:
        """Remove all hooks and forward functions. Idempotent."""
        for handle in self._handles:
            handle.remove()
        for module in self._modules:
            if hasattr(module.__dict__.get("forward"), _MARK):
                del module.forward
            if not any(hasattr(hook, _MARK) for name in _HOOKS for hook in getattr(module, name).values()):
                module.__dict__.pop("__getstate__", None)
        self._handles, self._modules = [], []

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


class PlanHooks:
    """Hooks through which the plan of a pass reaches what does not call transformers' attention interface.

    These are attention modules that compute softmax themselves, blocks, the embedding and the head. In one pass:

    1. The model is called with the plan as a keyword. A model that passes keywords on to its layers also passes on the
       plan. In one that does not (``takes_keyword=False``), the keyword stops at the model.
    2. The embedding, attention modules, blocks and the head run, in this order; the plan is that of their keywords, or
       of the call in progress. While a block runs, ``_edit`` is what the plan changes within it.
    3. The call ends. Under activation checkpointing, attention modules and blocks run again in the backward pass, where
       they find the plan of their first run in their keywords, or by the replaced checkpoint function.
    """

    def __init__(self, model: nn.Module, *, takes_keyword: bool) -> None:
        self.model = model
        self.takes_keyword = takes_keyword
        self._call, self._attention, self._blocks = ModuleHooks(), ModuleHooks(), ModuleHooks()
        self._in_progress: tuple[Plan | None, ...] = ()  # the plan of the call, within one
        self._watches_calls = False
        self._checkpoints = ExitStack()
        self._structure: ModelStructure | None = None
        self._edit = (BlockEdit(), torch.Size())  # of the innermost block that runs, and its batch and length

    def act_in_attention(self, modules: Iterable[nn.Module], follow: Callable[..., Any]) -> None:
        """Run the forward functions of attention modules by ``follow(plan, module, forward, args, kwargs)``.

        Others that did before run as usual again.
        """
        self._attention.close()

        def following(module: nn.Module) -> Callable[..., Any]:
            stock = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                plan = kwargs.pop(PLAN_KEYWORD, None)
                if plan is None and not self._in_progress and torch._C._current_graph_task_id() != -1:
                    raise AttendropError(
                        f"The layers of {type(self.model).__name__} run again in the backward pass, where what was "
                        "dropped is not known. Checkpoint activations with model.activation_checkpointing_enable(), or "
                        "not at all."
                    )
                plan = plan or self._plan
                return stock(*args, **kwargs) if plan is None else follow(plan, module, stock, args, kwargs)

            return forward

        functions = {module: following(module) for module in modules}
        self._attention.replace_forward(self.model, functions)
        if functions:
            self._watch_calls()

    def act_in_blocks(self, structure: ModelStructure) -> None:
        """Let plans act on blocks, embedding and head, in place of those of another structure. Idempotent."""
        if structure is self._structure:
            return
        self._blocks.close()
        self._structure = None
        self._blocks.replace_forward(self.model, {module: self._block_forward(module) for module in structure.blocks})
        self._structure = structure
        self._watch_calls()

        def embedded(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return output if self._plan is None else self._plan.embed(output)

        def features(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return args if self._plan is None else (self._plan.features(args[0]), *args[1:])

        def activations(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            edit, shape = self._edit
            return args if edit.activations is None else (_by_token(edit.activations, args[0], shape), *args[1:])

        def feed_forward(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            edit, shape = self._edit
            return output if edit.feed_forward is None else _by_token(edit.feed_forward, output, shape)

        if structure.embedding is not None:
            self._blocks.after(structure.embedding, embedded)
        if structure.head is not None:
            self._blocks.before(structure.head, features)
        for inner in {block.feed_forward for blocks in structure.blocks.values() for block in blocks}:
            if inner is not None:
                self._blocks.before(inner, activations)
                self._blocks.after(inner, feed_forward)

    def close(self) -> None:
        """Remove all hooks. Idempotent."""
        for hooks in (self._blocks, self._attention, self._call):
            hooks.close()
        self._structure, self._in_progress, self._watches_calls = None, (), False
        self._checkpoints.close()

    @property
    def _plan(self) -> Plan | None:
        """The plan that the model was called with; also None outside a call."""
        return self._in_progress[0] if self._in_progress else None

    def _watch_calls(self) -> None:
        if self._watches_calls:
            return
        self._watches_calls = True

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            self._checkpoints.close()  # of a call that ended by a KeyboardInterrupt, after which torch calls no hook
            self._in_progress = (kwargs.get(PLAN_KEYWORD),)
            if self.takes_keyword:
                return None
            within = partial(replaced_attribute, self, "_in_progress", self._in_progress)
            for part in self.model.modules():
                self._checkpoints.enter_context(_recomputed_within(part, within))
            return args, {name: value for name, value in kwargs.items() if name != PLAN_KEYWORD}

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._in_progress = ()
            self._checkpoints.close()

        self._call.before(self.model, enter, with_kwargs=True)
        self._call.after(self.model, leave, always_call=True)

    def _block_forward(self, module: nn.Module) -> Callable[..., Any]:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            plan: Plan | None = kwargs.get(PLAN_KEYWORD, self._plan)
            if plan is None or (block := plan.locate_block(module)) is None or (edit := plan.block(block)) is None:
                return original(*args, **kwargs)
            if edit.skip:
                plan.count_skipped(block)
                return block.skipped(args, kwargs)
            if edit.activations is None and edit.feed_forward is None:
                output = original(*args, **kwargs)
            else:
                edited = partial(replaced_attribute, self, "_edit", (edit, hidden_states(args, kwargs).shape[:2]))
                with edited(), _recomputed_within(module, edited):
                    output = original(*args, **kwargs)
            if edit.output is None:
                return output
            return edit.output(output) if block.returns_tensor else (edit.output(output[0]), *output[1:])

        return forward


def _recomputed_within(module: nn.Module, context: Callable[[], ContextDecorator]) -> AbstractContextManager[None]:
    """Recompute what the module itself checkpoints in this block within another ``context()``."""
    stock: Callable[..., Any] | None = vars(module).get(_CHECKPOINT)
    if stock is None:
        return nullcontext()

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return stock(context()(function), *args, **kwargs)

    return replaced_attribute(module, _CHECKPOINT, checkpoint)


def _by_token(edit: Callable[[Tensor], Tensor], states: Tensor, shape: torch.Size) -> Tensor:
    """Call ``edit`` with ``(batch, n, width)``, even if a model flattens all tokens of the batch."""
    if states.shape[:-1] == shape:
        return edit(states)
    if states.shape[:-1].numel() != shape.numel():
        raise AttendropError(
            "The model's feed-forward processes some of the tokens at a time (in chunks, or by separate experts), so "
            "nothing can be changed there; if that is an option of the model, such as chunk_size_feed_forward, switch "
            "it off."
        )
    return edit(states.reshape(*shape, -1)).view_as(states)
