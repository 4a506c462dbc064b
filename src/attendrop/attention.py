"""The attention engine: the one place that knows how transformers dispatches attention.

Models of transformers look their attention function up by name. While a model is *attached*, that name leads here. A
forward pass that is given a :class:`Plan` under the keyword ``attendrop_plan`` asks it, at each attention layer (a
:class:`Site`), what to change; a pass without one runs the model's own attention function, bit for bit.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.errors import AttendropError
from attendrop.scoring import Call, Edit, Scoring, chained, merged
from attendrop.sites import Site
from attendrop.structure import MARK, Block, BlockEdit, Structure, Tracer, hidden_states

PLAN_KEYWORD = "attendrop_plan"
_Place = TypeVar("_Place")

# The name registered in place of each implementation that is supported. A name must not contain "sdpa", "flash" or
# "flex": transformers tests for these substrings.
_REGISTERED_AS = {"sdpa": "attendrop", "eager": "attendrop_eager"}

# The attachments in force. Two models made from one configuration share it: the last to leave puts it back.
_ATTACHED: weakref.WeakSet[Attachment] = weakref.WeakSet()


class Plan:
    """What one forward pass does at each attention site, and around it. One instance serves one forward pass.

    Under activation checkpointing sites and blocks run again during the backward pass, so :meth:`edit` and
    :meth:`block` must answer the same for the same one every time, and what they answer must act the same.
    """

    def __init__(self) -> None:
        self._sites: Mapping[nn.Module, Sequence[Site]] = {}
        self._blocks: Mapping[nn.Module, Sequence[Block]] = {}
        self._visits: Counter[nn.Module] = Counter()

    def edit(self, call: Call) -> Edit | None:
        """Return what to change at ``call.site``; None leaves it to the model's own attention function."""
        return None

    def wants(self, site: Site) -> bool:
        """Whether :meth:`edit` needs to be asked at this site; a False answer saves the work of describing it."""
        return type(self).edit is not Plan.edit

    def block(self, block: Block) -> BlockEdit | None:
        """Return what to change at a block; None: nothing. Only asked where a subclass overrides it."""
        return None

    def embed(self, embedded: Tensor) -> Tensor:
        """Change the embedded words, ``(batch, n, width)``, before positions and normalisation."""
        return embedded

    def features(self, features: Tensor) -> Tensor:
        """Change what the model's last projection reads: ``(batch, width)``, or ``(batch, n, width)``."""
        return features

    def reaches_beyond(self) -> bool:
        """Whether the plan acts elsewhere than at attention."""
        return any(getattr(type(self), name) is not getattr(Plan, name) for name in ("block", "embed", "features"))

    def locate(self, module: nn.Module) -> Site | None:
        """Return the site that ``module`` stands for in this call."""
        return self._located(self._sites, module)

    def locate_block(self, module: nn.Module) -> Block | None:
        """Return the block that ``module`` stands for in this call."""
        return self._located(self._blocks, module)

    def passed_over(self, block: Block) -> None:
        """Count attention layers that did not run, for modules that stand for several are told apart by counting."""
        skipped = {site.key for site in block.sites}
        for module, sites in self._sites.items():
            if len(sites) > 1:
                self._visits[module] += sum(site.key in skipped for site in sites)

    def _located(self, places: Mapping[nn.Module, Sequence[_Place]], module: nn.Module) -> _Place | None:
        found = places.get(module)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        visit = self._visits[module]
        if visit >= len(found):
            raise AttendropError(
                f"A {type(module).__name__} was called more than {len(found)} times in one pass. Activation "
                "checkpointing of a layer that the model shares is not supported; switch it off."
            )
        self._visits[module] += 1
        return found[visit]


