"""The adapter that connects a model's attention layers and blocks to plans."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from attendrop.attention.block_hooks import BlockHooks
from attendrop.attention.blocks import Block
from attendrop.attention.interface import (
    attention_configs,
    check_implementations,
    find_attention_modules,
    implementation_of,
    is_routed,
    refuse_reentrant_checkpointing,
    refuse_unsavable,
    restore,
    route,
)
from attendrop.attention.isolation import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.model_outputs import named_outputs
from attendrop.attention.module_hooks import RunningPlan
from attendrop.attention.own_softmax import SoftmaxHooks, computes_softmax
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.attention.tracing import Trace, example_inputs, trace, trace_cache
from attendrop.errors import AttendropError
from attendrop.model_support.batches import model_inputs
from attendrop.model_support.models import refuse_virtual_tokens

logger = logging.getLogger(__name__)

# Attached adapters. Two models made from one configuration share it: the last adapter to be detached restores it.
_ATTACHED: weakref.WeakSet[ModelAdapter] = weakref.WeakSet()


class ModelAdapter:
    """Connection to one model: its attention layers and blocks, and forward passes that follow a plan.

    Args:
        model: A transformers model. It is not changed until :meth:`attach`.

    Raises:
        AttendropError: The model does not route its attention through transformers' attention interface, or runs an
            implementation other than SDPA and eager, or uses reentrant activation checkpointing; or an adapter of PEFT
            prepends virtual tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_virtual_tokens(model)
        self.model = model
        self._cache = trace_cache(model)
        self._configs = attention_configs(model, self._cache.attention)
        check_implementations(model, self._cache.attention, self._configs)
        self._trace: Trace | None = None
        softmax = any(map(computes_softmax, self._cache.attention))
        self._running = RunningPlan(model, takes_keyword=not softmax)
        self._softmax_hooks = SoftmaxHooks(self._running)
        self._hooks = BlockHooks(model, self._running)
        self._attached = False

    def attach(self) -> None:
        """Route the model's attention through this library. Idempotent."""
        if self._attached:
            return
        if any(other.model is self.model for other in _ATTACHED):
            raise AttendropError(f"{type(self.model).__name__} is already regularised; leave the other block first.")
        self._softmax_hooks.open(self._cache.attention)
        _ATTACHED.add(self)
        self._attached = True
        for config in self._configs:
            route(config)

    def detach(self) -> None:
        """Restore the model exactly. Idempotent."""
        self._hooks.close()
        self._softmax_hooks.close()
        self._running.close()
        if not self._attached:
            return
        _ATTACHED.discard(self)
        in_use = {id(config) for other in _ATTACHED for config in other._configs}
        for config in self._configs:
            if id(config) not in in_use:
                restore(config)
        self._attached = False

    def check_savable(self) -> None:
        """Raise AttendropError if the model could not be saved while it is attached."""
        refuse_unsavable(self.model, self._configs)

    def __enter__(self) -> Self:
        """Attach within a ``with`` block."""
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """Attention layers, in the order in which their modules first run; empty until :meth:`trace` has run."""
        by_module = {} if self._trace is None else self._trace.layers_by_module
        return [layer for layers in by_module.values() for layer in layers]

    @property
    def blocks(self) -> list[Block]:
        """Blocks that hold attention layers, in the order in which their modules first run; needs :meth:`trace`.

        Raises:
            AttendropError: The model's blocks cannot be distinguished.
        """
        by_module = {} if self._trace is None else self._trace.structure.blocks
        found = [block for blocks in by_module.values() for block in blocks if block.attention_layers]
        if len(found) != len({block.key for block in found}) or not found:
            raise AttendropError(f"{type(self.model).__name__} has no ModuleList of layers.")
        return found

    def trace(self, batch: Mapping[str, Any]) -> list[AttentionLayer]:
        """Find the attention layers by running the model once on ``batch``.

        The pass computes no gradients and leaves random states as they were. Its result is cached for batches with the
        same columns, for as long as the model's modules stay the same.

        Raises:
            AttendropError: The model does not pass keywords on to its attention layers, or some of its layers compute
                their attention themselves.
        """
        cache = trace_cache(self.model)
        if cache is not self._cache:
            self._cache, self._configs = cache, attention_configs(self.model, cache.attention)
            if self._attached:
                self._softmax_hooks.open(cache.attention)
        self._follow_switches()
        refuse_reentrant_checkpointing(cache.checkpointing)
        columns = frozenset(name for name, value in batch.items() if value is not None)
        key = columns, *(implementation_of(config) for config in self._configs)
        if key not in cache.traces:
            cache.traces[key] = self._run_trace(batch)
        self._trace = cache.traces[key]
        return self.attention_layers

    def bind(self, plan: Plan) -> Plan:
        """Give ``plan`` the attention layers and blocks of this model; required before a pass is run with it.

        Raises:
            AttendropError: The plan changes the embedded words, and the model embeds none; or the model was switched to
                an attention implementation that is not supported.
        """
        self._follow_switches()
        assert self._trace is not None
        structure = self._trace.structure
        if "embeddings" in plan.acts_on and structure.embedding is None:
            raise AttendropError(
                f"{type(self.model).__name__} embeds no words here (ids of tokens), so they cannot be changed; let the "
                "method act on attention, if it can."
            )
        plan.bind(self._trace.layers_by_module, structure)
        if plan.acts_on - {"attention"}:
            self._hooks.open(structure)
        return plan

    def forward(self, batch: Mapping[str, Any], plan: Plan | None = None) -> Any:
        """Run the model on ``batch``, with ``plan`` if there is one; the outputs have names."""
        keywords = {} if plan is None else {PLAN_KEYWORD: self.bind(plan)}
        return named_outputs(self.model(**model_inputs(batch), **keywords), batch)

    def _run_trace(self, batch: Mapping[str, Any]) -> Trace:
        def run(plan: Plan) -> None:
            with torch.no_grad(), forked_rng(self.model), evaluating(self.model):
                self.model(**batch, **{PLAN_KEYWORD: plan})

        was_attached = self._attached
        self.attach()
        try:
            return trace(self.model, self._cache.attention, run)
        finally:
            if not was_attached:
                self.detach()

    def _follow_switches(self) -> None:
        """Route attention again if the model was switched to another implementation while attached."""
        if not self._attached or all(is_routed(config) for config in self._configs):
            return
        check_implementations(self.model, self._cache.attention, self._configs)
        for config in self._configs:
            route(config)
        logger.warning(
            "%s was switched to attention implementation '%s' while it is regularised; it goes on with that one.",
            type(self.model).__name__,
            implementation_of(self._configs[0]),
        )


def find_attention_layers(model: PreTrainedModel, batch: Mapping[str, Any] | None = None) -> list[AttentionLayer]:
    """List the attention layers of a model, in the order in which a forward pass on ``batch`` runs them.

    By default the batch is a tiny example made from the model's configuration. The model is left unchanged.

    Raises:
        AttendropError: The model is not supported; the message says why.
    """
    return ModelAdapter(model).trace(example_inputs(model) if batch is None else batch)


def attention_module_names(model: nn.Module) -> list[str]:
    """List by name the modules that call transformers' attention interface, even if no batch reaches them."""
    return list(find_attention_modules(model).values())
