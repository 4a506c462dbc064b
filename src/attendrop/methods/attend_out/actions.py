"""The generator's actions in a pass of the model: masks sampled layer by layer, and sampled again for its update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attendrop.attention.layers import select_self_attention
from attendrop.extend import (
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    Plan,
    SampleKey,
    StepContext,
    TrainingContext,
    forked_rng,
    sample_mask,
)
from attendrop.methods.attend_out.generator import Generator
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.randomness.candidates import pack, unpack
from attendrop.support.models import to_device


class Policy:
    """The generator, whose embeddings are traced on ``inputs`` of the model, and the layers in which it drops.

    Attributes:
        attention_layers: The layers to drop in; ``selected_keys`` are their keys.
        layers: All self-attention layers up to the last of these, by key; the generator is applied for each.
    """

    def __init__(
        self,
        method: AttendOutOptions,
        training: TrainingContext,
        attention_layers: Sequence[AttentionLayer],
        inputs: Batch,
        seed: int,
    ) -> None:
        self.method = method
        self.attention_layers = method.selected_layers(attention_layers)
        self.selected_keys = {layer.key for layer in self.attention_layers}
        every = select_self_attention(attention_layers, "all")
        last = max(layer.index for layer in self.attention_layers)
        self.layers = {layer.key: layer for layer in every if layer.index <= last}
        # In a model of images and texts, an attention layer has the configuration of its own part.
        attention: Any = training.model.get_submodule(every[0].name.partition("#")[0])
        config: Any = getattr(attention, "config", training.model.config)
        heads = (config.get_text_config() if hasattr(config, "get_text_config") else config).num_attention_heads
        if not isinstance(heads, int):
            raise AttendropError(
                f"The layers of {type(training.model).__name__} differ in their windows and heads, and the generator "
                "is one for all; use another method."
            )
        own_heads = heads if method.granularity == "head" and method.generator_heads == 1 else method.generator_heads
        if heads % own_heads:
            raise AttendropError(
                f"generator_heads={own_heads} does not divide the model's {heads} heads; use a divisor."
            )
        with forked_rng(training.model):
            self.generator = Generator(
                training.model,
                every[0].name,
                inputs,
                heads=own_heads,
                feed_forward=method.generator_feed_forward,
                init_drop_prob=method.init_drop_prob,
                learn_bias=method.learn_bias,
                seed=seed,
            )
        self.autocast: torch.dtype | None = None

    def notice_autocast(self, device: torch.device) -> None:
        """Record the autocast precision that the model currently runs in."""
        on = torch.is_autocast_enabled(device.type)
        self.autocast = torch.get_autocast_dtype(device.type) if on else None

    def precision(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the generator's autocast context, the same for sampling and updates; never float16 (underflow)."""
        half = self.autocast == torch.bfloat16
        return torch.autocast(device.type, self.autocast if half else None, enabled=half)


@dataclass
class Micro:
    """One micro-batch of a period, with all that is needed to sample its masks again.

    This takes much less memory than the masks, which depend only on ``key`` and on the generator, which does not change
    within a period.
    """

    batch: dict[str, Any]  # with labels
    inputs: dict[str, Any]  # what the model receives
    key: SampleKey
    sequences: int = 0  # in attention: more than rows in multiple choice, 0 if all layers were skipped
    masks: list[tuple[Tensor, tuple[int, ...]] | None] = field(default_factory=list)  # distinct ones of valid keys
    layers: dict[str, int] = field(default_factory=dict)  # index of the mask of each layer that ran, in order

    @classmethod
    def of(cls, context: StepContext) -> Micro:
        """Begin the record of a micro-batch."""
        return cls(dict(context.batch), dict(context.inputs), context.key)

    def state_dict(self) -> dict[str, Any]:
        """Return the record as tensors and plain values."""
        return vars(self) | {"key": vars(self.key)}

    @classmethod
    def load(cls, state: Mapping[str, Any], device: torch.device) -> Micro:
        """Restore a :meth:`state_dict` on a device."""
        masks = [None if mask is None else (mask[0].to(device), mask[1]) for mask in state["masks"]]
        own: dict[str, Any] = {name: to_device(state[name], device) for name in ("batch", "inputs")}
        own |= {"key": SampleKey(**state["key"]), "masks": masks}
        return cls(**{**state, **own})


class Outcome(NamedTuple):
    """The generator's action on one layer."""

    logits: Tensor  # of dropping each unit, (batch, heads, n, n); dimensions that a unit spans have size 1
    units: Tensor | None  # broadcastable mask of the units: valid keys in rows that hold tokens; None for all
    dropped: Tensor  # mask of the dropped units


