"""The adapter that connects a model's attention layers and blocks to plans."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from attendrop.attention.blocks import Block
from attendrop.attention.hooks import PlanHooks, evaluating, forked_rng
from attendrop.attention.interface import (
    attention_configs,
    check_implementations,
    implementation_of,
    is_routed,
    refuse_reentrant_checkpointing,
    restore,
    route,
)
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.own_softmax import computes_softmax, follow
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.attention.tracing import Trace, example_inputs, trace, trace_cache
from attendrop.errors import AttendropError
from attendrop.support.models import model_inputs, named_outputs

logger = logging.getLogger(__name__)

# Attached adapters. Two models made from one configuration share it: the last adapter to be detached restores it.
_ATTACHED: weakref.WeakSet[ModelAdapter] = weakref.WeakSet()


class ModelAdapter:
    """Connection to one model: its attention layers and blocks, and forward passes that follow a plan.

    Args:
        model: A transformers model. It is not changed until :meth:`attach`.

    Attributes:
        model: The model.
        configs: The distinct configurations of the model and of its attention modules.

    Raises:
        AttendropError: The model does not route its attention through transformers' attention interface, or runs an
            implementation other than SDPA and eager, or uses reentrant activation checkpointing; or an adapter of PEFT
            prepends virtual tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        peft: Any = getattr(model, "active_peft_config", None)
        if getattr(peft, "is_prompt_learning", False):
            raise AttendropError(
                f"{type(model).__name__} prepends {peft.num_virtual_tokens} virtual tokens ({peft.peft_type.value}), "
                "which shift the positions of all others, so a method cannot tell which tokens it acts on. Use an "
                "adapter without them, such as LoRA."
            )
        self.model = model
        self._cache = trace_cache(model)
        self.configs = attention_configs(model, self._cache.attention)
        check_implementations(model, self._cache.attention, self.configs)
        self._trace: Trace | None = None
        self._hooks = PlanHooks(model, takes_keyword=not any(map(computes_softmax, self._cache.attention)))
        self._attached = False

    def attach(self) -> None:
        """Route the model's attention through this library. Idempotent."""
        if self._attached:
            return
        if any(other.model is self.model for other in _ATTACHED):
            raise AttendropError(f"{type(self.model).__name__} is already regularised; leave the other block first.")
        self._hooks.act_in_attention(filter(computes_softmax, self._cache.attention), follow)
        _ATTACHED.add(self)
        self._attached = True
        for config in self.configs:
            route(config)

    def detach(self) -> None:
        """Restore the model exactly. Idempotent."""
        self._hooks.close()
        if not self._attached:
            return
        _ATTACHED.discard(self)
        in_use = {id(config) for other in _ATTACHED for config in other.configs}
        for config in self.configs:
            if id(config) not in in_use:
                restore(config)
        self._attached = False

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
            self._cache, self.configs = cache, attention_configs(self.model, cache.attention)
            if self._attached:
                self._hooks.act_in_attention(filter(computes_softmax, cache.attention), follow)
        self._follow_switches()
        refuse_reentrant_checkpointing(cache.checkpointing)
        columns = frozenset(name for name, value in batch.items() if value is not None)
        key = columns, *(implementation_of(config) for config in self.configs)
        if key not in cache.traces:
            attached = nullcontext() if self._attached else self
            with attached, torch.no_grad(), forked_rng(self.model), evaluating(self.model):
                cache.traces[key] = trace(
                    self.model, cache.attention, lambda plan: self.model(**batch, **{PLAN_KEYWORD: plan})
                )
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
            self._hooks.act_in_blocks(structure)
        return plan

    def forward(self, batch: Mapping[str, Any], plan: Plan | None = None) -> Any:
        """Run the model on ``batch``, with ``plan`` if there is one; the outputs have names."""
        keywords = {} if plan is None else {PLAN_KEYWORD: self.bind(plan)}
        return named_outputs(self.model(**model_inputs(batch), **keywords), batch)

    def _follow_switches(self) -> None:
        """Route attention again if the model was switched to another implementation while attached."""
        if not self._attached or all(is_routed(config) for config in self.configs):
            return
        check_implementations(self.model, self._cache.attention, self.configs)
        for config in self.configs:
            route(config)
        logger.warning(
            "%s was switched to attention implementation '%s' while it is regularised; it goes on with that one.",
            type(self.model).__name__,
            implementation_of(self.configs[0]),
        )


def find_attention_layers(model: PreTrainedModel, batch: Mapping[str, Any] | None = None) -> list[AttentionLayer]:
    """List the attention layers of a model, in the order in which a forward pass on ``batch`` runs them.

    By default the batch is a tiny example made from the model's configuration. The model is left unchanged.

    Raises:
        AttendropError: The model is not supported; the message says why.
    """
    return ModelAdapter(model).trace(example_inputs(model) if batch is None else batch)
