"""What methods and plans declare: it happens in training, and nothing else does; what is not true is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import zoo
from helpers.table import TABLE, TERMS, given
from torch import Tensor, nn

from attendrop import AttendropError, Compose, HiddenCut, Method, Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import FUNCTIONS, CombinedPlan, Plan
from attendrop.methods.attend_out.actions import Decide
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import DECIDES_PASSES, MethodInfo
from attendrop.methods.cutoff import Cut
from attendrop.methods.r_drop import repeat_rows
from attendrop.model_support.batches import Batch
from attendrop.training.regularization import Regularization

ROWS = {row: method for row, method in (TABLE | TERMS).items() if row != "finetune"}


class Watch:
    """What plans and methods do in a run, and what they declare.

    Attributes:
        declared: By the class of a plan, what it declares that it acts on.
        acted: By the class of a plan, what it acted on.
        passes: How often each micro-batch was passed through a model to train on.
        did: What else happened, of ``"penalty"`` and ``"gradients"``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.declared: dict[type, set[str]] = defaultdict(set)
        self.acted: dict[type, set[str]] = defaultdict(set)
        self.passes: list[int] = []
        self.did: set[str] = set()
        self.patch = monkeypatch
        bind, compute = ModelAdapter.bind, Regularization.compute
        monkeypatch.setattr(ModelAdapter, "bind", lambda adapter, plan: bind(adapter, self.watched(plan)))
        monkeypatch.setattr(Regularization, "compute", lambda reg, batch, run: compute(reg, batch, self.counted(run)))

    def watched(self, plan: Plan) -> Plan:
        for part in plan.plans if isinstance(plan, CombinedPlan) else [plan]:
            self.declared[type(part)] |= part.acts_on
            for place, name in FUNCTIONS.items():
                if getattr(type(part), name) is not getattr(Plan, name):
                    setattr(part, name, self.noting(type(part), place, getattr(part, name)))
        return plan

    def noting(self, kind: type, place: str, function: Any) -> Any:
        def called(given: Any) -> Any:
            found = function(given)
            if found is not None or kind in (Cut, Decide):  # these look at the call, and change nothing
                self.acted[kind].add(place)
            return found

        return called

    def counted(self, run: ComputeLoss) -> ComputeLoss:
        self.passes.append(0)

        def counting(*args: Any) -> tuple[Tensor, Any]:
            self.passes[-1] += 1
            return run(*args)

        return counting

    def method_state(self, state: MethodState) -> None:
        """Note what the penalty and the gradients of a state are, once it has begun."""
        penalty, edit = state.penalty, state.edit_gradients

        def noted(context: StepContext, outputs: Any) -> Tensor | None:
            found = penalty(context, outputs)
            self.did |= {"penalty"} if found is not None and float(found.detach()) != 0 else set()
            return found

        def edited(parameters: Mapping[str, nn.Parameter]) -> None:
            before = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
            edit(parameters)
            if any(not before[name].equal(p.grad) for name, p in parameters.items() if p.grad is not None):
                self.did.add("gradients")

        self.patch.setattr(state, "penalty", noted)
        self.patch.setattr(state, "edit_gradients", edited)


@pytest.fixture(scope="module")
def watched() -> dict[str, Watch]:
    """Four steps of each row of the table."""
    found = {}
    for row, method in ROWS.items():
        model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
        needed = given(model, batch)
        with pytest.MonkeyPatch.context() as monkeypatch:
            watch = found[row] = Watch(monkeypatch)
            with regularize(model, method, **needed) as reg:
                for state in reg.method_state.parts:
                    watch.method_state(state)
                for _ in range(4):
                    reg.loss(batch).backward()
                    needed["optimizer"].step()
                    needed["optimizer"].zero_grad()
                    reg.step()
    return found


