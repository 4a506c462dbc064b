"""Dropout at random of attention scores or weights, of heads, and of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    REPLACES_DROPOUT,
    SKIPS_BLOCKS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Block,
    BlockEdit,
    ConstantAttention,
    DroppedScores,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    Range,
    StepContext,
    choice,
    option,
    sample_layers,
    unit_interval,
)
from attendrop.methods.core.context import LayerCounts
from attendrop.randomness.keyed_random import uniform
from attendrop.wording import counted

HIGHEST = 0.95
_START = 0.6
OWN = "own"
# Final probability of each layer, by its number, in the predefined schedules.
_ENDS: dict[str, Callable[[int], float]] = {"qnli": lambda layer: 0.55 - 0.1 * min(layer, 3), "cola": lambda layer: 0.9}


@dataclass(frozen=True)
class Vanilla(Method):
    """Attention dropout with a fixed probability.

    In the scores, ``softmax(S + M) V`` with ``M = -inf`` at dropped positions, so that the kept positions share their
    mass. In the weights, ``(A * U / (1 - p)) V``, the attention dropout of PyTorch.

    Args:
        p: Probability that a position is dropped, in (0, 1).
        where: ``"scores"``: scores of all valid positions and heads, in addition to the model's own dropout.
            ``"weights"``: attention weights, in place of the model's own attention dropout.

    Source: Table 3 of Wu, Zhao, Zhang (2021), with 0.1 and 0.2; for weights, Vaswani et al. (2017).
    """

    info = MethodInfo(
        "vanilla",
        "drops attention scores, or weights, with one fixed probability",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, Table 3",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("scores", "weights"),
        traits={REPLACES_DROPOUT: "where=weights"},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    where: str = option("scores", choice("scores", "weights"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        if self.where == "scores":
            return RandomMaskPlan(self, context, drops=lambda plan, call: DroppedScores(plan.sample(self.p, call)))
        scale = 1 / (1 - self.p)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            drop = plan.sample(self.p, call)
            plan.report(call, drop)
            return AttentionEdit(
                dropout=0.0, weights=lambda weights: weights * drop.logical_not().to(weights.dtype).mul_(scale)
            )

        return RandomMaskPlan(self, context, make)


def _curves(name: str, value: Any) -> tuple[tuple[float, ...], ...]:
    """Parse ``value``, text separated by ``;``, numbers, or lists of numbers, to tuples of probabilities."""
    if isinstance(value, str):
        value = value.split(";")
    nested = isinstance(value, Iterable) and any(isinstance(item, Iterable) for item in value)
    return tuple(_numbers(name, item) for item in (value if nested else [value]))


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Parse ``value``, comma-separated text or a sequence, to numbers in [0, 1]."""
    try:
        found = tuple(float(item) for item in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise AttendropError(f"{name}={value!r} is not a list of numbers, such as '0,0.5,1'.") from None
    outside = [number for number in found if not 0 <= number <= 1]
    if outside or not found:
        problem = f"holds {outside[0]:g}" if outside else "is empty"
        raise AttendropError(f"{name}={value!r} {problem}; give numbers from 0 to 1.")
    return found


@dataclass(frozen=True)
class Scheduler(Method):
    """Scheduled Bernoulli dropout of attention scores.

    Every valid position of every head is dropped with a probability that is piecewise linear in the training progress,
    with one curve per layer. `attendrop patterns RUN --fit N` fits the curves to the probabilities of an AttendOut run.

    Args:
        progress: Knots: fractions of the planned optimizer steps, ascending from 0 to 1. Numbers, or ``"0,0.5,1"``.
        probabilities: Probability at each knot, in [0, 1]: one list for all layers, or one per layer in order. Lists of
            numbers, or ``"0.6,0.5,0.4; 0.6,0.6,0.6"``. Probabilities are clamped to 0.95.
        layers: Layers to drop in; of these only the encoder's self-attention or, if there is none, the decoder's.
        shape: ``"own"``: by ``progress`` and ``probabilities``. Or predefined, linear from 0.6: ``"qnli"``, to 0.55 in
            the first layer and 0.1 lower in each further one, at least 0.25; ``"cola"``, to 0.9 in all layers.

    Raises:
        AttendropError: A shape is given together with lists; or, at the start of training, the number of lists is
            neither one nor the number of layers, or the number of planned optimizer steps is unknown.

    Source: Wu, Zhao, Zhang (2021), section 7.2. The paper starts at 0.6, with slopes for the layers that it does not
    state. It says of learnt curves that QNLI's first layer stays at 0.55 and the fourth decays faster, and that CoLA
    ends near 0.9; all else about the two shapes is ours, and so are the default and the bound of 0.95.
    """

    info = MethodInfo(
        "scheduler",
        "drops attention scores at random, by a schedule for each layer",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, section 7.2",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("scores",),
        tasks="all; encoder-decoder: the encoder's self-attention",
        self_attention_only=True,
    )

    progress: str | Sequence[float] = option((0.0, 1.0), Range("numbers that ascend from 0 to 1 (0,0.5,1)", _numbers))
    probabilities: str | Sequence[float] | Sequence[Sequence[float]] = option(
        ((0.6, 0.0),),
        Range("a number from 0 to 1 for each of progress, for all layers or for each (0.6,0.1;0.3,0)", _curves),
    )
    layers: str | int | Sequence[int] = option("all", LAYERS)
    shape: str = option(OWN, choice(OWN, *_ENDS))

    def __post_init__(self) -> None:
        super().__post_init__()
        knots: Any = self.progress  # both are parsed when they are checked
        curves: Any = self.probabilities
        if (knots[0], knots[-1]) != (0, 1) or any(first >= second for first, second in pairwise(knots)):
            raise AttendropError(f"progress={knots!r} must ascend from 0 to 1, such as '0,0.5,1'.")
        wrong = next((curve for curve in curves if len(curve) != len(knots)), None)
        if wrong is not None:
            raise AttendropError(
                f"probabilities={self.probabilities!r}: a list is {len(wrong)} long, but progress has {len(knots)} "
                "knots; give one number for each knot."
            )
        default = {field.name: field.default for field in fields(self)}
        if self.shape != OWN and (knots, curves) != (default["progress"], default["probabilities"]):
            raise AttendropError(f"shape={self.shape!r} excludes progress and probabilities; give one or the other.")

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        """Select the layers to act on; raises AttendropError if the number of lists does not match them."""
        chosen = super().selected_layers(attention_layers)
        if len(self.probabilities) not in (1, len(chosen)):
            raise AttendropError(
                f"probabilities has {len(self.probabilities)} lists for {counted(len(chosen), 'layer')} of "
                f"{chosen[0].kind} attention; give one for each, or a single one for all, or choose layers with "
                "layers=."
            )
        return chosen

    def plan(self, context: StepContext) -> Plan:
        attention_layers, progress = self.selected_layers(context.adapter.attention_layers), context.planned_progress()
        if self.shape != OWN:
            found = [_START + (_ENDS[self.shape](layer.index) - _START) * progress for layer in attention_layers]
        else:
            knots: Any = self.progress
            curves: Any = self.probabilities
            found = [min(HIGHEST, float(np.interp(progress, knots, curve))) for curve in curves]
            found = found if len(found) > 1 else found * len(attention_layers)
        by_layer = {layer.key: p for layer, p in zip(attention_layers, found, strict=True)}

        def drops(plan: RandomMaskPlan, call: AttentionCall) -> DroppedScores:
            return DroppedScores(plan.sample([by_layer[layer.key] for layer in call.layers], call))

        return RandomMaskPlan(self, context, keys=by_layer.keys(), drops=drops)


@dataclass(frozen=True)
class DropHead(Method):
    """Dropout of whole attention heads.

    Each head of each layer is dropped with probability ``p``, independently for each sequence: its output is zero
    before the output projection. The outputs of the others are multiplied by ``heads / kept heads``; all may be
    dropped.

    Args:
        p_start: Probability at the start of training, in (0, 1).
        p_end: Probability at the end of training, in (0, 1).
        turn: Fraction of the planned optimizer steps at which the probability is 0, in (0, 1).
        schedule: ``"v"``: linear from ``p_start`` to 0 at ``turn``, and from there to ``p_end``. ``"constant"``:
            ``p_start`` throughout; ``p_end`` and ``turn`` are unused.

    Raises:
        AttendropError: In training, the schedule is ``"v"`` and the number of planned optimizer steps is unknown.

    Source: Zhou et al. (2020), https://arxiv.org/abs/2004.13342, section 3. Their V has its minimum at the end of the
    learning rate's warm-up: ``turn`` defaults to this library's default warm-up of 0.1; set it to your warm-up. The
    default of 0.2 is ours, as is the possibility that all heads of a layer are dropped.
    """

    info = MethodInfo(
        "drophead",
        "drops whole attention heads at random, by a V-shaped schedule",
        "Zhou et al. (2020), Scheduled DropHead: A Regularization Method for Transformer Models",
        link="https://arxiv.org/abs/2004.13342",
        acts_on=("heads",),
        units="heads",
    )

    p_start: float = option(0.2, unit_interval(), search=(0.1, 0.4))
    p_end: float = option(0.2, unit_interval())
    turn: float = option(0.1, unit_interval())
    schedule: str = option("v", choice("v", "constant"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        p = self.p_start
        if self.schedule == "v":
            progress, turn = context.planned_progress(), self.turn
            falling, rising = self.p_start * (1 - progress / turn), self.p_end * (progress - turn) / (1 - turn)
            p = falling if progress < turn else rising
        keys = [layer.key for layer in self.selected_layers(context.adapter.attention_layers)]
        # Those of all layers that are called alike, chosen when the first of them runs.
        chosen: dict[tuple[int, int], tuple[dict[str, Tensor], LayerCounts]] = {}

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            batch, heads = call.shape[:2]
            if (batch, heads) not in chosen:
                drop = uniform(context.key, keys, (len(keys) * batch, heads, 1, 1), None, call.device) < p
                kept = (~drop).sum(1, keepdim=True).double()
                factors = (~drop * (heads / kept.clamp(min=1))).to(call.dtype).view(len(keys), batch, 1, heads, 1)
                possible = torch.full((len(keys),), batch * heads, device=call.device)
                counts = context.report_layers(keys, drop.view(len(keys), -1).sum(1), possible)
                chosen[batch, heads] = dict(zip(keys, factors.unbind(), strict=True)), counts
            factor, counts = chosen[batch, heads][0][call.layer.key], chosen[batch, heads][1]
            counts.ran.add(keys.index(call.layer.key))
            return AttentionEdit(output=lambda output: output * factor.to(output.dtype))

        return RandomMaskPlan(self, context, make)


@dataclass(frozen=True)
class LayerDrop(Method):
    """Skipping of whole blocks, attention and feed-forward together.

    In each optimizer step each block is skipped with probability ``p``, for the whole global batch: it is not computed,
    and its input is passed on unchanged. Nothing is rescaled.

    Args:
        p: Probability that a block is skipped, in (0, 1].

    Raises:
        AttendropError: In training, no block can be skipped.

    Source: Fan, Grave, Joulin (2020), https://arxiv.org/abs/1909.11556, section 3.1; 0.2 is their recommendation. One
    sample for the global batch is ours, so that processes agree. Blocks whose results later blocks need (T5's first:
    the position bias) are never skipped.
    """

    info = MethodInfo(
        "layerdrop",
        "skips whole blocks at random",
        "Fan, Grave, Joulin (2020), Reducing Transformer Depth on Demand with Structured Dropout",
        link="https://arxiv.org/abs/1909.11556",
        acts_on=("layers",),
        forward="1 - p",
        backward="1 - p",
        tasks="all; T5: not its first block",
        units="blocks",
        traits={SKIPS_BLOCKS: ""},
        skips_parameters=True,
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        chosen = {layer.key for layer in self.selected_layers(context.adapter.attention_layers)}
        blocks = [block.key for block in context.adapter.blocks if block.skippable and block.key in chosen]
        if not blocks:
            raise AttendropError(f"layers={self.layers!r}: none of these layers can be left out.")
        return Skipping(sample_layers(context, self.p, blocks, "layer/"))


@dataclass(eq=False)
class Skipping(Plan):
    """Plan that skips the blocks with these keys."""

    keys: set[str]

    def block(self, block: Block) -> BlockEdit | None:
        return BlockEdit(skip=True) if block.attention_layers and block.key in self.keys else None


@dataclass(frozen=True)
class AttentionLayerDrop(Method):
    """LayerDrop of attention only.

    In each optimizer step each layer is selected with probability ``p``. A selected layer attends equally to all valid
    keys (Eq. 4), for the whole global batch; the rest of the layer is unchanged.

    Args:
        p: Probability that a layer is selected, in (0, 1].

    Source: Wu, Zhao, Zhang (2021), section 7.1, after Fan et al. (2020), including the default of 0.2. Not specified
    there: one sample is used for the global batch, and the model's own attention dropout acts on the equal weights.
    """

    info = MethodInfo(
        "attention-layerdrop",
        "makes the attention of random layers constant",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, section 7.1",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("layers",),
        units="layers",
        skips_parameters=True,  # the query and key projections
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        keys = [layer.key for layer in self.selected_layers(context.adapter.attention_layers)]
        return ConstantAttention(sample_layers(context, self.p, keys))
