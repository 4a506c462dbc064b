"""Several methods at once: what adds up, what stays apart, what is refused."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.table import TABLE, given
from helpers.training import trainer_of, weights
from torch import Tensor

from attendrop import (
    SCAL,
    ADDrop,
    AttendOut,
    AttendropError,
    Compose,
    FineTune,
    LayerDrop,
    Method,
    Mixout,
    RDrop,
    Scheduler,
    SuperT,
    Vanilla,
    regularize,
)
from attendrop.attention.plan import CombinedPlan
from attendrop.methods.core.base import DECIDES_PASSES, MethodInfo, rules_among
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop_methods import ConcreteDropout, DropConnect

ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")


def test_each_logs_under_its_own_name_and_draws_for_itself() -> None:
    """Two of the same probability draw different positions: the union is what independence makes of it."""
    model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert", (30, 30, 30))
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
    whole, resumed = (trainer_of(tmp_path, method, save_steps=3, **options) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    zoo.assert_same(weights(whole), weights(resumed))


# Those that change the same thing in turn, the batch or what heads put out; `make test-slow` runs the other pairs.
TELLING = [("r-drop", "unidrop"), ("alpha-dropout", "drophead"), ("alpha-dropout", "headmask")]
PAIRS = [pair for pair in combinations(method_names(), 2) if pair not in TELLING and pair[::-1] not in TELLING]


# --- Refusals and names


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ((ADDrop(),), r"two or more methods, not 1"),
        ((ADDrop(), ADDrop(p=0.4)), r"'ad-drop' is given twice"),
        ((ADDrop(), FineTune()), r"'ad-drop' and 'finetune' cannot be combined\. Plain fine-tuning adds nothing"),
        ((Mixout(), DropConnect()), r"'mixout' and 'dropconnect' cannot be combined\. Both replace the parameters"),
    ],
)
def test_combinations_without_a_meaning_are_refused(methods: tuple[Method, ...], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        Compose(*methods)


def test_compositions_are_flattened_and_named_after_their_parts() -> None:
    method = Compose(Compose(ALWAYS, RDrop()), Mixout())
    assert method.name == "ad-drop+r-drop+mixout"
    assert [part.name for part in method.parts] == ["ad-drop", "r-drop", "mixout"]
    assert method == Compose(ALWAYS, RDrop(), Mixout())
    assert method != Compose(ALWAYS, RDrop(), Mixout(p=0.8))


@pytest.mark.parametrize(
    "options",
    [
        {"ad-drop.p": "0.4", "r-drop.alpha": "2"},
        {"ad_drop.p": 0.4, "r_drop.alpha": 2.0},
        {"ad-drop": {"p": 0.4}, "r-drop": {"alpha": 2.0}},
    ],
)
def test_compositions_are_built_from_text(options: dict[str, Any]) -> None:
    built = build_method("ad-drop+r-drop", options)
    assert built == Compose(ADDrop(p=0.4), RDrop(alpha=2.0))
    assert build_method(built.name, built.options()) == built


# --- Pairs: each trains, or is refused by the table of rules


SINGLE = [(name, method) for name, method in TABLE.items() if len(method.parts) == 1]
OF_TABLE = {
    f"{one}+{other}": (first, second)
    for (one, first), (other, second) in combinations(SINGLE, 2)
    if first.name != second.name
}
# Enough to notice when composition as such breaks; the others are slow.
SAMPLE = list(OF_TABLE)[:: len(OF_TABLE) // 12]


@pytest.mark.parametrize(
    ("one", "other"),
    [pytest.param(*pair, id=name, marks=[] if name in SAMPLE else pytest.mark.slow) for name, pair in OF_TABLE.items()],
)
def test_a_pair_trains_or_is_refused_when_composed(one: Method, other: Method) -> None:
    try:
        method = Compose(one, other)
    except AttendropError as refused:
        assert "cannot be combined" in str(refused)
        return
    model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
    needed = given(model, batch)
    with regularize(model, method, **needed) as reg:
        for _ in range(2):
            loss = reg.loss(batch)
            loss.backward()
            needed["optimizer"].step()
            needed["optimizer"].zero_grad()
            reg.step()
            assert loss.isfinite()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
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
