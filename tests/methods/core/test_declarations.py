"""What follows from the functions that methods and their states define, and what is refused in words."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import zoo
from torch import Tensor

from attendrop import ADDrop, AttendropError, Compose, HiddenCut, Method, RDrop, SuperT, Vanilla, regularize
from attendrop.attention.plan import Plan
from attendrop.methods.core.base import REPLACES_DROPOUT, MethodInfo, MethodState
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.options import SWITCH, option
from attendrop.methods.r_drop import repeat_rows
from attendrop.support.models import Batch
from attendrop_methods import L2SP, SAM, ConcreteDropout, LearnableBernoulli


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ADDrop(attribution="recorded"), set()),
        (HiddenCut(), {"loss"}),
        (RDrop(), {"penalty"}),
        (SuperT(), {"edit_gradients"}),
        (SAM(), {"loss"}),
        (L2SP(), {"edit_gradients"}),
        (ConcreteDropout(), {"penalty"}),
        (LearnableBernoulli(), {"loss", "penalty"}),
        (Compose(RDrop(), L2SP()), {"penalty", "edit_gradients"}),
        (Compose(Vanilla(), RDrop()), {"penalty"}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_what_a_method_does_follows_from_what_it_or_its_state_defines(method: Method, expected: set[str]) -> None:
    assert {name for name in ("loss", "penalty", "edit_gradients") if method.defines(name)} == expected


class OwnState(MethodState):
    """Takes the pass that everyone takes."""

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        return super().loss(context, compute_loss)


@dataclass(frozen=True)
class Own(Method):
    """A custom method whose state is not known before it starts."""

    info = MethodInfo("own")

    def start(self, training: TrainingContext) -> MethodState:
        return OwnState(self)


@pytest.mark.parametrize("method", [Own(), Compose(Own(), HiddenCut()), Compose(Own(), Vanilla())])
def test_a_state_that_does_more_than_its_method_says_is_refused_in_words(method: Method) -> None:
    message = "Method 'own': its state defines loss, which must be known .* state_class = OwnState"
    with pytest.raises(AttendropError, match=message), regularize(zoo.build("bert"), method):
        pass


@dataclass(frozen=True)
class Twice(Method):
    """Repeats each row, and leaves the pass to the default."""

    info = MethodInfo("own")
    state_class = OwnState

    def batch(self, context: StepContext) -> Batch:
        return repeat_rows(context.batch, 2)


def test_a_loss_that_leaves_the_pass_to_the_default_works_beside_others() -> None:
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


@dataclass(frozen=True)
class Switched(Method):
    """Replaces the model's dropout if it is told to."""

    info = MethodInfo("switched", traits={REPLACES_DROPOUT: "hard=true"})
    hard: bool = option(False, SWITCH)


def test_a_trait_may_depend_on_an_option() -> None:
    for hard, combines in ((True, False), (False, True)):
        refused: Any = nullcontext() if combines else pytest.raises(AttendropError)
        with refused:
            Compose(Switched(hard=hard), Vanilla(where="weights"))


@dataclass(frozen=True)
class Planned(Method):
    """Has a plan although it says that it acts on no attention."""

    info = MethodInfo("planned", uses_attention=False)

    def plan(self, context: StepContext) -> Plan:
        return Plan()


@dataclass(frozen=True)
class Unwritable(Method):
    """Has an option that no file can hold."""

    info = MethodInfo("unwritable")
    values: Any = frozenset()


def test_states_plans_and_options_of_another_form_are_refused_in_words() -> None:
    stateless = type("Stateless", (Own,), {"start": lambda self, training: None})()
    with pytest.raises(AttendropError, match="must return a MethodState"), regularize(zoo.build("bert"), stateless):
        pass
    with regularize(zoo.build("bert"), Planned()) as reg, pytest.raises(AttendropError, match="uses_attention=False"):
        reg.loss(zoo.batch_of("bert"))
    with pytest.raises(AttendropError, match="'unwritable' cannot be written to files as JSON"):
        Unwritable().options()


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