class Combined(Plan):
    """Several plans as one: what they drop adds up, and what they call is called in turn."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        super().__init__()
        self.plans = plans

    def wants(self, site: Site) -> bool:
        return any(plan.wants(site) for plan in self.plans)

    def edit(self, call: Call) -> Edit | None:
        edits = [plan.edit(call) for plan in self.plans if plan.wants(call.site)]
        return merged([edit for edit in edits if edit is not None])

    def block(self, block: Block) -> BlockEdit | None:
        edits = [edit for plan in self.plans if (edit := plan.block(block)) is not None]
        if not edits:
            return None
        return BlockEdit(
            skip=any(edit.skip for edit in edits),
            activations=chained([edit.activations for edit in edits]),
            feed_forward=chained([edit.feed_forward for edit in edits]),
            output=chained([edit.output for edit in edits]),
        )

    def embed(self, embedded: Tensor) -> Tensor:
        for plan in self.plans:
            embedded = plan.embed(embedded)
        return embedded

    def features(self, features: Tensor) -> Tensor:
        for plan in self.plans:
            features = plan.features(features)
        return features

    def reaches_beyond(self) -> bool:
        return any(plan.reaches_beyond() for plan in self.plans)


class _Trace(Plan):
    """Records which attention modules a pass calls, in order."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.called: list[nn.Module] = []

    def locate(self, module: nn.Module) -> None:
        self.called.append(module)
        self.tracer.attended(module)


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
        self._modules = _attention_modules(model)
        self._configs = _attention_configs(model, self._modules)
        originals = [_original(config) for config in self._configs]
        for original in originals:
            if original not in _REGISTERED_AS:
                raise AttendropError(
                    f"{type(model).__name__} runs attention implementation '{original}', which cannot drop single "
                    "attention positions. Load it with attn_implementation='sdpa'."
                )
        if "eager" in originals and any(getattr(m, "reorder_and_upcast_attn", False) for m in self._modules):
            raise AttendropError(
                f"{type(model).__name__} computes eager attention with reorder_and_upcast_attn, which bypasses the "
                "attention interface. Load it with attn_implementation='sdpa'."
            )
        self._checkpointing = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
        self._sites: dict[nn.Module, tuple[Site, ...]] = {}
        self._structure = Structure({}, None, None)
        self._reach = _Reach(model)
        self._attached = False

    def attach(self) -> None:
        """Route the model's attention through this module. Idempotent."""
        if self._attached:
            return
        if any(other.model is self.model for other in _ATTACHED):
            raise AttendropError(f"{type(self.model).__name__} is already regularised; leave the other block first.")
        _ATTACHED.add(self)
        for config in self._configs:
            config._attn_implementation_internal = _REGISTERED_AS[_original(config)]
        self._attached = True

    def detach(self) -> None:
        """Give the model back exactly as it was. Idempotent."""
        self._reach.close()
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
        return [site for sites in self._sites.values() for site in sites]

    @property
    def blocks(self) -> list[Block]:
        """The blocks that attention layers are in, in the order in which their modules first run, once probed.

        Raises:
            AttendropError: The model's layers are not to be told apart.
        """
        found = [block for blocks in self._structure.blocks.values() for block in blocks if block.sites]
        if len(found) != len({block.key for block in found}) or not found:
            raise AttendropError(f"{type(self.model).__name__} keeps its layers in no list, so none can be reached.")
        return found

    def probe(self, batch: Mapping[str, Any]) -> list[Site]:
        """Find the sites by running the model once on ``batch``, without gradients and without touching random states.

        The first call does the work; later ones return what it found.

        Raises:
            AttendropError: The model does not hand keywords on to its attention layers.
        """
        _refuse_reentrant_checkpointing(self._checkpointing)
        if not self._sites:
            tracer = Tracer(self.model, list(self._modules.values()))
            with tracer.listening():
                called = self._trace(batch, tracer)
            self._sites = self._number(called)
            self._structure = tracer.structure(self._sites)
        return self.sites

    def bind(self, plan: Plan) -> Plan:
        """Tell ``plan`` the sites of this model; required before a pass is run with it."""
        plan._sites = self._sites
        if plan.reaches_beyond():
            plan._blocks = self._structure.blocks
            self._reach.open(self._structure)
        return plan

    def forward(self, batch: Mapping[str, Any], plan: Plan | None = None) -> Any:
        """Run the model on ``batch``, with ``plan`` if there is one."""
        if plan is None:
            return self.model(**batch)
        return self.model(**batch, **{PLAN_KEYWORD: self.bind(plan)})

    def _trace(self, batch: Mapping[str, Any], tracer: Tracer) -> list[nn.Module]:
        """List the attention modules that one pass calls, in order; all of them must have been handed the plan."""
        trace = _Trace(tracer)
        ran: list[nn.Module] = []
        hooks = [module.register_forward_pre_hook(lambda module, _: ran.append(module)) for module in self._modules]
        was_attached = self._attached
        self.attach()
        try:
            with torch.no_grad(), forked_rng(self.model), evaluating(self.model):
                self.model(**batch, **{PLAN_KEYWORD: trace})
        except TypeError as error:
            if PLAN_KEYWORD not in str(error):
                raise
        finally:
            for hook in hooks:
                hook.remove()
            if not was_attached:
                self.detach()
        lost = [self._modules[module] for module in ran if module not in trace.called]
        if lost or not trace.called:
            raise AttendropError(
                f"{type(self.model).__name__} is not supported: its forward pass does not hand keyword arguments on to "
                f"its attention layers{f' ({lost[0]})' if lost else ''}, so nothing could be dropped there."
            )
        return trace.called

    def _number(self, called: list[nn.Module]) -> dict[nn.Module, tuple[Site, ...]]:
        """Give each call of an attention module its site: numbered within its kind, in the order of execution."""
        per_kind: Counter[str] = Counter()
        total = Counter(called)
        sites: dict[nn.Module, list[Site]] = {module: [] for module in called}
        for module in called:
            name = self._modules[module]
            kind = _kind(name, module)
            suffix = f"#{len(sites[module])}" if total[module] > 1 else ""
            sites[module].append(Site(name + suffix, kind, per_kind[kind]))
            per_kind[kind] += 1
        return {module: tuple(found) for module, found in sites.items()}


