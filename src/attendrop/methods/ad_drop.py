"""AD-DROP: drop the attention positions that a prediction relies on most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.plan import CombinedPlan, DropoutDraws
from attendrop.attribution.gradient import QUADRATURE_RULES, SCOPES
from attendrop.attribution.predictions import is_regression
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
    option,
    optional,
    select_layers,
    unit_interval,
)
from attendrop.methods.ad_drop_records import Recorder, RecordingPlan
from attendrop.randomness.candidates import Region, kept

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
                "new phrases, +0.007 [+0.005, +0.009] on similar rows of Banking77 and HWU64, +0.005 [+0.003, +0.008] "
                "on random ones; the setting was chosen partly on these data, and on HWU64, on which no option was "
                "chosen, has +0.006 [+0.003, +0.010] and +0.003 [-0.001, +0.007]. On STS-B and MRPC -0.05 and -0.04 "
                "(one seed), on entities -0.025 (the project's docs/does-it-help.md).",
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
        return (RecordedState if self.needs_rows else ADDropState)(self, training)

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        return select_layers(attention_layers, "first" if self.layers is None else self.layers)


class ADDropState(MethodState):
    """AD-DROP in a run, in which no option is open any more: where the data are known, they have decided before."""

    method: ADDrop

    def __init__(self, method: ADDrop, training: TrainingContext) -> None:
        super().__init__(method.for_data(classes=1, rows=0))
        self.p: Any = self.method.p

    def plan(self, context: StepContext) -> Plan:
        method = self.method
        if method.attribution == "random":  # each position or hidden unit is a candidate with probability p
            return self.dropping(context, self.p * method.q)
        attention_layers = method.selected_layers(context.adapter.attention_layers)
        draws = DropoutDraws()  # the model's own dropout, the same in the attribution pass and in this one
        by_layer = self._attribute(context, attention_layers, draws)

        def candidates(call: AttentionCall) -> DroppedScores:
            masks, signals = zip(*(by_layer[layer.key] for layer in call.layers), strict=True)
            signal, rows = torch.cat(signals), call.valid_queries()
            signal = signal if rows is None else signal & rows
            return DroppedScores(torch.cat([mask() for mask in masks]), signal, whole_rows=False)

        return self.dropping(context, method.q, candidates, keys=by_layer.keys(), draws=draws)

    def dropping(
        self,
        context: StepContext,
        q: float,
        candidates: Callable[[AttentionCall], DroppedScores | None] | None = None,
        *,
        keys: Collection[str] | None = None,
        draws: DropoutDraws | None = None,
        origins: Callable[[AttentionCall], Tensor | None] | None = None,
    ) -> RandomMaskPlan:
        """Make the plan that drops with probability ``q``: any positions or units, or the candidates of a call."""

        def drops(plan: RandomMaskPlan, call: AttentionCall) -> DroppedScores | None:
            if candidates is None:
                return DroppedScores(plan.sample(q, call), draws=draws)
            found = candidates(call)
            return None if found is None else found._replace(mask=found.mask & plan.sample(q, call), draws=draws)

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
            return RandomMaskPlan(self.method, context, keys=keys, drops=drops, origins=origins)
        return RandomMaskPlan(self.method, context, make, keys)

    def _attribute(
        self, context: StepContext, attention_layers: Sequence[AttentionLayer], draws: DropoutDraws
    ) -> dict[str, tuple[Callable[[], Tensor], Tensor]]:
        """Find the candidates of each layer, and the rows with signal, see :class:`Region`.

        Candidates are kept as packed bits, about a thirtieth of the attribution's memory.
        """
        method, region = self.method, self.region(context)

        def keep(call: AttentionCall, attribution: Tensor) -> list[tuple[Callable[[], Tensor], Tensor]]:
            found = region(call, attribution)
            return list(zip(map(kept, call.split(found.mask)), call.split(found.signal), strict=True))

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

    def region(self, context: StepContext) -> Callable[[AttentionCall, Tensor], Region]:
        """Return what finds a layer's candidates, ``(batch, heads, query, key)`` or ``(batch, 1, query, units)``."""
        usual = "magnitude" if is_regression(context.model, context.batch) else "high"
        p, direction, hidden = self.p, self.method.direction or usual, self.method.units == "hidden"

        def region(call: AttentionCall, attribution: Tensor) -> Region:
            if hidden:  # the units of a token form one row
                return candidate_region(attribution.flatten(2)[:, None], None, p, direction)
            return candidate_region(attribution, call.valid, p, direction)

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
        records = not (drops and method.cross_tuning)  # the epochs that drop do not record
        if drops:
            known = [row in recorder.rows for row in row_pass.rows]
            context.note("recorded", sum(known) / max(1, len(known)))
            if recorder.without_signal is not None:
                context.note("without_signal", recorder.without_signal)

        plans: list[Plan] = []
        if drops:
            plans.append(self.dropping(context, method.q, row_pass.candidates, origins=row_pass.origins))
        if records:
            layers = method.selected_layers(context.adapter.attention_layers)
            plans.append(RecordingPlan(recorder, row_pass, layers, lambda *given: region(*given).mask))
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
