"""Composition of several methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.batches import Batch, number_of_rows
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState, run_pass
from attendrop.methods.core.compatibility import refuse_conflicts
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import LayerRanking
from attendrop.methods.core.replay import Replay


@dataclass(frozen=True, init=False)
class Compose(Method):
    """Composition of several methods.

    At each attention layer the drop masks of all methods are combined; penalties are summed; edits of parameters,
    gradients and the batch are all applied. Each method samples independently, follows its own epoch schedule, and
    logs under its own name. Methods that change the same thing are applied in their declared order
    (:attr:`Method.order`), so that ``a+b`` and ``b+a`` are equal. On the command line: ``--method ad-drop+r-drop
    --set ad-drop.p=0.3``.

    Example:
        >>> trainer = RegularizedTrainer(model=model, args=args, regularizer=Compose(ADDrop(p=0.3), RDrop(alpha=1.0)))

    Args:
        *methods: Two or more different methods.

    Raises:
        AttendropError: There are fewer than two methods, one is given twice, or two of them cannot be combined.
    """

    summary: ClassVar[str] = "several methods at once"
    paper: ClassVar[str] = ""

    methods: tuple[Method, ...]

    def __init__(self, *methods: Method) -> None:
        flat = tuple(part for method in methods for part in method.parts)
        if len(flat) < 2:
            raise AttendropError(f"Compose takes two or more methods, not {len(flat)}.")
        object.__setattr__(self, "methods", flat)
        object.__setattr__(self, "name", "+".join(part.name for part in flat))
        refuse_conflicts(flat)

    @property
    def parts(self) -> tuple[Method, ...]:
        return self.methods

    @property
    def columns(self) -> Mapping[str, str]:
        return {name: kind for part in self.methods for name, kind in part.columns.items()}

    @property
    def uses_attention(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.uses_attention for part in self.methods)

    @property
    def adds_penalty(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.adds_penalty for part in self.methods)

    @property
    def edits_gradients(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.edits_gradients for part in self.methods)

    @property
    def skips_parameters(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.skips_parameters for part in self.methods)

    @property
    def needs_loss_scale(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.needs_loss_scale for part in self.methods)

    def prepare(self, model: nn.Module, seed: int) -> None:
        for part in self.methods:
            part.prepare(model, seed)

    @property
    def needs_rows(self) -> bool:
        return any(part.needs_rows for part in self.methods)

    def active(self, epoch: int) -> bool:
        return any(part.active(epoch) for part in self.methods)

    def takes_part(self, epoch: int) -> bool:
        return any(part.takes_part(epoch) for part in self.methods)

    def needs_epoch(self) -> bool:
        return any(part.needs_epoch() for part in self.methods)

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        found = {
            layer for part in self.methods if part.uses_attention for layer in part.selected_layers(attention_layers)
        }
        return [layer for layer in attention_layers if layer in found]

    def rewarded_on(self) -> str | None:
        return next((part.rewarded_on() for part in self.methods if part.rewarded_on() is not None), None)

    @property
    def rewarded_by(self) -> str:
        return next((part.rewarded_by for part in self.methods if part.rewarded_on() is not None), super().rewarded_by)

    def rewarded_fraction(self) -> float:
        return max(part.rewarded_fraction() for part in self.methods)

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [step for part in self.methods for step in part.dropout_steps(log)]

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        return {caption: text for part in self.methods for caption, text in part.summary_lines(metrics).items()}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        return next((found for part in self.methods if (found := part.layer_ranking(metrics)) is not None), None)

    def start(self, training: TrainingContext) -> MethodState:
        return ComposedState(self, training)

    def options(self) -> dict[str, Any]:
        """Return the options of each method, by its name."""
        return {part.name: part.options() for part in self.methods}


class ComposedState(MethodState):
    """Combined state of several methods."""

    def __init__(self, method: Compose, training: TrainingContext) -> None:
        super().__init__(method)
        training = dataclasses.replace(training, act_on_second_model=self._act_on_second_model)
        self.method_states: list[MethodState] = []
        try:
            for part in method.parts:
                self.method_states.append(part.start(training))
        except BaseException:
            self.close()
            raise
        self.ordered_states = sorted(
            self.method_states, key=lambda method_state: (method_state.method.order, method_state.method.name)
        )

    @property
    def parts(self) -> Sequence[MethodState]:
        return self.method_states

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        acting: list[tuple[MethodState, StepContext]] = []
        leader: MethodState | None = None
        batch = context.batch
        for method_state in self.ordered_states:
            if not method_state.method.takes_part(context.epoch or 0):
                continue
            if method_state.method.decides_passes:
                leader = method_state
                continue
            own = self._as_seen_by(method_state, context, batch)
            batch = method_state.batch(own)
            acting.append((method_state, own))

        def one_pass(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
            return run_pass(acting, compute_loss, batch, plan, model)

        if leader is None:
            return one_pass(batch)
        return leader.loss(self._as_seen_by(leader, context, batch), one_pass)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for method_state in self.ordered_states:
            method_state.edit_gradients(parameters)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        return self._metrics(
            {method_state: method_state.after_step(steps_taken) for method_state in self.method_states}
        )

    def replay(self) -> Replay | None:
        return next(
            (found for method_state in self.method_states if (found := method_state.replay()) is not None), None
        )

    def searching(self) -> bool:
        return any(method_state.searching() for method_state in self.method_states)

    def finish(self) -> dict[str, float]:
        return self._metrics({method_state: method_state.finish() for method_state in self.method_states})

    def with_log_names(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return dict(metrics)

    def state_dict(self) -> dict[str, Any]:
        return self._by_name({method_state: method_state.state_dict() for method_state in self.method_states})

    def rank_state_dict(self) -> dict[str, Any]:
        return self._by_name({method_state: method_state.rank_state_dict() for method_state in self.method_states})

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        for method_state in self.method_states:
            name = method_state.method.name
            method_state.load_state_dict(state.get(name, {}), rank_state.get(name, {}))

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        kept = list(batches) if len(self.method_states) > 1 else batches
        return {
            name: value
            for method_state in self.method_states
            for name, value in method_state.final_report(kept).items()
        }

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {name: value for method_state in self.method_states for name, value in method_state.tensors().items()}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        for method_state in self.method_states:
            method_state.restore(metrics, tensors)

    def close(self) -> None:
        for method_state in self.method_states:
            method_state.close()

    def _act_on_second_model(self, model: nn.Module) -> Any:
        """Apply all methods except the one that trains this model."""
        others = [method_state for method_state in self.ordered_states if not method_state.method.decides_passes]
        for method_state in others:
            method_state.act_on_second_model(model)
        parameters = dict(model.named_parameters())

        def before_step() -> None:
            for method_state in others:
                method_state.edit_gradients(parameters)

        return before_step

    def _as_seen_by(self, method_state: MethodState, context: StepContext, batch: Batch) -> StepContext:
        copies = number_of_rows(batch) // context.key.rows
        key = dataclasses.replace(context.key, salt=f"{method_state.method.name}/", copies=copies)
        return dataclasses.replace(context, batch=batch, key=key, source=method_state.method.source)

    def _metrics(self, found: Mapping[MethodState, Mapping[str, float]]) -> dict[str, float]:
        return {
            name: value
            for method_state, own in found.items()
            for name, value in method_state.with_log_names(own).items()
        }

    def _by_name(self, found: Mapping[MethodState, dict[str, Any]]) -> dict[str, Any]:
        return {method_state.method.name: state for method_state, state in found.items() if state}