@pytest.mark.parametrize("row", ROWS)
def test_what_a_method_declares_happens_and_nothing_else(row: str, watched: Mapping[str, Watch]) -> None:
    method, watch = ROWS[row], watched[row]
    assert ("penalty" in watch.did) == method.info.adds_penalty
    assert ("gradients" in watch.did) == method.info.edits_gradients
    assert (max(watch.passes) > 1) == any(part.decides_passes for part in method.parts)
    assert all(watch.acted[kind] <= declared for kind, declared in watch.declared.items())


def test_what_a_plan_declares_happens_with_some_options(watched: Mapping[str, Watch]) -> None:
    declared: dict[type, set[str]] = defaultdict(set)
    acted: dict[type, set[str]] = defaultdict(set)
    for watch in watched.values():
        for kind in watch.declared:
            declared[kind] |= watch.declared[kind]
            acted[kind] |= watch.acted[kind]
    assert acted == declared


# --- What is not true is refused in words


@dataclass(frozen=True)
class Own(Method):
    """A custom method that declares nothing."""

    info = MethodInfo("own")

    def start(self, training: TrainingContext) -> MethodState:
        return OwnState(self)


class OwnState(MethodState):
    """Takes the pass that everyone takes."""

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        return super().loss(context, compute_loss)


@pytest.mark.parametrize("method", [Own(), Compose(Own(), HiddenCut()), Compose(Own(), Vanilla())])
def test_a_loss_that_is_not_declared_is_refused_in_words(method: Method) -> None:
    message = r"Method 'own' defines loss but does not declare it; declare the trait DECIDES_PASSES"
    with pytest.raises(AttendropError, match=message), regularize(zoo.build("bert"), method):
        pass


@dataclass(frozen=True)
class Twice(Own):
    """Repeats each row, and leaves the pass to the default."""

    info = MethodInfo("own", traits={DECIDES_PASSES: ""})

    def batch(self, context: StepContext) -> Batch:
        return repeat_rows(context.batch, 2)


def test_a_declared_loss_that_leaves_the_pass_to_the_default_works_beside_others() -> None:
    """Also its batch is made, and made once."""
    batch = zoo.batch_of("bert")
    for method in (Twice(), Compose(Twice(), Vanilla())):
        rows = []
        model = zoo.build("bert")
        model.register_forward_hook(lambda module, args, output, rows=rows: rows.append(len(output.logits)))
        with regularize(model, method) as reg:
            reg.loss(batch)
            rows.clear()
            reg.loss(batch)
            logs = reg.logs()
        assert rows == [2 * len(batch["labels"])]
        assert ("vanilla/dropped" in logs) == (len(method.parts) == 2)


def begun(**members: Any) -> None:
    """Begin a run of a method with these members."""
    plain = {"start": Method.start}
    method = type("Changed", (Own,), plain | members)()
    with regularize(zoo.build("bert"), method):
        pass


def test_declarations_of_ones_own_are_held_to() -> None:
    begun()
    with pytest.raises(AttendropError, match=r"'own' defines penalty .* declare MethodInfo\.adds_penalty = True"):
        begun(penalty=lambda self, context, outputs: None)
    with pytest.raises(
        AttendropError, match=r"'own' declares MethodInfo\.adds_penalty = True but does not define penalty"
    ):
        begun(info=MethodInfo("own", adds_penalty=True))
    with pytest.raises(AttendropError, match=r"declares MethodInfo\.edits_gradients = True but does not define"):
        begun(info=MethodInfo("own", edits_gradients=True))
    with pytest.raises(AttendropError, match=r"declares the trait DECIDES_PASSES .* does not define loss"):
        begun(info=MethodInfo("own", traits={DECIDES_PASSES: ""}))


def test_what_an_instance_of_a_state_defines_counts() -> None:
    def start(method: Method, training: TrainingContext) -> MethodState:
        state = MethodState(method)
        state.edit_gradients = lambda parameters: None  # type: ignore[method-assign]
        return state

    with pytest.raises(
        AttendropError, match=r"defines MethodState\.edit_gradients .* declare MethodInfo\.edits_gradients"
    ):
        begun(start=start)
