"""What methods and plans declare: it happens in training, and nothing else does; what is not true is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import zoo
from torch import Tensor

from attendrop import AttendropError, Compose, HiddenCut, Method, Vanilla, regularize
from attendrop.attention.plan import Plan
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import DECIDES_PASSES, REPLACES_DROPOUT, MethodInfo
from attendrop.methods.core.options import SWITCH, option
from attendrop.methods.r_drop import repeat_rows
from attendrop.support.models import Batch

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


def test_what_a_trait_depends_on_is_an_option_of_its_type() -> None:
    with pytest.raises(AttendropError, match="'own' has no option 'wher', on which its trait"):
        begun(info=MethodInfo("own", traits={REPLACES_DROPOUT: "wher=weights"}))
    for hard, combines in ((True, False), (False, True)):
        refused: Any = nullcontext() if combines else pytest.raises(AttendropError)
        with refused:
            Compose(Switched(hard=hard), Vanilla(where="weights"))


@dataclass(frozen=True)
class Switched(Method):
    """Replaces the model's dropout if it is told to."""

    info = MethodInfo("switched", traits={REPLACES_DROPOUT: "hard=true"})
    hard: bool = option(False, SWITCH)


def test_states_and_plans_of_another_form_are_refused_in_words() -> None:
    with pytest.raises(AttendropError, match="must return a MethodState from start"):
        begun(start=lambda self, training: None)
    with regularize(zoo.build("bert"), Planned()) as reg, pytest.raises(AttendropError, match="uses_attention=False"):
        reg.loss(zoo.batch_of("bert"))


@dataclass(frozen=True)
class Planned(Method):
    """Has a plan although it says that it acts on no attention."""

    info = MethodInfo("planned", uses_attention=False)

    def plan(self, context: StepContext) -> Plan:
        return Plan()


@dataclass(frozen=True)
class EvenEpochs(Method):
    """Says by ``active`` alone in which epochs it acts."""

    info = MethodInfo("even-epochs")

    def active(self, epoch: int) -> bool:
        return epoch % 2 == 0


@pytest.mark.parametrize("method", [EvenEpochs(), Compose(EvenEpochs(), HiddenCut())])
def test_a_method_that_acts_in_some_epochs_needs_the_epoch(method: Method) -> None:
    with regularize(zoo.build("bert"), method) as reg, pytest.raises(AttendropError, match="acts in some epochs"):
        reg.loss(zoo.batch_of("bert"))
