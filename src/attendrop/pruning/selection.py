"""Selection of the layers to prune, and the difference of two models' scores on the same rows."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.hooks import evaluating
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import ConstantAttention
from attendrop.attribution.predictions import IGNORED
from attendrop.errors import AttendropError
from attendrop.pruning.pruned_model import PrunedModel, mask_layers, prunable_layers
from attendrop.support.models import Batch, loss_and_outputs, number_of_rows
from attendrop.wording import counted

Array = np.ndarray[Any, np.dtype[Any]]
CONFIDENCE = 0.95
RESAMPLES = 200  # enough for a standard error: Efron and Tibshirani (1993), section 6.4
# The name of the ranking by :func:`importance`.
IMPORTANCE = "importance"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for some rows, with their metric.

    Without rows, ``metric`` returns the score, which is then taken as exact.
    """

    labels: Array  # (rows,)
    values: Array  # logits of classes, (rows, classes); or other values that the metric takes, such as losses
    metric: Callable[[Array, Array], float]  # from labels and values to a score; greater is better
    classes: int = 0  # 0 if the values are not logits of classes
    span: float = math.inf  # largest possible difference of two scores, such as 1 for an accuracy
    groups: Array | None = None  # (rows,): the number of each row's group, from 0, if not all rows are independent

    @property
    def score(self) -> float:
        """Score on all rows."""
        return float(self.metric(self.labels, self.values))


