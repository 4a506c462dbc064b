"""Hooks through which a plan reaches the blocks, the embedding and the head of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.blocks import ModelStructure, hidden_states
from attendrop.attention.edits import BlockEdit
from attendrop.attention.module_hooks import ModuleHooks, RunningPlan, recomputed_within, refuse_wrapped
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError


class BlockHooks:
    """Hooks for plans that act beyond attention, registered when the first such plan is bound.

    Blocks receive the plan as a keyword, as attention does, if the model passes keywords on. Embedding and head do not,
    and use the plan of the call in progress; under activation checkpointing neither runs again.
    """

    def __init__(self, model: nn.Module, running: RunningPlan) -> None:
        self.model = model
        self._running = running
        self._hooks = ModuleHooks()
        self._structure: ModelStructure | None = None
        self._edits = [(BlockEdit(), torch.Size())]  # of the blocks that run, the innermost last

    def open(self, structure: ModelStructure) -> None:
        """Register the hooks, in place of those for another structure. Idempotent."""
        if structure is self._structure:
            return
        self.close()
        refuse_wrapped(self.model, structure.blocks)
        self._structure = structure
        self._running.open()

        def embedded(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            plan = self._running.plan
            return output if plan is None else plan.embed(output)

        def features(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            plan = self._running.plan
            return args if plan is None else (plan.features(args[0]), *args[1:])

        def activations(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            edit, shape = self._edits[-1]
            return args if edit.activations is None else (_by_token(edit.activations, args[0], shape), *args[1:])

        def feed_forward(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            edit, shape = self._edits[-1]
            return output if edit.feed_forward is None else _by_token(edit.feed_forward, output, shape)

        if structure.embedding is not None:
            self._hooks.after(structure.embedding, embedded)
        if structure.head is not None:
            self._hooks.before(structure.head, features)
        for inner in {block.feed_forward for blocks in structure.blocks.values() for block in blocks}:
            if inner is not None:
                self._hooks.before(inner, activations)
                self._hooks.after(inner, feed_forward)
        for module in structure.blocks:
            self._wrap(module)

    def close(self) -> None:
        """Remove the hooks. Idempotent."""
        self._hooks.close()
        self._structure = None

    def _wrap(self, module: nn.Module) -> None:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            plan: Plan | None = kwargs.get(PLAN_KEYWORD, self._running.plan)
            if plan is None or (block := plan.locate_block(module)) is None or (edit := plan.block(block)) is None:
                return original(*args, **kwargs)
            if edit.skip:
                plan.count_skipped(block)
                return block.skipped(args, kwargs)
            within = edit.activations is not None or edit.feed_forward is not None
            shape = hidden_states(args, kwargs).shape[:2] if within else torch.Size()
            edited = partial(self._within, edit, shape)
            with edited(), recomputed_within(module, edited) if within else nullcontext():
                output = original(*args, **kwargs)
            if edit.output is None:
                return output
            return edit.output(output) if block.returns_tensor else (edit.output(output[0]), *output[1:])

        self._hooks.replace_forward(module, forward)

    @contextmanager
    def _within(self, edit: BlockEdit, shape: torch.Size) -> Iterator[None]:
        self._edits.append((edit, shape))
        try:
            yield
        finally:
            self._edits.pop()


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
