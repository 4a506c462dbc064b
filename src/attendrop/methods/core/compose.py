"""Composition of several methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from itertools import chain
from typing import Any

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodInfo, MethodState, rules_among, run_pass
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.support.models import Batch, number_of_rows


def _of_parts(hook: Callable[..., Any], combine: Callable[[list[Any]], Any] = lambda _: None) -> Any:
    """Make a method that calls a hook of each part, and combines the results, if it has any."""

    def call(self: Any, *args: Any) -> Any:
        return combine([getattr(part, hook.__name__)(*args) for part in self.parts])

    return update_wrapper(call, hook)


def _merged(found: list[Any]) -> dict[str, Any]:
    return {name: value for each in found for name, value in each.items()}


@dataclass(frozen=True, init=False)
class Compose(Method):
    """Composition of several methods.

    At each attention layer the drop masks of all methods are combined; penalties are summed; edits of parameters,
    gradients and the batch are all applied. Each method samples independently, follows its own epoch schedule, and logs
    under its own name. Methods that change the same thing are applied in their declared order
    (:attr:`MethodInfo.order`), so that ``a+b`` and ``b+a`` are equal. On the command line: ``--method ad-drop+r-drop
    --set ad-drop.p=0.3``.

    Example:
        >>> trainer = RegularizedTrainer(model=model, args=args, regularizer=Compose(ADDrop(p=0.3), RDrop(alpha=1.0)))

    Args:
        *methods: Two or more different methods.

    Raises:
        AttendropError: There are fewer than two methods, one is given twice, or two of them cannot be combined.
    """

    methods: tuple[Method, ...]

    def __init__(self, *methods: Method) -> None:
        flat = tuple(part for method in methods for part in method.parts)
        if len(flat) < 2:
            raise AttendropError(f"Compose takes two or more methods, not {len(flat)}.")
        object.__setattr__(self, "methods", flat)
        any_of: dict[str, Any] = {
            fact: any(getattr(part.info, fact) for part in flat)
            for fact in ("uses_attention", "skips_parameters", "needs_loss_scale")
        }
        info = MethodInfo("+".join(part.name for part in flat), "several methods at once", **any_of)
        object.__setattr__(self, "info", info)
        object.__setattr__(self, "name", info.name)
        refuse_conflicts(flat)

    @property
    def parts(self) -> tuple[Method, ...]:
        return self.methods

    def for_data(self, classes: int, rows: int) -> Compose:
        return Compose(*(part.for_data(classes, rows) for part in self.methods))

    @property
    def needs_rows(self) -> bool:
        return any(part.needs_rows for part in self.methods)

    prepare = _of_parts(Method.prepare)
    active = _of_parts(Method.active, any)
    defines = _of_parts(Method.defines, any)
    needs_epoch = _of_parts(Method.needs_epoch, any)
    dropout_steps = _of_parts(Method.dropout_steps, lambda found: [*chain.from_iterable(found)])
    summary_lines = _of_parts(Method.summary_lines, _merged)
    layer_ranking = _of_parts(Method.layer_ranking, lambda found: next((each for each in found if each), None))

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        acting = [part for part in self.methods if part.info.uses_attention]
        found = {layer for part in acting for layer in part.selected_layers(attention_layers)}
        return [layer for layer in attention_layers if layer in found]

    def start(self, training: TrainingContext) -> MethodState:
        return ComposedState(self, training)

    def options(self) -> dict[str, Any]:
        """Return the options of each method, by its name."""
        return {part.name: part.options() for part in self.methods}


class ComposedState(MethodState):
    """Combined state of several methods. The training loop takes the metrics of a step from its ``parts``."""

    def __init__(self, method: Compose, training: TrainingContext) -> None:
        super().__init__(method)
        training = dataclasses.replace(training, act_on_second_model=self._act_on_second_model)
        self.states: list[MethodState] = []
        try:
            for part in method.parts:
                self.states.append(part.start(training))
        except BaseException:
            self.close()
            raise
        self.ordered = sorted(self.states, key=lambda state: (state.method.info.order, state.method.name))

    @property
    def parts(self) -> Sequence[MethodState]:
        return self.states

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        acting: list[tuple[MethodState, StepContext]] = []
        leader: MethodState | None = None
        batch = context.batch
        for state in self.ordered:
            if not state.method.takes_part(context.epoch or 0):
                continue
            if state.method.defines("loss"):
                leader = state
                continue
            own = self._as_seen_by(state, context, batch)
            batch = state.batch(own)
            acting.append((state, own))

        def one_pass(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
            return run_pass(acting, compute_loss, batch, plan, model)

        if leader is None:
            return one_pass(batch)
        return leader.loss(self._as_seen_by(leader, context, batch), one_pass)

    searching = _of_parts(MethodState.searching, any)
    tensors = _of_parts(MethodState.tensors, _merged)
    restore = _of_parts(MethodState.restore)
    close = _of_parts(MethodState.close)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for state in self.ordered:
            state.edit_gradients(parameters)

    def state_dict(self) -> dict[str, Any]:
        return {state.method.name: own for state in self.states if (own := state.state_dict())}

    def rank_state_dict(self) -> dict[str, Any]:
        return {state.method.name: own for state in self.states if (own := state.rank_state_dict())}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        for part in self.states:
            part.load_state_dict(state.get(part.method.name, {}), rank_state.get(part.method.name, {}))

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        kept = list(batches)
        return _merged([state.final_report(kept) for state in self.states])

    def _act_on_second_model(self, model: nn.Module) -> Any:
        """Apply all methods except the one that trains this model."""
        others = [state for state in self.ordered if not state.method.defines("loss")]
        for state in others:
            state.act_on_second_model(model)
        parameters = dict(model.named_parameters())

        def before_step() -> None:
            for state in others:
                state.edit_gradients(parameters)

        return before_step

    def _as_seen_by(self, state: MethodState, context: StepContext, batch: Batch) -> StepContext:
        copies = number_of_rows(batch) // context.key.rows
        key = dataclasses.replace(context.key, salt=f"{state.method.name}/", copies=copies)
        return dataclasses.replace(context, batch=batch, key=key, source=state.method.source)


def refuse_conflicts(methods: Sequence[Method]) -> None:
    """Raise AttendropError, with the reason, if two of the methods cannot be combined."""
    rules = rules_among(method.info.rules for method in methods)
    for number, one in enumerate(methods):
        for other in methods[:number]:
            if one.name == other.name:
                raise AttendropError(f"Method '{one.name}' is given twice; give it once.")
            for rule in rules:
                if (one.has(rule.one) and other.has(rule.other)) or (one.has(rule.other) and other.has(rule.one)):
                    raise AttendropError(f"'{other.name}' and '{one.name}' cannot be combined. {rule.reason}")