class Course:
    """Application of the generator to the successive layers of one pass of the model."""

    def __init__(self, policy: Policy, inputs: Batch) -> None:
        self.granularity = policy.method.granularity
        self.draft = policy.generator.begin(inputs)

    def logits(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the logits of dropping each unit of a layer, and the mask of its units; see :class:`Outcome`."""
        logits, rows, valid = self.draft.logits(call.layer.index, call.valid), call.valid_queries(), call.valid
        positions = valid if valid is None or rows is None else valid & rows
        if self.granularity == "score":
            return logits, positions
        spanned = (2, 3) if self.granularity == "head" else (1, 2, 3)
        if positions is None:
            return logits.mean(spanned, keepdim=True), None
        positions = positions.expand(logits.shape)
        counts = positions.sum(spanned, keepdim=True).clamp(min=1)
        return (logits * positions).sum(spanned, keepdim=True) / counts, None

    def act(self, call: AttentionCall, key: SampleKey) -> Outcome:
        """Sample the dropped units of a layer, a function of the key."""
        logits, units = self.logits(call)
        dropped = self._sample(logits.detach().sigmoid(), call, key)
        return Outcome(logits, units, dropped if units is None else dropped & units)

    def _sample(self, probabilities: Tensor, call: AttentionCall, key: SampleKey) -> Tensor:
        batch, heads, queries, keys = probabilities.shape
        origins = call.origins() if self.granularity == "score" else torch.zeros(batch, 2, dtype=torch.long)
        return sample_mask(probabilities, key, call.layer.key, (batch, heads, queries, keys), origins, call.device)


class GeneratorPlan(Plan):
    """Plan that applies the generator to each layer of a pass, with the layer's mask of valid keys.

    The generator is also applied for layers that are not selected: its ``l``-th application belongs to layer ``l``.
    """

    acts_on = frozenset({"attention"})

    def __init__(self, policy: Policy, inputs: Batch) -> None:
        super().__init__()
        self.policy = policy
        self.inputs = inputs
        self.layer_keys = policy.layers
        self._course: Course | None = None

    def course(self, call: AttentionCall) -> Course:
        """Return the generator's course, created at the first layer that runs."""
        if self._course is None:
            self.policy.notice_autocast(call.device)
            with self.policy.precision(call.device):
                self._course = Course(self.policy, self.inputs)
        return self._course


class Attack(GeneratorPlan):
    """Plan of the attacker's training pass: samples the dropped units, and records in ``micro`` how to do so again.

    The sum of the drop probabilities, and the number of units, are added to ``probabilities``, by layer key.
    """

    def __init__(
        self, policy: Policy, context: StepContext, micro: Micro, probabilities: dict[str, Tensor] | None = None
    ) -> None:
        super().__init__(policy, context.inputs)
        self.context = context
        self.micro = micro
        self.probabilities = {} if probabilities is None else probabilities
        self.dropped: dict[str, Tensor | None] = {}
        self._masks: list[Tensor | None] = []

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        key = call.layer.key
        if key not in self.dropped:  # activation checkpointing calls this twice
            self.micro.layers[key] = self._mask_number(call.valid)
            self.dropped[key] = self._act(call)
        dropped = self.dropped[key]
        if dropped is None:
            return None
        heads = dropped.shape[1]
        return AttentionEdit(drop=dropped if heads == 1 else dropped.repeat_interleave(call.shape[1] // heads, 1))

    def _act(self, call: AttentionCall) -> Tensor | None:
        key, course = call.layer.key, self.course(call)
        with self.policy.precision(call.device):
            if key not in self.policy.selected_keys:
                course.logits(call)
                return None
            logits, units, dropped = course.act(call, self.micro.key)
        self.micro.sequences = len(dropped)
        number, probabilities = number_of(units, dropped), logits.sigmoid()
        total = probabilities.sum() if units is None else (probabilities * units).sum()
        self.probabilities[key] = self.probabilities.get(key, 0) + torch.stack([total, number])
        self.context.report(key, dropped.sum(), number.long())
        return dropped

    def _mask_number(self, valid: Tensor | None) -> int:
        for number, known in enumerate(self._masks):
            if known is valid or (known is not None and valid is not None and torch.equal(known, valid)):
                return number
        self._masks.append(valid)
        self.micro.masks.append(None if valid is None else pack(valid))
        return len(self._masks) - 1


class Decide(GeneratorPlan):
    """Plan without edits that counts the units that the generator drops with a probability above 1/2."""

    def __init__(self, policy: Policy, inputs: Batch) -> None:
        super().__init__(policy, inputs)
        self.counts: dict[str, Tensor] = {}

    @torch.no_grad()
    def edit(self, call: AttentionCall) -> None:
        logits, units = self.course(call).logits(call)
        if call.layer.key in self.policy.selected_keys:
            dropped = logits > 0 if units is None else (logits > 0) & units
            self.counts[call.layer.key] = torch.stack([dropped.sum().float(), number_of(units, dropped)])


def replayed(policy: Policy, micro: Micro) -> Iterator[Outcome]:
    """Repeat the generator's actions of a pass, with gradients, on each selected layer that ran."""
    course = Course(policy, micro.inputs)
    batch, length, _ = course.draft.hidden.shape
    masks = [None if mask is None else unpack(*mask) for mask in micro.masks]
    for key, number in micro.layers.items():
        call = AttentionCall(policy.layers[key], (batch, 1, length, length), masks[number], course.draft.hidden.device)
        if key in policy.selected_keys:
            yield course.act(call, micro.key)
        else:
            course.logits(call)


def number_of(units: Tensor | None, like: Tensor) -> Tensor:
    """Return the number of units, given their mask (None: all) and a tensor with one element per unit."""
    if units is None:
        return torch.full((), float(like.numel()), device=like.device)
    return units.expand(like.shape).sum().float()
