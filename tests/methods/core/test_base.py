"""What follows from the functions that methods and their states define; compositions; the example of the documents."""

from __future__ import annotations

import dataclasses
import importlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import trainer_of, weights
from torch import Tensor

from attendrop import (
    SCAL,
    ADDrop,
    AttendOut,
    AttendropError,
    Compose,
    FineTune,
    HiddenCut,
    LayerDrop,
    Method,
    Mixout,
    RDrop,
    Scheduler,
    SuperT,
    Vanilla,
    regularize,
)
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.methods.core.base import DECIDES_PASSES, REPLACES_DROPOUT, MethodInfo, MethodState, rules_among
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.options import SWITCH, option
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop_methods import L2SP, ConcreteDropout, DropConnect, LearnableBernoulli

ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")


def test_each_logs_under_its_own_name_and_draws_for_itself() -> None:
    """Two of the same probability draw different positions: the union is what independence makes of it."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (30, 30, 30))
    method = Compose(Vanilla(p=0.3), Scheduler(probabilities=((0.3, 0.3),)))
    shares: list[Tensor] = []
    with regularize(model, method, total_steps=10) as reg:
        edit = CombinedPlan.edit
        try:
            CombinedPlan.edit = lambda self, call: _kept(edit(self, call), shares)  # type: ignore[method-assign]
            for _ in range(10):
                reg.loss(batch)
                reg.step()
        finally:
            CombinedPlan.edit = edit  # type: ignore[method-assign]
        logs = reg.logs()
    assert logs["vanilla/dropped"] == pytest.approx(0.3, abs=0.02)
    assert logs["scheduler/dropped"] == pytest.approx(0.3, abs=0.02)
    assert float(torch.stack(shares).mean()) == pytest.approx(1 - 0.7 * 0.7, abs=0.02)
    assert {"vanilla/active", "scheduler/active", "vanilla/dropped/encoder.1"} <= logs.keys()


def _kept(edit: Any, shares: list[Tensor]) -> Any:
    shares.append(edit.drop.double().mean())
    return edit


def test_each_follows_its_own_epochs() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    method = Compose(ADDrop(cross_tuning=True), Vanilla())
    assert method.needs_epoch()
    assert method.regularized_epochs(2) == [0, 1]
    with regularize(model, method) as reg:
        for epoch, active in ((0, 0.0), (1, 1.0)):
            reg.set_epoch(epoch)
            reg.loss(batch)
            logs = reg.logs()
            assert (logs["ad_drop/active"], logs["vanilla/active"]) == (active, 1.0)
            assert ("ad_drop/dropped" in logs) == bool(active)


def test_penalties_add_up_and_the_batch_is_made_once() -> None:
    @dataclasses.dataclass(frozen=True)
    class Penalty(Method):
        info = MethodInfo("penalty", uses_attention=False)

        def penalty(self, context: StepContext, outputs: Any) -> Tensor:
            assert len(context.batch["labels"]) == len(outputs.logits) == 6
            return outputs.logits.square().mean()

    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    outputs = model(**batch)
    with regularize(model, Compose(RDrop(), Penalty())) as reg:  # without dropout, copies agree
        torch.testing.assert_close(reg.loss(batch), outputs.loss + outputs.logits.square().mean())


def test_a_composition_resumes_with_the_state_of_each(tmp_path: Path) -> None:
    """In the middle of a period of AttendOut, whose batches each process keeps for itself."""
    method = Compose(AttendOut(dropout_step=2), Mixout(p=0.5))
    options = {"reward_dataset": list(zoo.rows("bert", [5, 7, 4, 6], seed=9)), "save_strategy": "steps"}
    whole, resumed = (trainer_of(tmp_path, method, save_steps=3, max_steps=4, **options) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    zoo.assert_same(weights(whole), weights(resumed))


def test_compositions_are_flattened_and_named_after_their_parts() -> None:
    method = Compose(Compose(ALWAYS, RDrop()), Mixout())
    assert method.name == "ad-drop+r-drop+mixout"
    assert [part.name for part in method.parts] == ["ad-drop", "r-drop", "mixout"]
    assert method == Compose(ALWAYS, RDrop(), Mixout())
    assert method != Compose(ALWAYS, RDrop(), Mixout(p=0.8))
    for methods, message in (((ADDrop(),), "two or more methods, not 1"), ((ADDrop(), ADDrop(p=0.4)), "given twice")):
        with pytest.raises(AttendropError, match=message):
            Compose(*methods)


def test_compositions_are_built_from_text() -> None:
    built = build_method("ad-drop+r-drop", {"ad-drop.p": "0.4", "r-drop.alpha": "2"})
    assert built == build_method(built.name, built.options()) == Compose(ADDrop(p=0.4), RDrop(alpha=2.0))


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (ADDrop(), FineTune(), "Plain fine-tuning adds nothing"),
        (Mixout(), DropConnect(), "Both replace the parameters"),
        (AttendOut(), SCAL(), "Both control the passes"),
        (AttendOut(), SuperT(), "Both replace the model's weights"),
        (SuperT(), Mixout(), "restores pre-trained values"),
        (ConcreteDropout(), AttendOut(), "two are trained"),
        (ConcreteDropout(), SuperT(), "learnt probabilities are not"),
        (ConcreteDropout(), LayerDrop(), "including skipped ones"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_what_cannot_be_combined_is_refused_in_any_order_with_the_reason(
    one: Method, other: Method, reason: str
) -> None:
    for pair in ((one, other), (other, one)):
        with pytest.raises(AttendropError, match=f"'{pair[0].name}' and '{pair[1].name}' cannot be combined.*{reason}"):
            Compose(*pair)


def test_a_rule_names_methods_that_there_are() -> None:
    classes = [get_method(name) for name in method_names()]
    known = {trait for method in classes for trait in (method.info.name, *method.info.traits)} | {DECIDES_PASSES}
    for method in classes:
        for rule in method.info.rules:
            assert rule in rules_among(cls.info.rules for cls in classes)
            assert {rule.one, rule.other} <= known | {"any method"}, rule
            assert rule.one == method.info.name


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ADDrop(attribution="recorded"), set()),
        (HiddenCut(), {"loss"}),
        (LearnableBernoulli(), {"loss", "penalty"}),
        (Compose(RDrop(), L2SP()), {"penalty", "edit_gradients"}),
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
    """A method of one's own whose state is not known before it starts."""

    info = MethodInfo("own")

    def start(self, training: TrainingContext) -> MethodState:
        return OwnState(self)


@pytest.mark.parametrize("method", [Own(), Compose(Own(), Vanilla())])
def test_a_state_that_does_more_than_its_method_says_is_refused_in_words(method: Method) -> None:
    with (
        pytest.raises(AttendropError, match="Method 'own': its state defines loss"),
        regularize(zoo.build("bert"), method),
    ):
        pass


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
    with pytest.raises(AttendropError, match="'unwritable' cannot be written as JSON"):
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


def test_the_example_of_the_documents_drops_the_diagonal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/own_method.md").read_text(encoding="utf-8")
    (tmp_path / "self_drop.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with regularize(zoo.build("bert"), importlib.import_module("self_drop").SelfDrop(p=0.5)) as reg:
        reg.loss(zoo.batch_of("bert", (40, 40)))
        assert reg.logs()["self_drop/dropped"] == pytest.approx(0.5 / 40, rel=0.2)
