"""The library's hold on one model: its attention layers, and passes with a plan."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from attendrop.attention.block_hooks import BlockHooks
from attendrop.attention.blocks import Block
from attendrop.attention.example_inputs import example_inputs
from attendrop.attention.interface import (
    _REGISTERED_AS,
    _attention_configs,
    _attention_modules,
    _original,
    _refuse_reentrant_checkpointing,
)
from attendrop.attention.isolation import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.model_outputs import named_outputs
from attendrop.attention.plan import PLAN_KEYWORD, CombinedPlan, Plan
from attendrop.attention.tracing import Trace, trace
from attendrop.errors import AttendropError

__all__ = [
    "PLAN_KEYWORD",
    "CombinedPlan",
    "ModelAdapter",
    "Plan",
    "attention_module_names",
    "evaluating",
    "example_inputs",
    "find_attention_layers",
    "forked_rng",
]
logger = logging.getLogger(__name__)


# The attachments in force. Two models made from one configuration share it: the last to leave puts it back.
_ATTACHED: weakref.WeakSet[ModelAdapter] = weakref.WeakSet()


class ModelAdapter:
    """The library's hold on one model: its attention sites, and passes with a plan.

    Args:
        model: A transformers model. It is not changed until :meth:`attach`.

    Raises:
        AttendropError: The model does not route its attention through transformers' attention interface, or runs an
            implementation other than SDPA and eager, or uses reentrant activation checkpointing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._known = _known(model)
        self._configs = _attention_configs(model, self._known.attention)
        self._check_implementations()
        self._trace: Trace | None = None
        self._hooks = BlockHooks(model)
        self._attached = False

    def attach(self) -> None:
        """Route the model's attention through this module. Idempotent."""
        if self._attached:
            return
        if any(other.model is self.model for other in _ATTACHED):
            raise AttendropError(f"{type(self.model).__name__} is already regularised; leave the other block first.")
        _ATTACHED.add(self)
        self._route()
        self._attached = True

    def detach(self) -> None:
        """Give the model back exactly as it was. Idempotent."""
        self._hooks.close()
        if not self._attached:
            return
        _ATTACHED.discard(self)
        in_use = {id(config) for other in _ATTACHED for config in other._configs}
        for config in self._configs:
            if id(config) not in in_use:
                config._attn_implementation_internal = _original(config)
        self._attached = False

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """The attention sites, in the order in which their modules first run; empty until :meth:`trace` has run."""
        return (
            []
            if self._trace is None
            else [layer for attention_layers in self._trace.attention_layers.values() for layer in attention_layers]
        )

    @property
    def blocks(self) -> list[Block]:
        """The blocks that attention layers are in, in the order in which their modules first run, once probed.

        Raises:
            AttendropError: The model's layers are not to be told apart.
        """
        modules = {} if self._trace is None else self._trace.structure.blocks
        found = [block for blocks in modules.values() for block in blocks if block.attention_layers]
        if len(found) != len({block.key for block in found}) or not found:
            raise AttendropError(f"{type(self.model).__name__} keeps its layers in no list, so none can be reached.")
        return found

    def trace(self, batch: Mapping[str, Any]) -> list[AttentionLayer]:
        """Find the sites by running the model once on ``batch``, without gradients and without touching random states.

        What was found is remembered for as long as the model's modules stay the same, for batches of the same columns.

        Raises:
            AttendropError: The model does not hand keywords on to its attention layers, or some of its layers compute
                their attention themselves.
        """
        known = _known(self.model)
        if known is not self._known:
            self._known, self._configs = known, _attention_configs(self.model, known.attention)
        self._hold()
        _refuse_reentrant_checkpointing(known.checkpointing)
        inputs = frozenset(name for name, value in batch.items() if value is not None)
        kind = inputs, *(_original(config) for config in self._configs)
        if kind not in known.traces:
            known.traces[kind] = self._traced(batch)
        self._trace = known.traces[kind]
        return self.attention_layers

    def bind(self, plan: Plan) -> Plan:
        """Tell ``plan`` the sites of this model; required before a pass is run with it.

        Raises:
            AttendropError: The plan changes the embedded words, and the model embeds none; or the model was switched to
                an attention implementation that is not supported.
        """
        self._hold()
        assert self._trace is not None
        structure = self._trace.structure
        if plan.embeds() and structure.embedding is None:
            raise AttendropError(
                f"{type(self.model).__name__} embeds no words here (ids of tokens), so they cannot be changed; let the "
                "method act on attention, if it can."
            )
        plan.bind(self._trace.attention_layers, structure)
        if plan.reaches_beyond():
            self._hooks.open(structure)
        return plan

    def forward(self, batch: Mapping[str, Any], plan: Plan | None = None) -> Any:
        """Run the model on ``batch``, with ``plan`` if there is one; the outputs have names."""
        keywords = {} if plan is None else {PLAN_KEYWORD: self.bind(plan)}
        return named_outputs(self.model(**batch, **keywords), batch)

    def _traced(self, batch: Mapping[str, Any]) -> Trace:
        def run(plan: Plan) -> None:
            with torch.no_grad(), forked_rng(self.model), evaluating(self.model):
                self.model(**batch, **{PLAN_KEYWORD: plan})

        was_attached = self._attached
        self.attach()
        try:
            return trace(self.model, self._known.attention, run)
        finally:
            if not was_attached:
                self.detach()

    def _route(self) -> None:
        for config in self._configs:
            config._attn_implementation_internal = _REGISTERED_AS[_original(config)]

    def _hold(self) -> None:
        """Attach again where the model was switched to another attention implementation meanwhile."""
        if not self._attached or all(c._attn_implementation in _REGISTERED_AS.values() for c in self._configs):
            return
        self._check_implementations()
        self._route()
        logger.warning(
            "%s was switched to attention implementation '%s' while it is regularised; it goes on with that one.",
            type(self.model).__name__,
            _original(self._configs[0]),
        )

    def _check_implementations(self) -> None:
        originals = [_original(config) for config in self._configs]
        for original in originals:
            if original not in _REGISTERED_AS:
                raise AttendropError(
                    f"{type(self.model).__name__} runs attention implementation '{original}', which cannot drop single "
                    "attention positions. Load it with attn_implementation='sdpa'."
                )
        if "eager" in originals and any(getattr(m, "reorder_and_upcast_attn", False) for m in self._known.attention):
            raise AttendropError(
                f"{type(self.model).__name__} computes eager attention with reorder_and_upcast_attn, which bypasses "
                "the attention interface. Load it with attn_implementation='sdpa'."
            )


