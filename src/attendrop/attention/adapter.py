"""The adapter that connects a model's attention layers and blocks to plans."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attendrop.attention.blocks import Block, ModelStructure, hidden_states
from attendrop.attention.hooks import ModuleHooks, evaluating, forked_rng, recomputed_within, replaced_attribute
from attendrop.attention.interface import (
    attention_configs,
    check_implementations,
    implementation_of,
    route,
    use_implementation,
)
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.own_softmax import computes_softmax, follow
from attendrop.attention.plan import PLAN_KEYWORD, BlockEdit, Plan, carried_plan, keywords
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

    # Plans reach what calls the attention interface as a keyword; what does not (attention modules that compute softmax
    # themselves, blocks, the embedding and the head), by hooks. In one pass:
    #
    # 1. The model is called with the plan as a keyword, and passes it on to its layers, or it stops at the model (those
    #    that compute softmax).
    # 2. The embedding, attention modules, blocks and the head run, in this order; the plan is that of their keywords,
    #    or of the call in progress. While a block runs, ``_edit`` is what the plan changes within it.
    # 3. Under activation checkpointing, attention modules and blocks run again in the backward pass, where they find
    #    the plan of their first run in their keywords, or by the replaced checkpoint function.

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
        self._attached = False
        self._takes_keyword = not any(map(computes_softmax, self._cache.attention))
        self._of_call, self._of_attention, self._of_blocks = ModuleHooks(), ModuleHooks(), ModuleHooks()
        self._in_progress: tuple[Plan | None, ...] = ()  # the plan of the call, within one
        self._watches_calls = False
        self._checkpoints = ExitStack()
        self._structure: ModelStructure | None = None
        self._edit = (BlockEdit(), torch.Size())  # of the innermost block that runs, and its batch and length
        self.masks_seen: dict[str, int] = {}  # by layer: which object its valid positions were, in the last pass

    def attach(self) -> None:
        """Route the model's attention through this library. Idempotent."""
        if self._attached:
            return
        if any(other.model is self.model for other in _ATTACHED):
            raise AttendropError(f"{type(self.model).__name__} is already regularised; leave the other block first.")
        self._act_in_attention()
        _ATTACHED.add(self)
        self._attached = True
        for config in self.configs:
            route(config)

    def detach(self) -> None:
        """Restore the model exactly. Idempotent."""
        for hooks in (self._of_blocks, self._of_attention, self._of_call):
            hooks.close()
        self._structure, self._in_progress, self._watches_calls = None, (), False
        self._checkpoints.close()
        if not self._attached:  # also one that was refused, beside the one that is attached
            return
        for module in self.model.modules():
            module.__dict__.pop("attendrop_place", None)
        _ATTACHED.discard(self)
        in_use = {id(config) for other in _ATTACHED for config in other.configs}
        for config in self.configs:
            if id(config) not in in_use:
                use_implementation(config, implementation_of(config))
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
        """Blocks that hold attention layers, in the order of their first runs; AttendropError if they are not known."""
        by_module = {} if self._trace is None else self._trace.structure.blocks
        found = [block for blocks in by_module.values() for block in blocks if block.attention_layers]
        if len(found) != len({block.key for block in found}) or not found:
            raise AttendropError(f"{type(self.model).__name__} has no ModuleList of layers.")
        return found

    def trace(self, batch: Mapping[str, Any]) -> list[AttentionLayer]:
        """Find the attention layers by running the model once on ``batch``, without gradients or traces of it.

        The result is cached for batches with the same columns, for as long as the model's modules stay the same. Errors
        are those of :func:`attendrop.attention.tracing.trace`.
        """
        cache = trace_cache(self.model)
        if cache is not self._cache:
            self._cache, self.configs = cache, attention_configs(self.model, cache.attention)
            if self._attached:
                self._act_in_attention()
        self._follow_switches()
        for module in cache.checkpointing:
            given = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", None) or {}
            if getattr(module, "gradient_checkpointing", False) and given.get("use_reentrant"):
                raise AttendropError(
                    "Reentrant activation checkpointing is on, under which no attribution can be computed. Switch to "
                    "activation_checkpointing_kwargs={'use_reentrant': False}."
                )
        columns = frozenset(name for name, value in batch.items() if value is not None)
        key = columns, *(implementation_of(config) for config in self.configs)
        if key not in cache.traces:
            attached = nullcontext() if self._attached else self
            with attached, torch.no_grad(), forked_rng(self.model), evaluating(self.model):
                cache.traces[key] = trace(
                    self.model, cache.attention, lambda plan: self.model(**batch, **keywords(plan))
                )
        self._trace = cache.traces[key]
        return self.attention_layers

    def bind(self, plan: Plan) -> Plan:
        """Give ``plan`` the attention layers and blocks of this model; required before a pass is run with it.

        Raises AttendropError if it changes words, and the model embeds none, or switched to unsupported attention.
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
            self._act_in_blocks(structure)
        return plan

    def forward(self, batch: Mapping[str, Any], plan: Plan | None = None) -> Any:
        """Run the model on ``batch``, with ``plan`` if there is one; the outputs have names."""
        bound = None if plan is None else self.bind(plan)
        return named_outputs(self.model(**model_inputs(batch), **keywords(bound)), batch)

    def _follow_switches(self) -> None:
        """Route attention again if the model was switched to another implementation while attached."""
        if not self._attached or all(implementation_of(each) != each._attn_implementation for each in self.configs):
            return
        check_implementations(self.model, self._cache.attention, self.configs)
        for config in self.configs:
            route(config)
        logger.warning(
            "%s was switched to attention implementation '%s' while it is regularised; it goes on with that one.",
            type(self.model).__name__,
            implementation_of(self.configs[0]),
        )

    def _act_in_attention(self) -> None:
        """Let plans act in the attention modules that compute softmax themselves, and in no others any more."""
        self._of_attention.close()
        for module in self.model.modules():
            module.__dict__.pop("attendrop_place", None)
        for module, name in self._cache.attention.items():
            module.attendrop_place = name  # type: ignore[assignment]

        def following(module: nn.Module) -> Callable[..., Any]:
            stock = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                plan = carried_plan(kwargs)
                kwargs.pop(PLAN_KEYWORD, None)
                if plan is None and not self._in_progress and torch._C._current_graph_task_id() != -1:
                    raise AttendropError(
                        f"The layers of {type(self.model).__name__} run again in the backward pass, where what was "
                        "dropped is not known. Checkpoint activations with model.activation_checkpointing_enable(), or "
                        "not at all."
                    )
                plan = plan or self._plan
                return stock(*args, **kwargs) if plan is None else follow(plan, module, stock, args, kwargs)

            return forward

        functions = {module: following(module) for module in filter(computes_softmax, self._cache.attention)}
        self._of_attention.replace_forward(self.model, functions)
        if functions:
            self._watch_calls()

    def _act_in_blocks(self, structure: ModelStructure) -> None:
        """Let plans act on blocks, embedding and head, in place of those of another structure. Idempotent."""
        if structure is self._structure:
            return
        self._of_blocks.close()
        self._structure = None
        self._of_blocks.replace_forward(self.model, {block: self._block_forward(block) for block in structure.blocks})
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
            self._of_blocks.after(structure.embedding, embedded)
        if structure.head is not None:
            self._of_blocks.before(structure.head, features)
        for inner in {block.feed_forward for blocks in structure.blocks.values() for block in blocks}:
            if inner is not None:
                self._of_blocks.before(inner, activations)
                self._of_blocks.after(inner, feed_forward)

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
            self._in_progress = (carried_plan(kwargs),)
            if self._takes_keyword:
                return None
            within = partial(replaced_attribute, self, "_in_progress", self._in_progress)
            for part in self.model.modules():
                self._checkpoints.enter_context(recomputed_within(part, within))
            return args, {name: value for name, value in kwargs.items() if name != PLAN_KEYWORD}

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._in_progress = ()
            self._checkpoints.close()

        self._of_call.before(self.model, enter, with_kwargs=True)
        self._of_call.after(self.model, leave, always_call=True)

    def _block_forward(self, module: nn.Module) -> Callable[..., Any]:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            plan = carried_plan(kwargs) or self._plan
            if plan is None or (block := plan.locate_block(module)) is None or (edit := plan.block(block)) is None:
                return original(*args, **kwargs)
            if edit.skip:
                plan.count_skipped(block)
                return block.skipped(args, kwargs)
            if edit.activations is None and edit.feed_forward is None:
                output = original(*args, **kwargs)
            elif block.feed_forward is None:
                raise AttendropError(
                    f"{type(module).__name__} {block.key} has no feed-forward for all tokens (it may have experts), so "
                    "nothing can be changed there; choose an option, or a method, that does not act on it."
                )
            else:
                edited = partial(replaced_attribute, self, "_edit", (edit, hidden_states(args, kwargs).shape[:2]))
                with edited(), recomputed_within(module, edited):
                    output = original(*args, **kwargs)
            if edit.output is None:
                return output
            return edit.output(output) if block.returns_tensor else (edit.output(output[0]), *output[1:])

        return forward


def find_attention_layers(model: PreTrainedModel, batch: Mapping[str, Any] | None = None) -> list[AttentionLayer]:
    """List the attention layers of a model, in the order in which a pass on ``batch``, or a tiny example, runs them."""
    return ModelAdapter(model).trace(example_inputs(model) if batch is None else batch)


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
