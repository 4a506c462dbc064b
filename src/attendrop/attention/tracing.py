"""Tracing one pass of a model: which attention layers run, the blocks around them, and example inputs for the pass."""

from __future__ import annotations

import logging
import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.attention.blocks import ModelStructure, StructureEvents, block_of
from attendrop.attention.interface import find_attention_modules
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import PLAN_KEYWORD, AttentionCall, AttentionEdit, Plan
from attendrop.errors import AttendropError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trace:
    """Result of one traced pass: the layers of attention modules, in the order of first runs, and the structure."""

    layers_by_module: Mapping[nn.Module, tuple[AttentionLayer, ...]]
    structure: ModelStructure


@dataclass
class TraceCache:
    """Valid for as long as a model consists of the same modules."""

    modules: list[nn.Module]  # without the model itself, which would keep it alive
    children: list[tuple[nn.Module | None, ...]]  # of the model, and of each of its modules
    attention: dict[nn.Module, str]  # those that call the attention interface, with their names
    checkpointing: list[nn.Module]  # those that can checkpoint activations
    traces: dict[tuple[Any, ...], Trace] = field(default_factory=dict)  # by names of inputs, and implementations


# Argument of modules that call the attention interface once for each image or sound of the whole batch, one after the
# other (Qwen2-VL): how often differs from batch to batch, so their calls are no layers, and plans leave them alone.
_LENGTHS_OF_PARTS = "cu_seqlens"
_CACHES: weakref.WeakKeyDictionary[nn.Module, TraceCache] = weakref.WeakKeyDictionary()


def trace_cache(model: nn.Module) -> TraceCache:
    """Return the cache of a model; a new one if there is none, or if its modules have changed."""
    cache = _CACHES.get(model)
    children = [] if cache is None else [tuple(module._modules.values()) for module in (model, *cache.modules)]
    if cache is None or children != cache.children:  # tuples of the same modules are equal
        modules = list(model.modules())[1:]
        checkpointing = [module for module in modules if hasattr(module, "gradient_checkpointing")]
        children = [tuple(module._modules.values()) for module in (model, *modules)]
        cache = _CACHES[model] = TraceCache(modules, children, find_attention_modules(model), checkpointing)
    return cache


