"""What follows from the functions that methods and their states define; compositions; the example of the documents."""

from __future__ import annotations

import dataclasses
import importlib
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
from attendrop.attention.plan import AttentionCall, CombinedPlan, Plan
from attendrop.methods.core.base import DECIDES_PASSES, MethodInfo, MethodState
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.registry import get_method, method_names
from attendrop_methods import ConcreteDropout, DropAttention, DropConnect

ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")


def test_each_logs_under_its_own_name_and_draws_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the same probability draw different positions: the union is what independence makes of it."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (30, 30, 30))
    shares, edit = list[Tensor](), CombinedPlan.edit

    def kept(self: CombinedPlan, call: AttentionCall) -> Any:
        found = edit(self, call)
        shares.append(found.drop.double().mean())
        return found

    monkeypatch.setattr(CombinedPlan, "edit", kept)
    method = Compose(Vanilla(p=0.3), Scheduler(probabilities=((0.3, 0.3),)))
    with regularize(model, method, total_steps=10) as reg:
        for _ in range(5):
            reg.loss(batch)
            reg.step()
        logs = reg.logs()
    assert logs["vanilla/dropped"] == pytest.approx(0.3, abs=0.02)
    assert logs["scheduler/dropped"] == pytest.approx(0.3, abs=0.02)
    assert float(torch.stack(shares).mean()) == pytest.approx(1 - 0.7 * 0.7, abs=0.02)


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
    refused: dict[str, Any] = {"or more methods, not 1": [ADDrop()], "given twice": [ADDrop(), ADDrop(p=0.4)]}
    refused |= {"takes methods, .* and not 'r-drop'": [ADDrop(), "r-drop"], "and not None": [ADDrop(), None]}
    for message, methods in refused.items():
        with pytest.raises(AttendropError, match=message):
            Compose(*methods)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (ADDrop(), FineTune(), "Plain fine-tuning adds nothing"),
        (Mixout(), DropConnect(), "Both replace the parameters"),
        (AttendOut(), SCAL(), "Both control the passes"),
        (AttendOut(), SuperT(), "Both replace the model's weights"),
        (SuperT(), Mixout(), "restores pre-trained values"),
        (Vanilla(where="weights"), DropAttention(), "Both replace the model's dropout"),
        (ConcreteDropout(), AttendOut(), "two are trained"),
        (ConcreteDropout(), SuperT(), "learnt probabilities are not"),
        (ConcreteDropout(), LayerDrop(), "including skipped ones"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_what_cannot_be_combined_is_refused_in_any_order_with_the_reason(
    one: Method, other: Method, reason: str
) -> None:
    Compose(Vanilla(where="scores"), DropAttention())  # what an option decides
    for pair in ((one, other), (other, one)):
        with pytest.raises(AttendropError, match=f"'{pair[0].name}' and '{pair[1].name}' cannot be combined.*{reason}"):
            Compose(*pair)


def test_a_rule_names_methods_that_there_are() -> None:
    classes = [get_method(name) for name in method_names()]
    known = {trait for method in classes for trait in (method.info.name, *method.info.traits)} | {DECIDES_PASSES}
    for method in classes:
        for rule in method.info.rules:
            assert {rule.one, rule.other} <= known | {"any method"}, rule
            assert rule.one == method.info.name


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
class Planned(Method):
    """Has a plan although it says that it acts on no attention."""

    info = MethodInfo("planned", uses_attention=False)

    def plan(self, context: StepContext) -> Plan:
        return Plan()


def test_states_and_plans_of_another_form_are_refused() -> None:
    stateless = type("Stateless", (Own,), {"start": lambda self, training: None})()
    with pytest.raises(AttendropError, match="must return a MethodState"), regularize(zoo.build("bert"), stateless):
        pass
    with regularize(zoo.build("bert"), Planned()) as reg, pytest.raises(AttendropError, match="uses_attention=False"):
        reg.loss(zoo.batch_of("bert"))


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