class _Reach:
    """How a plan reaches what is around attention: hooks, put on a model when the first such plan comes.

    Blocks are handed the plan among their keywords, as attention is. Embedding and head are not, so the one that the
    model was called with is remembered while it runs; under activation checkpointing neither runs again.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._hooks: list[Any] = []
        self._wrapped: list[nn.Module] = []
        self._plan: Plan | None = None
        self._edits: list[tuple[BlockEdit, torch.Size]] = []

    def open(self, structure: Structure) -> None:
        """Put the hooks on. Idempotent."""
        if self._hooks:
            return
        if any("forward" in module.__dict__ for module in structure.blocks):
            raise AttendropError(f"The layers of {type(self.model).__name__} are wrapped already; unwrap them first.")

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            self._plan = kwargs.get(PLAN_KEYWORD)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._plan = None

        def embedded(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return output if self._plan is None else self._plan.embed(output)

        def features(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return args if self._plan is None else (self._plan.features(args[0]), *args[1:])

        def activations(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            edit, shape = self._edits[-1] if self._edits else (BlockEdit(), torch.Size())
            return args if edit.activations is None else (_by_token(edit.activations, args[0], shape), *args[1:])

        def fed_forward(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            edit, shape = self._edits[-1] if self._edits else (BlockEdit(), torch.Size())
            return output if edit.feed_forward is None else _by_token(edit.feed_forward, output, shape)

        for hook in (enter, leave, embedded, features, activations, fed_forward):
            setattr(hook, MARK, True)
        self._hooks = [
            self.model.register_forward_pre_hook(enter, with_kwargs=True),
            self.model.register_forward_hook(leave, always_call=True),
        ]
        if structure.embedding is not None:
            self._hooks.append(structure.embedding.register_forward_hook(embedded))
        if structure.head is not None:
            self._hooks.append(structure.head.register_forward_pre_hook(features))
        inner = {b.feed_forward for blocks in structure.blocks.values() for b in blocks if b.feed_forward is not None}
        self._hooks += [module.register_forward_pre_hook(activations) for module in inner]
        self._hooks += [module.register_forward_hook(fed_forward) for module in inner]
        for module in structure.blocks:
            self._wrap(module)

    def close(self) -> None:
        """Take them away. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        for module in self._wrapped:
            del module.forward
        self._hooks, self._wrapped = [], []

    def _wrap(self, module: nn.Module) -> None:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            plan: Plan | None = kwargs.get(PLAN_KEYWORD)
            block = None if plan is None else plan.locate_block(module)
            edit = None if plan is None or block is None else plan.block(block)
            if plan is None or block is None or edit is None:
                return original(*args, **kwargs)
            if edit.skip:
                plan.passed_over(block)
                return block.skipped(args, kwargs)
            within = edit.activations is not None or edit.feed_forward is not None
            shape = hidden_states(args, kwargs).shape[:2] if within else torch.Size()
            with self._within(edit, shape), self._also_recomputed(module, edit, shape):
                output = original(*args, **kwargs)
            if edit.output is None:
                return output
            return edit.output(output) if block.bare else (edit.output(output[0]), *output[1:])

        setattr(forward, MARK, True)
        module.forward = forward
        self._wrapped.append(module)

    @contextmanager
    def _within(self, edit: BlockEdit, shape: torch.Size) -> Iterator[None]:
        self._edits.append((edit, shape))
        try:
            yield
        finally:
            self._edits.pop()

    @contextmanager
    def _also_recomputed(self, module: Any, edit: BlockEdit, shape: torch.Size) -> Iterator[None]:
        """Have the edit in force where activation checkpointing, which begins within a block, runs it again."""
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if checkpoint is None or (edit.activations is None and edit.feed_forward is None):
            yield
            return

        def checkpoint_within(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return checkpoint(self._within(edit, shape)(function), *args, **kwargs)

        module._gradient_checkpointing_func = checkpoint_within
        try:
            yield
        finally:
            module._gradient_checkpointing_func = checkpoint


def _by_token(edit: Callable[[Tensor], Tensor], states: Tensor, shape: torch.Size) -> Tensor:
    """Call ``edit`` with ``(batch, n, width)``, also where a model puts all tokens of the batch in one dimension."""
    if states.shape[:-1] == shape:
        return edit(states)
    if states.shape[:-1].numel() != shape.numel():
        raise AttendropError(
            "The model's feed-forward takes some of the tokens at a time (in chunks, or each by an expert of its own), "
            "so nothing can be changed there; where that is an option of the model, such as chunk_size_feed_forward, "
            "switch it off."
        )
    return edit(states.reshape(*shape, -1)).view_as(states)


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


def dummy_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make up the smallest input that a text or image model accepts: one sequence, or one image, of zeros or ones."""
    name, config = model.main_input_name, model.config
    if name == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {name: torch.zeros(1, config.num_channels, height, width, device=model.device, dtype=model.dtype)}
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


@contextmanager
def forked_rng(model: nn.Module) -> Iterator[None]:
    """Leave the global random state of the CPU and of the model's device as it was before the block."""
    device = next(model.parameters()).device
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode for the block, and afterwards back into the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _attention_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Map the modules whose forward looks its attention function up in the interface to their names."""
    found = {module: name for name, module in model.named_modules() if _uses_interface(module)}
    if not found:
        raise AttendropError(
            f"{type(model).__name__} is not supported: it does not route its attention through transformers' "
            "AttentionInterface, so attention masks would be lost without a word. Models of the BERT, RoBERTa, "
            "ELECTRA, DistilBERT, ALBERT, ModernBERT, BART, T5, GPT-2 and Llama families work; `attendrop doctor` "
            "tells for any."
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


def _kind(name: str, module: nn.Module) -> str:
    path = f"{name}.{type(module).__name__}".lower()
    if getattr(module, "is_cross_attention", False) or re.search(r"cross_?att|encoder_attn|encdecatt|enc_dec", path):
        return "cross"
    causal = getattr(module, "is_causal", False) or getattr(module, "is_decoder", False)
    return "decoder" if causal or re.search(r"(^|\.)decoder\.", path) else "encoder"


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
