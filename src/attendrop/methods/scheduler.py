"""Scheduler: random dropout of attention scores with a probability schedule for each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    Range,
    StepContext,
    choice,
    option,
)
from attendrop.wording import counted

HIGHEST = 0.95
_START = 0.6
OWN = "own"
# Final probability of each layer, by its number, in the predefined schedules.
_ENDS: dict[str, Callable[[int], float]] = {
    "qnli": lambda layer: 0.55 - 0.1 * min(layer, 3),
    "cola": lambda layer: 0.9,
}


@dataclass(frozen=True)
class Scheduler(Method):
    """Scheduled Bernoulli dropout of attention scores.

    Every valid position of every head is dropped with a probability that is piecewise linear in the training progress,
    with one curve per layer. `attendrop patterns RUN --fit N` fits the curves to the probabilities of an AttendOut run.

    Args:
        progress: Knots: fractions of the planned optimizer steps, ascending from 0 to 1. Numbers, or ``"0,0.5,1"``.
        probabilities: Probability at each knot, in [0, 1]: one list for all layers, or one per layer in order. Lists of
            numbers, or ``"0.6,0.5,0.4; 0.6,0.6,0.6"``. Probabilities are clamped to 0.95.
        layers: Layers to drop in, see :func:`attendrop.attention.layers.select_layers`; of these only the encoder's
            self-attention or, if there is none, the decoder's.
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

    progress: str | Sequence[float] = option(
        (0.0, 1.0), Range("numbers that ascend from 0 to 1 (0,0.5,1)", lambda _, value: _knots(value))
    )
    probabilities: str | Sequence[float] | Sequence[Sequence[float]] = option(
        ((0.6, 0.0),),
        Range(
            "a number from 0 to 1 for each of progress, for all layers or for each (0.6,0.1;0.3,0)",
            lambda _, value: _curves(value),
        ),
    )
    layers: str | int | Sequence[int] = option("all", LAYERS)
    shape: str = option(OWN, choice(OWN, *_ENDS))

    def __post_init__(self) -> None:
        super().__post_init__()
        knots: Any = self.progress  # both are parsed when they are checked
        curves: Any = self.probabilities
        wrong = next((curve for curve in curves if len(curve) != len(knots)), None)
        if wrong is not None:
            raise AttendropError(
                f"probabilities={self.probabilities!r}: a list is {len(wrong)} long, but progress has {len(knots)} "
                "knots; give one number for each knot."
            )
        default = {field.name: field.default for field in fields(self)}
        if self.shape != OWN and (knots, curves) != (default["progress"], default["probabilities"]):
            raise AttendropError(f"shape={self.shape!r} excludes progress and probabilities; give one or the other.")

    def probabilities_at(self, progress: float) -> list[float]:
        """Return the drop probability of each list of ``probabilities``, at a ``progress`` in [0, 1]."""
        curves: Any = self.probabilities
        return [min(HIGHEST, float(np.interp(progress, self.progress, curve))) for curve in curves]  # type: ignore[arg-type]

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
            found = self.probabilities_at(progress)
            found = found if len(found) > 1 else found * len(attention_layers)
        by_layer = {layer.key: p for layer, p in zip(attention_layers, found, strict=True)}

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            return plan.drop_scores(call, plan.sample(by_layer[call.layer.key], call))

        return RandomMaskPlan(self, context, make, by_layer.keys())


def _curves(value: Any) -> tuple[tuple[float, ...], ...]:
    """Parse ``value``, text separated by ``;``, numbers, or lists of numbers, to tuples of probabilities."""
    if isinstance(value, str):
        value = value.split(";")
    nested = isinstance(value, Iterable) and any(isinstance(item, Iterable) for item in value)
    return tuple(_numbers("probabilities", item) for item in (value if nested else [value]))


def _knots(value: Any) -> tuple[float, ...]:
    """Parse ``value`` to numbers that ascend from 0 to 1."""
    knots = _numbers("progress", value)
    ascending = all(first < second for first, second in pairwise(knots))
    if not ascending or (knots[0], knots[-1]) != (0, 1):
        raise AttendropError(f"progress={value!r} must ascend from 0 to 1, such as '0,0.5,1'.")
    return knots


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