@dataclass
class _Known:
    """What is known of a model for as long as it consists of the same modules.

    Attributes:
        modules: These, without the model itself, which would keep it alive.
        attention: Those that call the attention interface, with their names.
        checkpointing: Those that checkpoint activations when they are told to.
        traces: What passes showed, by the names of their inputs and the attention implementations.
    """

    modules: list[nn.Module]
    attention: dict[nn.Module, str]
    checkpointing: list[nn.Module]
    traces: dict[tuple[Any, ...], Trace] = field(default_factory=dict)


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def _known(model: nn.Module) -> _Known:
    """What is known of a model, also from earlier attachments."""
    known, modules = _KNOWN.get(model), list(model.modules())[1:]
    if known is None or len(modules) != len(known.modules) or not all(map(operator.is_, modules, known.modules)):
        checkpointing = [module for module in modules if hasattr(module, "gradient_checkpointing")]
        known = _KNOWN[model] = _Known(modules, _attention_modules(model), checkpointing)
    return known


def find_attention_layers(model: PreTrainedModel, batch: Mapping[str, Any] | None = None) -> list[AttentionLayer]:
    """List the attention sites of a model, in the order in which a forward pass meets them.

    Args:
        model: A transformers model; left as it was.
        batch: Inputs for one forward pass. Without it, a tiny input is made up from the model's configuration.

    Raises:
        AttendropError: The model is not supported; the message says why.
    """
    adapter = ModelAdapter(model)
    return adapter.trace(example_inputs(model) if batch is None else batch)


def attention_module_names(model: nn.Module) -> list[str]:
    """The names of the modules that call transformers' attention interface, whether or not a batch reaches them."""
    return list(_attention_modules(model).values())
