"""The attention engine: the one place that knows how transformers dispatches attention.

Models of transformers look their attention function up by name. While a model is *attached*, that name leads here. A
forward pass that is given a :class:`Plan` under the keyword ``attendrop_plan`` asks it, at each attention layer (a
:class:`Site`), what to change; a pass without one runs the model's own attention function, bit for bit.
"""

from __future__ import annotations

import inspect
import logging
import operator
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.block_hooks import BlockHooks
from attendrop.errors import AttendropError
from attendrop.isolation import evaluating, forked_rng
from attendrop.outputs import named_outputs
from attendrop.plan import PLAN_KEYWORD, Combined, Plan
from attendrop.scoring import Call, Scoring
from attendrop.sites import Site
from attendrop.structure import Block
from attendrop.tracing import Trace, trace

__all__ = [
    "PLAN_KEYWORD",
    "Attachment",
    "Combined",
    "Plan",
    "attention_layers",
    "dummy_batch",
    "evaluating",
    "find_sites",
    "forked_rng",
]

logger = logging.getLogger(__name__)


class _RegisteredName(str):
    """A registered name in a configuration; copies and pickles hold the implementation that it stands for instead."""

    original: str

    def __new__(cls, name: str, original: str) -> _RegisteredName:
        made = super().__new__(cls, name)
        made.original = original
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.original,)


# The name registered in place of each implementation that is supported. A name must not contain "sdpa", "flash" or
# "flex": transformers tests for these substrings.
_REGISTERED_AS = {"sdpa": _RegisteredName("attendrop", "sdpa"), "eager": _RegisteredName("attendrop_eager", "eager")}

# The attachments in force. Two models made from one configuration share it: the last to leave puts it back.
_ATTACHED: weakref.WeakSet[Attachment] = weakref.WeakSet()


class Attachment:
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
    def sites(self) -> list[Site]:
        """The attention sites, in the order in which their modules first run; empty until :meth:`probe` has run."""
        return [] if self._trace is None else [site for sites in self._trace.sites.values() for site in sites]

    @property
    def blocks(self) -> list[Block]:
        """The blocks that attention layers are in, in the order in which their modules first run, once probed.

        Raises:
            AttendropError: The model's layers are not to be told apart.
        """
        modules = {} if self._trace is None else self._trace.structure.blocks
        found = [block for blocks in modules.values() for block in blocks if block.sites]
        if len(found) != len({block.key for block in found}) or not found:
            raise AttendropError(f"{type(self.model).__name__} keeps its layers in no list, so none can be reached.")
        return found

    def probe(self, batch: Mapping[str, Any]) -> list[Site]:
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
        return self.sites

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
        plan.bind(self._trace.sites, structure)
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


def find_sites(model: PreTrainedModel, batch: Mapping[str, Any] | None = None) -> list[Site]:
    """List the attention sites of a model, in the order in which a forward pass meets them.

    Args:
        model: A transformers model; left as it was.
        batch: Inputs for one forward pass. Without it, a tiny input is made up from the model's configuration.

    Raises:
        AttendropError: The model is not supported; the message says why.
    """
    attachment = Attachment(model)
    return attachment.probe(dummy_batch(model) if batch is None else batch)


def attention_layers(model: nn.Module) -> list[str]:
    """The names of the modules that call transformers' attention interface, whether or not a batch reaches them."""
    return list(_attention_modules(model).values())


def dummy_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make up the smallest input that a text, image or video model accepts: one sequence, image or video of zeros."""
    name, config = model.main_input_name, model.config
    if name in ("pixel_values", "pixel_values_videos"):
        config = getattr(config, "vision_config", config)
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        shape = (1, *frames, getattr(config, "num_channels", 3), height, width)
        return {name: torch.zeros(shape, device=model.device, dtype=model.dtype)}
    if name != "input_ids":
        raise AttendropError(
            f"{type(model).__name__} takes '{name}', for which no example input can be made up; pass a batch."
        )
    # Eight different tokens: BART's classifier wants an end-of-sequence token in each row.
    tokens = torch.arange(8, device=model.device)[None] % config.get_text_config().vocab_size
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int):
        tokens = torch.where(tokens == end, 0, tokens)
        tokens[:, -1] = end
    if type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        tokens = tokens[:, None]
    batch = {name: tokens}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens
    return batch


def _attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Map the modules whose forward looks its attention function up in the interface to their names."""
    found = {module: name for name, module in model.named_modules() if _uses_interface(module)}
    if not found:
        raise AttendropError(
            f"{type(model).__name__} is not supported: it does not route its attention through transformers' "
            "AttentionInterface, so attention masks would be lost without a word. docs/models.md lists the models that "
            "work; `attendrop doctor` tells for any."
        )
    return found


def _uses_interface(module: nn.Module) -> bool:
    code = getattr(_own_forward(module), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _own_forward(module: nn.Module) -> Any:
    return inspect.unwrap(type(module).forward)


def _attention_configs(model: nn.Module, modules: Mapping[nn.Module, str]) -> list[Any]:
    """The distinct configurations that masks are built and attention functions looked up by."""
    owners = [module for module in model.modules() if isinstance(module, PreTrainedModel)] + list(modules)
    configs = {id(owner.config): owner.config for owner in owners if hasattr(owner, "config")}
    return list(configs.values())


def _original(config: Any) -> str:
    """The attention implementation of a configuration, looking through an attachment."""
    name: str = config._attn_implementation
    return next((original for original, registered in _REGISTERED_AS.items() if registered == name), name)


def _refuse_reentrant_checkpointing(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        function = getattr(module, "_gradient_checkpointing_func", None)
        keywords = getattr(function, "keywords", None) or {}
        if getattr(module, "gradient_checkpointing", False) and keywords.get("use_reentrant"):
            raise AttendropError(
                "Reentrant activation checkpointing is on, under which no attribution can be computed. Switch to "
                "activation_checkpointing_kwargs={'use_reentrant': False}."
            )


def _attend(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Make the attention function that is registered in place of implementation ``base``."""

    def attention_forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        plan: Plan | None = kwargs.pop(PLAN_KEYWORD, None)
        if plan is not None:
            planned: tuple[Tensor, Tensor | None] | None
            planned = _follow(plan, module, query, key, value, attention_mask, kwargs)
            if planned is not None:
                return planned
        if base == "eager":
            own: types.FunctionType = _own_forward(module)
            function = own.__globals__["eager_attention_forward"]
        else:
            function = ALL_ATTENTION_FUNCTIONS[base]
        return function(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]

    return attention_forward


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _follow(
    plan: Plan,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None] | None:
    """Compute one attention layer as the plan wants it; None if it wants nothing there.

    A compiled model leaves its graph here: plans are ordinary Python, another one in each pass.
    """
    site = plan.locate(module)
    if site is None or not plan.wants(site):
        return None
    scoring = Scoring(module, query, key, value, attention_mask, kwargs)
    edit = plan.edit(Call(site, scoring.shape, scoring.valid, query.device))
    return None if edit is None else scoring.attend(edit)


for _base, _name in _REGISTERED_AS.items():
    AttentionInterface.register(_name, _attend(_base))
    AttentionMaskInterface.register(_name, eager_mask if _base == "eager" else sdpa_mask)