@dataclass(frozen=True)
class Difference:
    """Difference of two scores, with a confidence interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float | None]:
        """Return a dictionary for JSON, in which an infinite end is None."""
        ends = {name: end if math.isfinite(end) else None for name, end in (("low", self.low), ("high", self.high))}
        return {"value": self.value, **ends}


def paired_difference(before: Predictions, after: Predictions, confidence: float = CONFIDENCE) -> Difference:
    """Subtract the score of ``before`` from that of ``after``, with an interval from a paired bootstrap of the rows.

    Where rows have groups, these are resampled, and take the place of rows in what follows. Both models are scored on
    the same resamples, so any metric can be used. The interval is the difference plus and minus Student's t times the
    bootstrap's standard error (Efron and Tibshirani, 1993, chapter 12), times ``sqrt(n / (n - 1))``, by which the
    bootstrap underestimates it, and is clipped to the possible differences. With one or two rows, it is infinite.
    Without rows, the scores are taken as exact.

    For classes, two pseudo-rows are added to the sample, one that only ``before`` predicts correctly and one that only
    ``after`` does (Bonett and Price, 2012). Otherwise the interval has no width if the models agree on all rows. For
    other scores that are fractions (``span`` of 1), such as the F1 of entities, the variance that two such rows alone
    have is added to the bootstrap's.
    """
    value, rows = after.score - before.score, len(before.labels)
    members = None
    if before.groups is not None and (number := int(before.groups.max(initial=-1)) + 1) < rows:
        members, rows = [np.flatnonzero(before.groups == group) for group in range(number)], number
    if not rows:
        return Difference(value, value, value)
    if rows < 3:
        return Difference(value, -math.inf, math.inf)
    labels, first, second, weights = before.labels, before.values, after.values, np.full(rows, 1.0)
    if before.classes:
        right, wrong = (np.eye(before.classes)[(labels + shift) % before.classes] for shift in (0, 1))
        first, second = np.concatenate([first, right, wrong]), np.concatenate([second, wrong, right])
        weights = np.concatenate([weights, np.full(2 * rows, 1 / rows)])  # two rows in all, with the labels of all rows
        if members is not None:
            members = [each + shift * len(labels) for shift in range(3) for each in members]
        labels = np.tile(labels, 3)
    generator = np.random.default_rng(0)
    size, probabilities = round(weights.sum()), weights / weights.sum()
    found = []
    for _ in range(RESAMPLES):
        sampled = generator.choice(len(weights), size, p=probabilities)
        sampled = sampled if members is None else np.concatenate([members[unit] for unit in sampled])
        found.append(before.metric(labels[sampled], second[sampled]) - before.metric(labels[sampled], first[sampled]))
    error = float(np.std(found)) * math.sqrt(rows / (rows - 1))
    if before.span == 1 and not before.classes:
        error = math.hypot(error, math.sqrt(2) / (rows + 2))
    # A quantile of Student's t, approximated by the normal one (Wallace, 1959), from above for two or more degrees.
    z, freedom = NormalDist().inv_cdf((1 + confidence) / 2), rows - 1
    scale = (freedom - 5 / 6) / (freedom - 2 / 3 + 1 / (10 * freedom)) ** 2
    half = math.sqrt(freedom * math.expm1(z * z * scale)) * error
    return Difference(value, max(value - half, -before.span), min(value + half, before.span))


# Score of a model, greater is better: one number, or one for each row, whose mean is the score.
Score = Callable[[PrunedModel], float | Sequence[float]]
# The same, or the predictions that the score is computed from.
Judge = Callable[[PrunedModel], float | Sequence[float] | Predictions]


@dataclass(frozen=True)
class LayerSelection:
    """Parsed ``layers`` argument, of which one attribute is set; ``auto``: scores determine the number of layers."""

    auto: bool = False
    count: int | None = None
    layers: tuple[int, ...] | None = None  # their numbers
    threshold: float | None = None  # layers of which a method learnt to drop at least this fraction

    def by_importance(self, of: int) -> bool:
        """Whether the importance of layers, of so many, decides which are pruned: not if they are named, or all."""
        return self.auto or (self.count is not None and 0 < self.count < of)

    def check(self, of: int) -> None:
        """Raise AttendropError if a model with so many layers does not have those that are selected."""
        wrong = [number for number in self.layers or () if not 0 <= number < of]
        if wrong:
            raise AttendropError(f"layers: the model has no layer {wrong[0]}; layers are 0 to {of - 1}.")
        if self.count is not None and self.count > of:
            raise AttendropError(f"layers={self.count}: the model has only {of} layers of attention.")


def prune(
    model: Any,
    layers: str | int | Sequence[int] = "auto",
    *,
    batches: Iterable[Batch] | None = None,
    score: Score | None = None,
    pi: Mapping[str, float] | Sequence[float] | None = None,
    tolerance: float = 0.0,
) -> PrunedModel:
    """Prune a model: make the attention of some layers constant, and the model faster.

    Example:
        >>> light = prune(model, layers="auto", batches=batches)
        >>> light.layers
        (4, 5)
        >>> logits = light(**inputs).logits

    Args:
        model: A fine-tuned transformers model, compiled or not, which is not changed.
        layers: ``"auto"``: the largest number of layers whose score is not worse than that of the whole model by more
            than ``tolerance``, even at the lower end of the confidence interval of the difference (95 % for all numbers
            of layers together; less where the same rows rank the layers: in simulations, an interval missed the
            difference in a fifth of the draws, and this was beyond the tolerance in up to a tenth). With few rows, few
            layers are pruned, and a warning says what the rows cannot decide.
            A number, or ``"4"``: this many layers. A list, ``"0,3,5"`` or ``"4,"``: these layers. ``">=0.8"``: the
            layers with a ``pi`` of at least 0.8.
        batches: Labelled batches that were not trained on, on the model's device. They rank the layers unless ``pi`` is
            given, and score the models unless ``score`` is given.
        score: Function that scores a model, greater is better: it returns a score for each of the same rows, or a
            single number, which is taken as exact. Default: the negative loss on each row of ``batches``.
        pi: For each layer the fraction of its units that a method learnt to drop, in order or by keys such as
            ``"encoder.0"``. Layers are pruned in this order, highest first. Default: by importance, the loss on
            ``batches`` when only this layer's attention is constant, lowest first.
        tolerance: See ``layers``; in units of the score; for ``"auto"`` only.

    Raises:
        AttendropError: The model or the selection of layers is not supported, or a required argument is missing; or a
            tolerance is given that selects nothing.
    """
    selection = parse_selection(layers, tolerance)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, PrunedModel):
        raise AttendropError("The model is pruned already; train its to_stock(), and prune that.")
    attention_layers = prunable_layers(model)
    selection.check(len(attention_layers))
    found, ranks = list(batches or ()), pi is None and selection.by_importance(len(attention_layers))
    if not found and (ranks or (selection.auto and score is None)):
        raise AttendropError(
            "Pass labelled batches that were not trained on: on them layers='auto' and the importance of layers are "
            "measured."
        )
    harm = importance(model, attention_layers, found) if ranks else None
    if pi is not None and selection.layers is None:
        keys = [layer.key for layer in attention_layers]
        fractions = dict(pi) if isinstance(pi, Mapping) else dict(zip(keys, pi, strict=False))
        if len(pi) != len(keys) or not fractions.keys() >= set(keys):
            raise AttendropError(
                f"pi has {counted(len(pi), 'layer')}, the model {len(keys)}: it must have one fraction for each."
            )
        harm = [-fractions[key] for key in keys]
    judge = partial(loss_score, found) if score is None else score
    light, trials = prune_selected(model, selection, harm, judge, tolerance)
    undecided = undecided_message(trials, len(light.layers), tolerance)
    if undecided is not None:
        logger.warning(undecided)
    return light


def parse_selection(layers: str | int | Sequence[int], tolerance: float) -> LayerSelection:
    """Parse a selection of layers to prune; raise AttendropError if it is malformed, or cannot have the tolerance."""
    if not tolerance >= 0:
        raise AttendropError(f"tolerance={tolerance} must be at least 0.")
    if tolerance and str(layers).strip() != "auto":
        raise AttendropError(f"tolerance={tolerance} is for layers='auto', but layers are given; omit one of them.")
    numbers: Any = layers
    if isinstance(layers, str):
        text = layers.replace(" ", "")
        threshold = re.fullmatch(r">=(\d*\.?\d+)", text)
        if text == "auto":
            return LayerSelection(auto=True)
        if threshold is not None and float(threshold[1]) <= 1:
            return LayerSelection(threshold=float(threshold[1]))
        if text.isdecimal():
            return LayerSelection(count=int(text))
        listed = re.fullmatch(r"\[?\d+(,\d+)*,?\]?", text)
        numbers = [int(number) for number in re.findall(r"\d+", text)] if listed else None
    if isinstance(numbers, int) and not isinstance(numbers, bool) and numbers >= 0:
        return LayerSelection(count=numbers)
    numbers = list(numbers) if isinstance(numbers, Iterable) else [None]
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise AttendropError(
            f"layers={layers!r} is not understood. Give 'auto', a count such as 4, a list such as '0,3,5' ('4,' for "
            "one), or a threshold such as '>=0.8'."
        )
    return LayerSelection(layers=tuple(sorted(set(numbers))))


def prune_selected(
    model: Any, selection: LayerSelection, harm: Sequence[float] | None, judge: Judge, tolerance: float
) -> tuple[PrunedModel, list[Trial]]:
    """Decide which layers to prune, and prune them, see :func:`prune`; also return the trials of ``auto``.

    Layers are pruned in the order of ``harm``, lowest first: of the loss without each, or of minus the fraction that a
    method learnt to drop, which a threshold is on; None if it does not matter. For ``auto``, ``judge`` scores models.
    """
    chosen: Sequence[int]
    if selection.layers is not None:
        chosen = selection.layers
    elif selection.threshold is not None:
        if harm is None:
            raise AttendropError(
                "A threshold is on pi, the fraction of a layer that a method learnt to drop, and there is none here. "
                "Prune by count, or 'auto'."
            )
        chosen = [number for number, each in enumerate(harm) if -each >= selection.threshold]
    else:
        harm = [0.0] * len(prunable_layers(model)) if harm is None else harm
        chosen = sorted(range(len(harm)), key=lambda number: (harm[number], -number))[: selection.count]
    best = PrunedModel(mask_layers(model, [] if selection.auto else chosen))
    trials: list[Trial] = []
    if selection.auto:  # prune an increasing number of layers, and keep the largest within the tolerance
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(chosen))  # Bonferroni, for all intervals together
        before = _predictions(judge, best)
        trials.append(Trial(0, before.score, len(before.labels), Difference(0.0, 0.0, 0.0)))
        for count in range(1, len(chosen) + 1):
            candidate = PrunedModel(mask_layers(model, chosen[:count]))
            after = _predictions(judge, candidate)
            if len(after.labels) != len(before.labels):
                raise AttendropError(
                    f"score gave {len(after.labels)} rows with {count} layers pruned and {len(before.labels)} with "
                    "none; it must give one number for each of the same rows."
                )
            difference = paired_difference(before, after, confidence)
            trials.append(Trial(count, after.score, len(after.labels), difference))
            if difference.low >= -tolerance:
                best = candidate
    if not best.fast:
        logger.warning(
            "%s has no fast form here: its pruned layers attend equally to all tokens, and take as long as before.",
            type(best.model).__name__,
        )
    return best, trials


def labelled_rows(batch: Batch) -> torch.Tensor:
    """Tell which rows have a label that the model knows, ``(rows,)``; others have no loss."""
    labels = batch.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return torch.ones(number_of_rows(batch), dtype=torch.bool)
    return (labels != IGNORED).reshape(len(labels), -1).any(1)


def importance(model: Any, attention_layers: Iterable[AttentionLayer], batches: Sequence[Batch]) -> list[float]:
    """Compute the mean loss of the model with constant attention in each layer, one at a time."""
    losses, rows, labelled = [], list[int](), list[Batch]()
    for batch in batches:
        if number := int(labelled_rows(batch).sum()):
            rows.append(number)
            labelled.append(batch)
    if not rows:
        raise AttendropError("no row has a label that the model knows, so that layers cannot be ranked by the loss.")
    with ModelAdapter(model) as adapter, torch.no_grad(), evaluating(model):
        adapter.trace(labelled[0])
        for layer in attention_layers:
            passes = (adapter.forward(batch, ConstantAttention([layer.key])) for batch in labelled)
            total = sum(float(loss_and_outputs(output)[0]) * count for output, count in zip(passes, rows, strict=True))
            losses.append(total / sum(rows))
    return losses


@dataclass(frozen=True)
class Trial:
    """Score of one number of pruned layers."""

    count: int
    score: float
    rows: int  # that were scored; 0 if unknown
    difference: Difference  # from the score of the whole model


def undecided_message(trials: Sequence[Trial], kept: int, tolerance: float) -> str | None:
    """Describe what the rows cannot decide: whether pruning more than ``kept`` layers exceeds ``tolerance``."""
    undecided = [trial for trial in trials[kept + 1 :] if trial.difference.low < -tolerance <= trial.difference.high]
    if not undecided:
        return None
    nearest = max(undecided, key=lambda trial: (trial.difference.low, trial.count))
    found, layers = nearest.difference, counted(nearest.count, "layer")
    said = f"{nearest.rows} rows cannot tell whether {layers} would cost more than the tolerance of {tolerance:g}"
    if not math.isfinite(found.low):
        return f"{said}: they are too few for an interval of the difference."
    return (
        f"{said}: the difference is {found.value:+.4f}, its {100 * CONFIDENCE:g} % interval {found.low:+.4f} to "
        f"{found.high:+.4f}. More rows may tell, or a higher tolerance accept it."
    )


def loss_score(batches: Sequence[Batch], model: PrunedModel) -> list[float]:
    """Compute the negative loss on each row of some batches whose label the model knows."""
    found = []
    for batch in batches:
        rows, labels = number_of_rows(batch), labelled_rows(batch)
        for number in labels.nonzero().flatten().tolist():  # each as a batch, with its padding
            row = dict(batch)
            for name, value in batch.items():
                if isinstance(value, torch.Tensor) and value.shape[:1] == (rows,):
                    row[name] = value[number : number + 1]
            with torch.no_grad():
                found.append(-float(loss_and_outputs(model(**row))[0]))
    return found


def _predictions(judge: Judge, model: PrunedModel) -> Predictions:
    found = judge(model)
    if isinstance(found, Predictions):
        return found
    values = np.asarray(found, dtype=np.float64)
    if np.isnan(values).any():
        raise AttendropError(f"The score with {len(model.layers)} layers pruned is NaN; give one that is a number.")
    if values.ndim:
        return Predictions(values, values, lambda _, values: float(values.mean()))
    return Predictions(values[None][:0], values[None][:0], lambda *_: float(values))