def trace(model: nn.Module, modules: Mapping[nn.Module, str], run: Callable[[Plan], Any]) -> Trace:
    """Trace the pass of a model that ``run`` makes with a plan.

    Raises:
        AttendropError: The plan did not reach an attention layer in each of its calls, or other layers compute their
            attention themselves.
    """
    structure = StructureEvents(model, modules.values())
    recorder = _CallRecorder(structure)
    bypasses = _BypassDetector(model, modules)
    calls: Counter[nn.Module] = Counter()
    by_part: dict[nn.Module, str] = {}

    def called(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.update([module])
        if kwargs.get(_LENGTHS_OF_PARTS) is not None:
            by_part[module] = modules[module]

    hooks = [module.register_forward_pre_hook(called, with_kwargs=True) for module in modules]
    hooks += structure.listen() + bypasses.listen()
    try:
        with bypasses:
            run(recorder)
    except TypeError as error:
        if PLAN_KEYWORD not in str(error):
            raise
        raise _keyword_lost(model, "") from None
    finally:
        for hook in hooks:
            hook.remove()
    reached = Counter(recorder.called)
    lost = [module for module in calls if reached[module] < calls[module]]
    if lost:
        missed, of = calls[lost[0]] - reached[lost[0]], calls[lost[0]]
        raise _keyword_lost(model, f" ({modules[lost[0]]}{f', in {missed} of its {of} calls' if of > 1 else ''})")
    if not reached:
        raise _keyword_lost(model, "")
    bypasses.refuse()
    layers_by_module = _number_layers([module for module in recorder.called if module not in by_part], modules)
    if by_part:
        first, *others = by_part.values()
        where = f"attention within single images or sounds ({first}{f' and {len(others)} more' if others else ''})"
        if not layers_by_module:
            raise AttendropError(
                f"{type(model).__name__} is not supported: it has only {where}, whose number differs from batch to "
                "batch."
            )
        logger.warning("Nothing is dropped in the %s, whose number differs from batch to batch.", where)
    layers_by_module |= dict.fromkeys(by_part, ())
    return Trace(layers_by_module, structure.structure(layers_by_module))


@dataclass(eq=False)
class _CallRecorder(Plan):
    """Records which attention modules a pass calls, in order, and when they have computed their attention."""

    structure: StructureEvents
    called: list[nn.Module] = field(default_factory=list)

    def locate(self, module: nn.Module) -> AttentionLayer:
        self.called.append(module)
        return AttentionLayer("", "", 0)

    def wants(self, layer: AttentionLayer) -> bool:
        """Request every call, so that unsupported keywords are found."""
        return True

    def edit(self, call: AttentionCall) -> AttentionEdit:
        """Record the call when its attention is computed: its projections have run by then."""

        def attended(output: Tensor) -> Tensor:
            self.structure.events.append(("attention", self.called[-1], None))
            return output

        return AttentionEdit(output=attended)


class _BypassDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds modules that compute attention themselves, which no plan reaches.

    These have attention in their name or class, run a softmax or a fused attention kernel, and are not among the
    ``modules`` that call the attention interface.
    """

    def __init__(self, model: nn.Module, modules: Mapping[nn.Module, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.names = {
            module: name
            for name, module in model.named_modules()
            if module not in modules and re.search("att(entio)?n", f"{name.rpartition('.')[2]} {type(module)}".lower())
        }
        self.found: dict[nn.Module, str] = {}
        self._running: list[nn.Module] = []

    def listen(self) -> list[RemovableHandle]:
        """Register the hooks that tell which module runs."""
        watched = [
            module
            for module in self.model.modules()
            if module in self.names or not type(module).__module__.startswith("torch.nn.")
        ]
        hooks = [module.register_forward_pre_hook(lambda module, _: self._running.append(module)) for module in watched]
        return hooks + [module.register_forward_hook(lambda *_: self._left()) for module in watched]

    def refuse(self) -> None:
        """Raise AttendropError if layers of the model were found; warn of other modules, such as pooling heads."""
        layers = [module for module, name in self.found.items() if block_of(self.model, name) is not None]
        if not (told := layers or list(self.found)):
            return
        more = f" and {len(told) - 1} more compute attention themselves" if told[1:] else " computes attention itself"
        bypass = f"{self.found[told[0]]} ({type(told[0]).__name__}){more}, not through transformers' AttentionInterface"
        if layers:
            name = type(self.model).__name__
            raise AttendropError(f"{name} is not supported: {bypass}, so nothing could be dropped there.")
        logger.warning("%s: nothing is dropped there.", bypass)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if re.search("(?<!log)_softmax|scaled_dot_product|multi_head", func.name()):
            for module in self._running[-1:]:
                if module in self.names:
                    self.found[module] = self.names[module]
        return func(*args, **(kwargs or {}))

    def _left(self) -> None:
        self._running.pop()


def _keyword_lost(model: nn.Module, where: str) -> AttendropError:
    stock = type(model).__module__.startswith("transformers.")
    return AttendropError(
        f"{type(model).__name__} is not supported: its forward pass does not hand keyword arguments on to its "
        f"attention layers{where}, so nothing could be dropped there."
        + ("" if stock else " In a class of your own, let forward take **kwargs and pass them to the model inside.")
    )


def _number_layers(
    called: list[nn.Module], modules: Mapping[nn.Module, str]
) -> dict[nn.Module, tuple[AttentionLayer, ...]]:
    """Create an attention layer for each call of a module, numbered within its kind, in the order of execution."""
    per_kind: Counter[str] = Counter()
    total = Counter(called)
    layers: dict[nn.Module, list[AttentionLayer]] = {module: [] for module in called}
    for module in called:
        name = modules[module]
        path = f"{name}.{type(module).__name__}".lower()
        causal = getattr(module, "is_causal", False) or getattr(module, "is_decoder", False)
        kind = "decoder" if causal or re.search(r"(^|\.)decoder\.", path) else "encoder"
        crosses = re.search(r"cross_?att|encoder_attn|encdecatt|enc_dec", path)
        if getattr(module, "is_cross_attention", False) or crosses:
            kind = "cross"
        suffix = f"#{len(layers[module])}" if total[module] > 1 else ""
        layers[module].append(AttentionLayer(name + suffix, kind, per_kind[kind]))
        per_kind[kind] += 1
    return {module: tuple(found) for module, found in layers.items()}


def example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make the smallest input of a text, image or video model; raise AttendropError for other models."""
    name, config = model.main_input_name, model.config
    if name in ("pixel_values", "pixel_values_videos"):
        return example_pixels(model, name)
    if name != "input_ids":
        raise AttendropError(
            f"{type(model).__name__} takes '{name}', for which no example input can be generated; pass a batch."
        )
    # Eight different tokens: BART's classifier wants an end-of-sequence token in each row.
    vocabulary = config.get_text_config().vocab_size
    tokens = torch.arange(8, device=model.device)[None] % vocabulary
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < vocabulary:  # a GPT-2 of another vocabulary may still have the first one's
        tokens = torch.where(tokens == end, 0, tokens)
        tokens[:, -1] = end
    if type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        tokens = tokens[:, None]
    batch = {name: tokens, "attention_mask": torch.ones_like(tokens)}  # without it, transformers warns of padding
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens
    return batch


def example_pixels(model: PreTrainedModel, name: str = "pixel_values") -> dict[str, Tensor]:
    """Make an image or a video, of a size that a model takes."""
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    frames = [config.num_frames] if hasattr(config, "num_frames") else []
    shape = (1, *frames, getattr(config, "num_channels", 3), height, width)
    return {name: torch.zeros(shape, device=model.device, dtype=model.dtype)}
