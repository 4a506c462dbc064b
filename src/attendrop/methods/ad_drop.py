"""AD-DROP: drop the attention positions that a prediction relies on most.

Also records of each training row: the candidates of one pass, to be used when the row is trained on again.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attendrop.attention.plan import CombinedPlan, DropoutDraws
from attendrop.attribution.gradient import QUADRATURE_RULES, SCOPES
from attendrop.attribution.predictions import is_regression
from attendrop.attribution.recording import SeenLayer, by_weights, stacked, stacks, training_gradient_edit
from attendrop.extend import (
    LAYERS,
    NEEDS_ROWS,
    SWITCH,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    DroppedScores,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    Preset,
    RandomMaskPlan,
    StepContext,
    TrainingContext,
    attention_attribution,
    candidate_region,
    choice,
    count,
    gradient_attribution,
    integrated_gradient_attribution,
    number_of_rows,
    option,
    optional,
    select_layers,
    unit_interval,
    upcast,
)
from attendrop.methods.core.context import Processes
from attendrop.randomness.candidates import Region, at_once, kept, pack, unpack
from attendrop.randomness.device_path import on_cpu
from attendrop.support.models import ROW_INDEX

logger = logging.getLogger(__name__)
# For each sequence: the first query and the number of queries, the first key and the number of keys, without padding.
Spans = Sequence[tuple[int, int, int, int]]
# Returns the mask of the candidates of a layer, given its attribution and the valid keys, None if all are.
Choose = Callable[[Tensor, Tensor | None], Tensor]
_Array = np.ndarray[Any, np.dtype[Any]]
# Maximum fraction of the free memory that records take, and the free memory where it is not known.
_MEMORY_FRACTION = 0.25
_UNKNOWN_MEMORY = 4 << 30
# Bytes of the objects that hold a mask, in addition to its bits.
_OBJECT_OVERHEAD_BYTES = 350
# Number of rows that each process sends at a time. They pass through the GPU, where each takes 18 MiB for 12 layers of
# 12 heads at 128 tokens.
_ROWS_AT_A_TIME = 64
# What a checkpoint holds beside the masks.
_COUNTS = ("forgotten", "limit", "epoch", "without_signal")

# Where the paper drops in the first layer only (section 3.2), and in the encoder's self-attention (appendix A.2).
_TRANSLATION = ("translation", "wmt16-en-ro", "wmt16-ro-en", "wmt16-en-tr", "wmt16-tr-en")
_PAPER_LAYERS = dict.fromkeys(("sst2", "mnli", "qnli", "qqp", "stsb"), "first") | dict.fromkeys(_TRANSLATION, "encoder")


# The options whose defaults go together: usually, and for data with at least this many classes and at most this many
# rows per class (docs/does-it-help.md).
_USUAL: dict[str, Any] = {"p": 0.1, "attribution": "gradient", "layers": "first"}
_OF_MANY_CLASSES: dict[str, Any] = {"p": 0.3, "attribution": "recorded", "layers": "all"}
_MANY_CLASSES, _FEW_ROWS = 20, 20


@dataclass(frozen=True)
class ADDrop(Method):
    """Attribution-driven dropout.

    Each step attributes the model's prediction to the attention positions (one more forward and backward pass, without
    parameter gradients), and drops positions of high attribution from the scores of the training pass.

    Example:
        >>> with regularize(model, ADDrop()) as reg:
        ...     reg.set_epoch(epoch)
        ...     reg.loss(batch).backward()

    Args:
        p: Fraction of the keys of each row that are candidates, in (0, 1). None: 0.1 or 0.3, chosen as ``attribution``.
        q: Probability with which each candidate is dropped, in (0, 1].
        attribution: ``"gradient"`` (Eq. 5), ``"integrated_gradient"`` (Eq. 3), ``"attention"`` (the weights
            themselves), ``"random"`` (each valid position is a candidate with probability ``p``; no attribution pass),
            or ``"recorded"`` (ours): the negative gradient of the loss with respect to the weights in the row's last
            training pass, so that no pass is added; from a row without a record, nothing is dropped. In your own loop,
            say which rows of the training data a batch has: ``reg.loss(batch, rows=indices)``. With cross-tuning, the
            plain epochs record and the others drop. None: ``"gradient"``; but if ``p`` and ``layers`` are not given
            either, ``attendrop train``, ``compare`` and studies choose by the data, see :meth:`for_data`.
        target: ``"pseudo_label"``, the model's prediction; ``"gold_label"``; or ``"loss"`` (ours), the negative loss,
            also one that a trainer computes from batches without labels (trl's DPO). Regression uses the gold value,
            whichever label is named, or the predicted score where a batch has no labels (reward models). Does not apply
            to recorded attributions, which attribute the loss.
        layers: Layers to drop in. None: the first or all, chosen as ``attribution``.
        direction: Attributions to drop: ``"high"`` (the paper's), ``"low"`` as in its prior experiment (Fig. 2), or
            ``"magnitude"``, high in absolute value. In regression, ``"high"`` drops what keeps the prediction near the
            gold value, which changes sign with the sign of an example's error; magnitudes rank the influence on the
            prediction, regardless of the gold value. None: magnitude in regression and for scores, otherwise high.
        cross_tuning: Plain fine-tuning in epochs 0, 2, 4, ... and AD-DROP in 1, 3, 5, ... (Algorithm 1; counted from
            0). False: AD-DROP in all epochs.
        start_epoch: Number of epochs of plain fine-tuning before AD-DROP first acts. Not in the paper: the attribution
            of a model that has not yet fitted its training rows says little about what it relies on.
        scope: Scope of integrated gradients, ``"joint"`` or ``"layerwise"``.
        rule: Quadrature rule of integrated gradients, ``"gauss_legendre"`` or ``"riemann"``.
        steps: Number of quadrature nodes of integrated gradients. The paper's setting is layerwise, riemann, 20.
        units: ``"attention"``, or ``"hidden"``: the same rule on the hidden units of the heads' outputs, per token.
            Dropped units are zero, and the other units of the token are rescaled by total / kept units.
        record_limit: Memory for recorded candidates in MiB, on the host of each process; beyond it, the oldest records
            are discarded, with a warning. None: a quarter of the free memory. A row takes ``layers * heads *
            n**2 / 8`` bytes: 288 KiB for 12 layers of 12 heads and 128 tokens.

    Source: Yang et al. (2022), https://arxiv.org/abs/2210.05883. Deviations: one backward pass is used for all layers
    (the reference code runs one per layer); ``steps`` defaults to 8 Gauss-Legendre nodes; a row without signal has no
    candidates. The paper tunes p and q per data set. These defaults follow from measurements (docs/does-it-help.md) and
    differ from the paper's, which ``preset="paper"`` sets: ``p=0.1``; no cross-tuning; magnitudes in regression; the
    first layer only (as in the paper on SST-2, MNLI, QNLI, QQP and STS-B, but not on its other tasks, where it acts in
    all layers); recorded attributions in all layers, with ``p=0.3``, if there are many classes with few rows.
    ``units="hidden"`` is future work in the paper; the rule used here is ours, as are ``start_epoch`` and
    ``direction="magnitude"``.
    """

    info = MethodInfo(
        "ad-drop",
        "drops the attention positions that a prediction relies on most",
        "Yang et al. (2022), AD-DROP: Attribution-Driven Dropout for Robust Language Model Fine-Tuning",
        link="https://arxiv.org/abs/2210.05883",
        evidence=(
            (
                _OF_MANY_CLASSES,
                "with MiniLM, many classes of few rows, accuracy +0.036 [+0.023, +0.048] on generated messages with "
                "new phrases (+0.012 [-0.002, +0.027] where names of classes are rows), +0.007 [+0.005, +0.009] on "
                "similar rows of Banking77 and HWU64, +0.005 [+0.003, +0.008] on random ones; the setting was chosen "
                "partly on these data, and on HWU64, on which no option was chosen, has +0.006 [+0.003, +0.010] and "
                "+0.003 [-0.001, +0.007]. On STS-B and MRPC -0.05 and -0.04 (one seed), on entities -0.025 (the "
                "project's docs/does-it-help.md).",
            ),
            (
                _USUAL,
                "with MiniLM, on CoLA, MRPC, STS-B and RTE with 256 and 1,000 rows -0.001 to +0.012, nothing "
                "significant; on Banking77 +0.002 and +0.004, and on entities +0.004, not significant after correction "
                "(the project's docs/does-it-help.md).",
            ),
            (
                {"p": 0.3, "layers": "all"},
                "with MiniLM, harm on CoLA and MRPC, -0.017 to -0.051; on STS-B -0.02 (one seed); on Banking77 with "
                "five rows per class +0.005 [+0.003, +0.008]; on generated messages with new phrases +0.017 [+0.007, "
                "+0.027] (the project's docs/does-it-help.md).",
            ),
        ),
        compared=True,
        acts_on=("scores",),
        forward="2",
        backward="1 + activations",
        traits={NEEDS_ROWS: "attribution=recorded"},
        inactive_epochs_hint=(
            "With cross-tuning it is active in every second epoch, and with recorded attributions not in the first; "
            "train for more epochs, or set cross_tuning=False to activate it in all from start_epoch on."
        ),
    )

    p: float | None = option(None, optional(unit_interval()), search=(0.2, 0.3, 0.5))
    q: float = option(0.3, unit_interval(one=True), search=(0.1, 0.2, 0.5))
    attribution: str | None = option(
        None, optional(choice("gradient", "integrated_gradient", "attention", "random", "recorded"))
    )
    target: str = option("pseudo_label", choice("pseudo_label", "gold_label", "loss"))
    layers: str | int | Sequence[int] | None = option(None, optional(LAYERS), search=("all",))
    direction: str | None = option(None, optional(choice("high", "low", "magnitude")))
    cross_tuning: bool = option(False, SWITCH, search=(True,))
    start_epoch: int = option(0, count(0))
    scope: str = option("joint", choice(*SCOPES))
    rule: str = option("gauss_legendre", choice(*QUADRATURE_RULES))
    steps: int = option(8, count())
    units: str = option("attention", choice("attention", "hidden"))
    record_limit: int | None = option(None, optional(count()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.p, self.attribution, self.layers) != (None, None, None) or self.target != "pseudo_label":
            for name, value in _USUAL.items():
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        if self.attribution == "recorded" and self.target != "pseudo_label":
            raise AttendropError(
                f"target={self.target!r} does not apply to recorded attributions, which are of the loss; leave it out."
            )
        if self.units == "hidden" and self.attribution == "attention":
            raise AttendropError("attribution='attention' is not defined for units='hidden'; use 'gradient'.")

    def for_data(self, classes: int, rows: int) -> ADDrop:
        """Record attributions, and act in all layers, if there are many classes with few rows.

        With few classes, acting in all layers does harm (docs/does-it-help.md).
        """
        if self.p is not None:  # or another of the three: see __post_init__
            return self
        many = classes >= _MANY_CLASSES and rows <= _FEW_ROWS * classes
        return replace(self, **(_OF_MANY_CLASSES if many else _USUAL))

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Return the paper's layers and cross-tuning; 0.3 stands for its ``p`` and ``q``, which it tunes."""
        options: dict[str, Any] = {"p": 0.3, "q": 0.3, "direction": "high", "cross_tuning": True}
        return Preset(options=options | {"layers": _PAPER_LAYERS.get(task or "", "all")})

    def active(self, epoch: int) -> bool:
        return epoch >= self.start_epoch and (not self.cross_tuning or epoch % 2 == 1)

    def start(self, training: TrainingContext) -> MethodState:
        return (RecordedState if self.needs_rows else ADDropState)(self.for_data(classes=1, rows=0), training)

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        return select_layers(attention_layers, "first" if self.layers is None else self.layers)


class ADDropState(MethodState):
    """AD-DROP in a run, in which no option is open any more: where the data are known, they have decided before."""

    method: ADDrop

    def plan(self, context: StepContext) -> Plan:
        method, p = self.method, cast(float, self.method.p)
        if method.attribution == "random":  # each position or hidden unit is a candidate with probability p
            return self.dropping(context, p * method.q)
        attention_layers = method.selected_layers(context.adapter.attention_layers)
        draws = DropoutDraws()  # the model's own dropout, the same in the attribution pass and in this one
        by_layer = self._attribute(context, attention_layers, draws)

        def candidates(call: AttentionCall) -> DroppedScores:
            masks, signals, _ = zip(*(by_layer[layer.key] for layer in call.layers), strict=True)
            signal, rows = torch.cat(signals), call.valid_queries()
            signal = signal if rows is None else signal & rows
            return DroppedScores(torch.cat([mask() for mask in masks]), signal, whole_rows=False)

        def shape(layer: AttentionLayer) -> torch.Size:
            return by_layer[layer.key][2]

        return self.dropping(context, method.q, candidates, draws, keys=by_layer.keys(), alike=shape)

    def dropping(
        self,
        context: StepContext,
        q: float,
        candidates: Callable[[AttentionCall], DroppedScores | None] | None = None,
        draws: DropoutDraws | None = None,
        **for_scores: Any,
    ) -> RandomMaskPlan:
        """Make the plan that drops with probability ``q``: any positions or units, or the candidates of a call.

        ``for_scores`` are arguments of a plan that drops scores; one that drops hidden units has only their ``keys``.
        """

        def drops(plan: RandomMaskPlan, call: AttentionCall) -> DroppedScores | None:
            if candidates is None:
                return DroppedScores(plan.sample(q, call), draws=draws)
            found = candidates(call)
            if found is None:
                return None
            return found._replace(mask=plan.sample(q, call).bitwise_and_(found.mask), draws=draws)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            found = None if candidates is None else candidates(call)
            if candidates is not None and found is None:  # no possible units
                context.report(call.layer.key, *torch.zeros(2, device=call.device))
                return AttentionEdit()

            def sample(units: int) -> Tensor:
                sampled = plan.sample_hidden(q, call, units)
                return sampled if found is None else found.mask & sampled

            edit = plan.without_units(call, sample, _scaled_up, None if found is None else found.rows)
            return replace(edit, draws=draws)

        if self.method.units == "attention":
            return RandomMaskPlan(self.method, context, drops=drops, **for_scores)
        return RandomMaskPlan(self.method, context, make, for_scores.get("keys"))

    def _attribute(
        self, context: StepContext, attention_layers: Sequence[AttentionLayer], draws: DropoutDraws
    ) -> dict[str, tuple[Callable[[], Tensor], Tensor, torch.Size]]:
        """Find the candidates of each layer, the rows with signal, see :class:`Region`, and the candidates' shape.

        Candidates are kept as packed bits, about a thirtieth of the attribution's memory.
        """
        method, region = self.method, self.region(context)

        def keep(call: AttentionCall, attribution: Tensor) -> list[tuple[Callable[[], Tensor], Tensor, torch.Size]]:
            found = region(attribution, call.valid)
            masks = call.split(found.mask)
            return [(kept(mask), each, mask.shape) for mask, each in zip(masks, call.split(found.signal), strict=True)]

        if method.attribution == "attention":
            return attention_attribution(context.adapter, context.inputs, attention_layers, keep=keep, draws=draws)
        options: dict[str, Any] = {"target": method.target, "units": method.units, "inputs": context.inputs}
        options["keep"] = keep
        if method.target == "loss":
            options["forward"] = context.run_loss
        elif "labels" in context.inputs and "labels" not in context.batch:
            raise AttendropError(
                f"The trainer makes the labels itself, from a batch without, so target={method.target!r} has none to "
                "read: set target='loss', which attributes the trainer's own loss."
            )
        if method.attribution == "gradient":
            return gradient_attribution(context.adapter, context.batch, attention_layers, draws=draws, **options)
        options |= {"scope": method.scope, "rule": method.rule, "steps": method.steps}
        return integrated_gradient_attribution(context.adapter, context.batch, attention_layers, **options)

    def region(self, context: StepContext) -> Callable[[Tensor, Tensor | None], Region]:
        """Return what finds a layer's candidates, ``(batch, heads, query, key)`` or ``(batch, 1, query, units)``."""
        usual = "magnitude" if is_regression(context.model, context.batch) else "high"
        p, direction = cast(float, self.method.p), self.method.direction or usual
        hidden = self.method.units == "hidden"

        def region(attribution: Tensor, valid: Tensor | None) -> Region:
            if hidden:  # the units of a token form one row
                return candidate_region(attribution.flatten(2)[:, None], None, p, direction)
            return candidate_region(attribution, valid, p, direction)

        return region


def _scaled_up(hidden: Tensor, drop: Tensor) -> Tensor:
    """Set hidden units to zero, and rescale the other units of the token by total / kept units."""
    kept, exact = ~drop, torch.promote_types(hidden.dtype, torch.float32)
    scale = drop.shape[2] * drop.shape[3] / kept.sum((2, 3), keepdim=True, dtype=exact).clamp(min=1)
    return hidden * (kept * scale).to(hidden.dtype)


class RecordedState(ADDropState):
    """AD-DROP with recorded attributions."""

    def __init__(self, method: ADDrop, training: TrainingContext) -> None:
        super().__init__(method, training)
        limit = None if method.record_limit is None else method.record_limit << 20
        self.recorder = Recorder(limit, training.processes)
        training.on_rewind.append(self.recorder.clear)

    def plan(self, context: StepContext) -> Plan:
        """Drop candidates that were recorded of each row before, and record new ones."""
        method, recorder, region = self.method, self.recorder, self.region(context)
        row_pass = recorder.begin_pass(context, method.units)
        drops = method.active(context.epoch or 0)
        plans: list[Plan] = []
        if drops:
            known = [row in recorder.rows for row in row_pass.rows]
            context.note("recorded", sum(known) / max(1, len(known)))
            if recorder.without_signal is not None:
                context.note("without_signal", recorder.without_signal)
            plans.append(self.dropping(context, method.q, row_pass.candidates, spans=row_pass.known_spans))
        if not (drops and method.cross_tuning):  # with cross-tuning, the epochs that drop do not record
            keys = {layer.key for layer in method.selected_layers(context.adapter.attention_layers)}
            plans.append(RecordingPlan(recorder, row_pass, lambda *given: region(*given).mask, keys))
        return plans[0] if len(plans) == 1 else CombinedPlan(plans)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        self.recorder.choose()
        return {}

    def rank_state_dict(self) -> dict[str, Any]:
        return self.recorder.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.recorder.load_state_dict(rank_state)

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        self.recorder.flush()
        self.recorder.exchange()
        recorder = self.recorder
        return {"records": {"rows": len(recorder.rows), "bytes": recorder.bytes, "forgotten": recorder.forgotten}}


# The time line of a step, which every state here follows. A `Recorder` owns all of it; what it hands out knows nothing
# of it: a `RowPass` reads the masks of its rows, a hook of the backward pass appends to the recorder's list.
#
#   begin_pass   if the step is new, `flush` what the last one gathered; if the epoch is new, `exchange` with processes
#   forward      `RowPass.candidates` reads, layer by layer, what earlier steps recorded of the rows
#   backward     the hooks of a `RecordingPlan` append a gradient of each layer; of several small layers, the
#                candidates are then chosen at once (`choose`), which frees the gradients
#   after_step   `choose` the candidates by the gradients that are left; they stay on their device
#   next step    `flush`: to the host (`put`). Only now a record is visible, to all passes of that step alike


class RowMask(NamedTuple):
    """Mask of one row in the layers that were recorded together, ``(layers, heads, queries, keys)`` without padding."""

    layers: tuple[str, ...]  # by :func:`_name`
    bits: _Array  # (layers, heads, queries, bytes), the lowest bit first: placed in a batch without being unpacked
    keys: int

    @property
    def size(self) -> int:
        """Size of each layer in memory in bytes, including the overhead of objects."""
        return self.bits.nbytes // len(self.layers) + _OBJECT_OVERHEAD_BYTES

    def of(self, layer: str) -> _Array:
        """Return the bits of a layer, ``(heads, queries, bytes)``."""
        bits: _Array = self.bits[self.layers.index(layer)]
        return bits


@dataclass(eq=False)
class RowPass:
    """One training pass over some rows: what was recorded of them before, and where they are in its calls."""

    recorded: Mapping[int, Mapping[str, RowMask]]  # masks by layer, by row
    rows: Sequence[int]  # index of each in the training data
    hidden: bool  # whether units are those of heads' outputs
    # Of each sequence that attention sees, the first token that is not padding, and the number of tokens from there to
    # the last; None if only a call can tell.
    tokens: Sequence[tuple[int, int]] | None = None
    length: int = 0  # of the sequences, with padding
    gaps: bool = False  # whether tokens between the first and the last may be hidden that were seen when recorded
    # By kind, shape without heads, and mask, with which the number of the mask stays its own.
    known: dict[tuple[str, int, int, int, int], tuple[Tensor | None, Spans]] = field(default_factory=dict)

    def candidates(self, call: AttentionCall) -> DroppedScores | None:
        """Return the recorded candidates of a call, with the rows that have any; None if no row has.

        All keys of a row may be candidates if more of it was seen when it was recorded.
        """
        spans, layers = self.spans(call), range(len(call.layers))
        parts = len(spans) // len(self.rows)
        names = [tuple(_name(layer.key, part) for layer in call.layers) for part in range(parts)]
        masks: list[tuple[int, int | slice, _Array, int]] = []  # sequence, layer or all of them, bits and keys
        for number, row in enumerate(self.rows):
            own = self.recorded.get(row, {})
            for part in range(parts):
                of_layers, place = [own.get(name) for name in names[part]], number * parts + part
                whole = of_layers[0]
                if whole is not None and whole.layers == names[part] and len({*map(id, of_layers)}) == 1:
                    masks.append((place, slice(None), whole.bits, whole.keys))
                else:
                    each = zip(layers, names[part], of_layers, strict=True)
                    masks += [(place, n, mask.of(name), mask.keys) for n, name, mask in each if mask is not None]
        if not masks:
            return None
        heads, width = masks[0][2].shape[-3], masks[0][3] if self.hidden else call.shape[3]
        # From pinned memory the host need not wait for the copy.
        pinned, shape = call.device.type == "cuda", (len(layers), len(spans), heads, call.shape[2], _bytes(width))
        bits = torch.zeros(shape, dtype=torch.uint8, pin_memory=pinned)
        placed, whole_rows = bits.numpy(), self.gaps
        for place, layer, mask, keys in masks:
            query, queries, _, keys_of_row = spans[place]
            if not self.hidden and keys_of_row < keys:  # the row is cut in this batch
                mask, whole_rows = mask[..., : _bytes(keys_of_row)].copy(), True
                mask[..., keys_of_row // 8 :] &= (1 << keys_of_row % 8) - 1
            rows = min(queries, mask.shape[-2])
            placed[layer, place, :, query : query + rows, : mask.shape[-1]] = mask[..., :rows, :]
        bits = bits.to(call.device, non_blocking=True)
        signal, by = bits.amax(-1, keepdim=True).bool(), [0 if self.hidden else key for _, _, key, _ in spans]
        found = _moved(unpack(bits.view(-1), (*shape[:-1], 8 * shape[-1])), by)[..., :width]
        return DroppedScores(found.flatten(0, 1), signal.flatten(0, 1), whole_rows, in_rows=True)

    def known_spans(self, call: AttentionCall) -> Spans | None:
        """Return :meth:`spans`, outside of which nothing is a candidate; None where keys of a prefix come first."""
        return self.spans(call) if call.shape[2] == call.shape[3] or call.layer.kind == "cross" else None

    def spans(self, call: AttentionCall) -> Spans:
        """Find where each sequence is in a call of a layer, or of several; read once for all of a kind and mask."""
        batch, (_, _, queries, keys) = call.shape[0] // len(call.layers), call.shape
        mask = call.valid if call.of_each is None else call.of_each
        place = (call.layer.kind, batch, queries, keys, id(mask))
        if place not in self.known:
            own = call.layer.kind != "cross" and queries == keys
            if call.valid is None:
                tokens: Sequence[tuple[int, int]] = [(0, keys)] * batch
            elif self.tokens is not None and own and (batch, keys) == (len(self.tokens), self.length):
                tokens = self.tokens
            else:
                tokens = _tokens(call.valid[:batch].any(1).any(1).expand(batch, -1).cpu().numpy())
            found = [(*((first, count) if own else (0, queries)), first, count) for first, count in tokens]
            self.known[place] = mask, found
        return self.known[place][1]


def _tokens(seen: _Array) -> list[tuple[int, int]]:
    """Find the first token that is seen, and the number of tokens to the last, of each sequence."""
    first = seen.argmax(-1)
    return list(zip(first.tolist(), (seen.shape[1] - seen[:, ::-1].argmax(-1) - first).tolist(), strict=True))


@dataclass(eq=False)
class RecordingPlan(Plan):
    """Plan that changes nothing, and has the candidates of some layers recorded when the pass is differentiated.

    Of copies of a row, the first is recorded. Where gradients are not finite, as in a step that a float16 scaler skips,
    the previous record is kept.
    """

    recorder: Recorder
    row_pass: RowPass
    choose: Choose
    layer_keys: Collection[str] = ()
    edits: dict[str, AttentionEdit] = field(default_factory=dict)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        if call.layer.key not in self.edits:
            self.row_pass.spans(call)  # here the host waits for the device for less long than in the backward pass
            add = partial(self.recorder.add, self.row_pass, call, self.choose)
            self.edits[call.layer.key] = training_gradient_edit(call, add)
        return self.edits[call.layer.key]


class _Chosen(NamedTuple):
    """Candidates of some layers of a pass, on their device until the step ends."""

    rows: Sequence[int]
    layers: Sequence[str]
    bits: Tensor  # (layers, batch, heads, queries, bytes), from the first key of a sequence that is not padding
    spans: Spans
    sums: Tensor  # of the gradients, (layers,), finite where all of these are


class Recorder:
    """Owner of the records of rows, on the host, and of what the passes of a step have added to them.

    Rows move from process to process, so each keeps the records of all: they exchange them at the start of an epoch.
    Beyond ``limit`` bytes, by default a quarter of the memory that is free now, the oldest are discarded.

    Attributes:
        rows: Masks by layer, by row, the oldest row first; to be changed by :meth:`put` only.
        new: The rows that were recorded since processes last exchanged theirs.
        bytes: Memory of all masks.
        forgotten: Number of discarded rows.
        without_signal: Fraction of the rows of the last step without a candidate in any layer, for example because
            their gradients are zero in float16; None if nothing was recorded.
    """

    def __init__(self, limit: int | None, processes: Processes) -> None:
        try:  # per training process on this machine
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        except (AttributeError, ValueError, OSError):  # elsewhere than on Linux
            free = _UNKNOWN_MEMORY
        self.limit = free * _MEMORY_FRACTION if limit is None else limit
        self.processes = processes
        self.epoch: int | None = None
        self.forgotten = 0
        self.clear()

    def clear(self) -> None:
        """Forget all records, those of the present step too."""
        self.rows: dict[int, dict[str, RowMask]] = {}
        self.new: set[int] = set()
        self.bytes, self._sizes = 0, dict[int, int]()  # of all rows, and of each
        self.without_signal: float | None = None
        self._gradients: dict[tuple[RowPass, Choose], list[SeenLayer]] = {}
        self._chosen: list[_Chosen] = []
        self._kept = 0  # number of entries in _chosen from earlier micro-batches
        self._step: tuple[int, int] | None = None  # of the last pass, and the micro-batch; None since the last flush

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        """Replace what is recorded of a row in some layers; it is the newest row then."""
        kept = self.rows[row] = {**self.rows.pop(row, {}), **masks}
        self.bytes -= self._sizes.get(row, 0)
        self._sizes[row] = sum(mask.size for mask in kept.values())
        self.bytes += self._sizes[row]
        self.new.add(row)
        while self.bytes > self.limit and self.rows:
            oldest = next(iter(self.rows))
            del self.rows[oldest]
            self.bytes -= self._sizes.pop(oldest)
            self.new.discard(oldest)
            if not self.forgotten:
                logger.warning(
                    "The records of training rows exceed their limit of %.0f MiB: the oldest are discarded, and "
                    "nothing is dropped from those rows; raise record_limit.",
                    self.limit / 2**20,
                )
            self.forgotten += 1

    def begin_pass(self, context: StepContext, units: str) -> RowPass:
        """Begin a training pass over ``context.batch``; raise AttendropError if its rows are not known."""
        if ROW_INDEX not in context.batch:
            raise AttendropError(
                "Recorded attributions need to know the rows of a batch: compute the loss by reg.loss(batch, "
                "rows=indices), with the index of each row in the training data."
            )
        index: Tensor = context.batch[ROW_INDEX]
        if number_of_rows(context.batch) != len(index):
            raise AttendropError(
                f"The data collator made {number_of_rows(context.batch)} rows of {len(index)}, so recorded "
                "attributions cannot be assigned to rows; have it keep the number of rows, or use "
                "attribution='gradient'."
            )
        if self.processes.world_size > 1 and context.epoch is None:
            raise AttendropError("Processes exchange records at the start of an epoch: call set_epoch(epoch) for each.")
        step = (context.key.step, context.key.first)
        # The host waits for the device once: for the rows, their real tokens, and what the last step chose.
        several = getattr(getattr(context.model, "config", None), "is_encoder_decoder", False)
        several |= sum("mask" in name for name in context.inputs) > 1  # perhaps one for each of two texts
        mask = None if several else context.inputs.get("attention_mask")
        mask = mask.flatten(0, -2) if isinstance(mask, Tensor) and mask.ndim in (2, 3) else None
        wanted = [index.long().view(torch.uint8)]
        if mask is not None:
            wanted = [wanted[0].to(mask.device, non_blocking=True), (mask != 0).view(torch.uint8).flatten()]
        if self._step is not None and (step[0] != self._step[0] or context.epoch != self.epoch):
            read = self.flush(wanted)
        else:
            read = [each.cpu().numpy() for each in wanted]
        rows = read[0].view(np.int64).tolist()
        if step == self._step:  # of a method's several passes, the one differentiated last is recorded
            self._gradients, self._chosen = {}, self._chosen[: self._kept]
        else:
            self.choose()
            self._step, self._kept = step, len(self._chosen)
        if context.epoch != self.epoch:
            self.epoch = context.epoch
            self.exchange()
        found = RowPass(self.rows, rows, units == "hidden", gaps=any("mask" in name for name in context.inputs))
        if mask is not None:
            seen = read[1].reshape(mask.shape)
            found.tokens, found.length = _tokens(seen), mask.shape[1]
            found.gaps = any(count != of_row.sum() for of_row, (_, count) in zip(seen, found.tokens, strict=True))
        return found

    def add(self, row_pass: RowPass, call: AttentionCall, choose: Choose, gradient: Tensor, value: Tensor) -> None:
        """Add the gradient of the heads' outputs of a layer, and its values."""
        self._gradients.setdefault((row_pass, choose), []).append(SeenLayer(call, gradient, value))
        added = (each.call.shape for of_pass in self._gradients.values() for each in of_pass)
        if sum(map(math.prod, added)) > at_once(call.device):
            self.choose()

    def choose(self) -> None:
        """Choose the candidates by the gradients that were added. They stay on their device."""
        added, self._gradients = self._gradients, {}
        # The last layer was added first.
        for of, choose, group in ((*by, group) for by, seen in added.items() for group in stacks(seen[::-1])):
            layers, (call, gradient, value) = len(group), stacked(group)
            spans, gradient = of.spans(call), upcast(gradient)
            with torch.no_grad():
                # The sum is not finite if any number is not.
                sums, attribution = gradient.reshape(layers, -1, *gradient.shape[1:]).sum((1, 2, 3, 4)), -gradient
                if of.hidden:
                    mask = choose(attribution, None)
                    spans = [(query, queries, 0, mask.shape[3]) for query, queries, _, _ in spans]
                    bits = _packed_rows(mask, layers, spans)
                else:
                    attribution = by_weights(attribution, value)
                    if on_cpu(call.device):
                        bits = _chosen_by_sequence(attribution, call, spans, choose)
                    else:
                        bits = _packed_rows(choose(attribution, call.valid), layers, spans)
            self._chosen.append(_Chosen(of.rows, [layer.key for layer in call.layers], bits, spans, sums))

    def flush(self, wanted: Sequence[Tensor] = ()) -> list[_Array]:
        """Move what the passes of a step added to the records. Until then, all passes use those of earlier steps.

        The next step does so when it begins: at the end of a step, the host would wait for the device. It reads some
        bytes that are ``wanted`` in the same copy, and returns them.
        """
        self.choose()
        chosen, self._chosen, self._kept, self._step = self._chosen, [], 0, None
        parts = [each.bits.view(-1) for each in chosen] + [each.sums.view(torch.uint8) for each in chosen]
        parts += [each.to(parts[0].device) if parts else each for each in wanted]
        if not parts:
            return []
        bounds = np.cumsum([len(part) for part in parts])
        read = np.split(torch.cat(parts).cpu().numpy(), bounds[:-1])
        found: dict[int, dict[str, RowMask]] = {}
        for each, flat, sums in zip(chosen, read, read[len(chosen) :], strict=False):
            bits, seen = flat.reshape(each.bits.shape), set[tuple[int, int]]()
            finite = np.isfinite(sums.view(np.float64 if each.sums.dtype == torch.float64 else np.float32))
            sequences, layers = len(each.spans) // len(each.rows), each.layers
            if not finite.all():
                bits, layers = bits[finite], [layer for layer, valid in zip(layers, finite, strict=True) if valid]
            if not layers:
                continue
            names = [tuple(_name(layer, part) for layer in layers) for part in range(sequences)]
            for number, (query, queries, _, keys) in enumerate(each.spans):
                row, part = each.rows[number // sequences], number % sequences
                if (row, part) in seen:
                    continue
                seen.add((row, part))
                own = bits[:, number, :, query : query + queries, : _bytes(keys)].copy()
                masks = dict.fromkeys(names[part], RowMask(names[part], own, keys))
                found.setdefault(row, {}).update(masks)
        for row, of_layers in found.items():
            self.put(row, of_layers)
        empty = sum(not any(mask.bits.any() for mask in of_layers.values()) for of_layers in found.values())
        self.without_signal = empty / len(found) if found else None
        return read[2 * len(chosen) :]

    def exchange(self) -> None:
        """Give all processes what each has recorded since the last exchange, some rows at a time."""
        if self.processes.world_size == 1:
            return
        new = [(row, masks) for row, masks in self.rows.items() if row in self.new]
        rounds = max(self.processes.gather(-(-len(new) // _ROWS_AT_A_TIME)))
        recorded: list[list[tuple[int, dict[str, RowMask]]]] = [[] for _ in range(self.processes.world_size)]
        for start in range(0, rounds * _ROWS_AT_A_TIME, _ROWS_AT_A_TIME):
            for rows, part in zip(recorded, self.processes.gather(new[start : start + _ROWS_AT_A_TIME]), strict=True):
                rows += part
        for rows in recorded:  # in the same order in each process, so that all evict the same rows
            for row, masks in rows:
                self.put(row, masks)
        self.new = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the records of this process, as tensors and plain values."""
        self.flush()
        layers = list(dict.fromkeys(layer for masks in self.rows.values() for layer in masks))
        entries = [(row, layer, mask) for row, masks in self.rows.items() for layer, mask in masks.items()]
        bits = np.concatenate([np.empty(0, np.uint8), *(mask.of(layer).ravel() for _, layer, mask in entries)])
        places = [
            (row, layers.index(layer), *mask.bits.shape[1:3], mask.keys, row in self.new)
            for row, layer, mask in entries
        ]
        index = torch.tensor(places, dtype=torch.long).view(-1, 6)
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"layers": layers, "bits": torch.from_numpy(bits), "index": index, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; what the last step added is not of these records."""
        bits, place = state["bits"].numpy(), 0
        self.clear()
        vars(self).update({name: state[name] for name in _COUNTS})
        for row, layer, heads, queries, keys, new in state["index"].tolist():
            size = heads * queries * _bytes(keys)
            # A copy of its own, so that the memory is free once it is replaced.
            name = state["layers"][layer]
            mask = RowMask((name,), bits[place : place + size].reshape(1, heads, queries, -1).copy(), keys)
            self.put(row, {name: mask})
            if not new:
                self.new.discard(row)
            place += size


def _packed_rows(mask: Tensor, layers: int, spans: Spans) -> Tensor:
    """Pack the rows of a mask of some layers, each sequence from its first key on, see :class:`_Chosen`."""
    if mask.shape[3] % 8:
        mask = functional.pad(mask, (0, -mask.shape[3] % 8))
    mask = _moved(mask.reshape(layers, -1, *mask.shape[1:]), [-key for _, _, key, _ in spans])
    return pack(mask)[0].view(*mask.shape[:-1], -1)


def _chosen_by_sequence(attribution: Tensor, call: AttentionCall, spans: Spans, choose: Choose) -> Tensor:
    """Choose and pack as :func:`_packed_rows` does, but not in padding, which on a CPU takes half of the time."""
    by_layer = attribution.view(len(call.layers), -1, *call.shape[1:]).numpy()
    valid = None if call.valid is None else call.valid.expand(-1, -1, *call.shape[2:]).numpy()
    found = np.zeros((*by_layer.shape[:-1], 8 * _bytes(call.shape[3])), np.bool_)
    for place, (query, queries, key, keys) in enumerate(spans):
        if queries and keys:
            rows, columns, seen = slice(query, query + queries), slice(key, key + keys), None
            if valid is not None:
                own = valid[place % len(valid), :, rows, columns]
                seen = None if own.all() else torch.from_numpy(own[None])
            found[:, place, :, rows, :keys] = choose(torch.from_numpy(by_layer[:, place, :, rows, columns]), seen)
    return pack(torch.from_numpy(found))[0].view(*found.shape[:-1], -1)


def _bytes(keys: int) -> int:
    return -(-keys // 8)


def _name(layer: str, part: int) -> str:
    """Name the mask of a sequence: a row has one in each layer, or one for each of its choices."""
    return f"{layer}#{part}" if part else layer


def _moved(masks: Tensor, by: Sequence[int]) -> Tensor:
    """Move the keys of each sequence, ``(..., batch, heads, query, key)``, to the right, or to the left if below 0."""
    if not any(by):
        return masks
    found, width = torch.zeros_like(masks), masks.shape[-1]
    for place, number in enumerate(by):
        to, of = slice(max(0, number), width + min(0, number)), slice(max(0, -number), width - max(0, number))
        found[..., place, :, :, to] = masks[..., place, :, :, of]
    return found
