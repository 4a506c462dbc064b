"""What a method drops is recorded from the passes that it runs itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.table import TABLE, given
from torch import Tensor

import attendrop
import attendrop_methods
from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import gradient_attribution
from attendrop.errors import AttendropError
from attendrop.randomness.candidates import candidate_region
from attendrop.reports.attention_drops import (
    DropMoment,
    LayerDrops,
    Learnt,
    acting_in_attention,
    active_epochs,
    record_drops,
)

MOMENT = DropMoment(seed=3, step=2, total_steps=4, epoch=1)
ACTING = [name for name, method in TABLE.items() if acting_in_attention(method) and name != "compose"]


def record(method: attendrop.Method, name: str = "bert", model: Any = None, **options: Any) -> dict[str, LayerDrops]:
    model = zoo.build(name) if model is None else model
    return record_drops(model, method, zoo.batch_of(name), options.pop("moment", MOMENT), **options)


def drops_any(found: dict[str, LayerDrops]) -> bool:
    return any(bool(drops.dropped.any()) for drops in found.values())


def fraction(found: LayerDrops) -> Tensor:
    return found.dropped.sum() / found.possible.expand(found.dropped.shape).sum()


@pytest.mark.parametrize("name", ["bert", "gpt2-class"])
def test_what_ad_drop_drops_is_its_candidate_region(name: str) -> None:
    model, batch = zoo.build(name), zoo.batch_of(name)
    method = attendrop.ADDrop(p=0.4, q=1.0, layers="all")
    found = record_drops(model, method, batch, MOMENT)
    with ModelAdapter(model) as adapter:
        layers = adapter.trace(batch)
        attributions = gradient_attribution(adapter, batch, layers, "pseudo_label")
    length = batch["input_ids"].shape[1]
    valid = batch["attention_mask"].bool()[:, None, None, :].expand(-1, 1, length, -1)
    if name == "gpt2-class":
        valid = valid & torch.ones(length, length, dtype=torch.bool).tril()
    rows = batch["attention_mask"].bool()[:, None, :, None]
    assert [*found] == [layer.key for layer in layers]
    for key, drops in found.items():
        assert torch.equal(drops.possible, valid & rows)
        expected = candidate_region(attributions[key], valid, 0.4).mask & rows
        assert torch.equal(drops.dropped, expected)
    random, key, moments = attendrop.ADDrop(layers="all"), layers[0].key, (MOMENT, MOMENT, DropMoment(3, 3, 4, 1))
    one, same, other = (record(random, name, model, moment=each)[key].dropped for each in moments)
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert not drops_any(record(TABLE["alpha-dropout"]))  # hidden units are no positions


@pytest.mark.parametrize("method", ["vanilla", "vanilla weights"])
def test_the_fraction_is_the_one_that_is_logged(method: str) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    found = record(TABLE[method])
    with attendrop.regularize(model, TABLE[method], seed=3, total_steps=4) as reg:
        reg.begin_step(2)
        reg.loss(batch)
        logged = reg.logs()
    for key, drops in found.items():
        torch.testing.assert_close(fraction(drops).item(), logged[f"{TABLE[method].source}/dropped/{key}"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ACTING)
def test_nothing_of_the_model_changes(name: str) -> None:
    model = zoo.build("bert", dropout=0.1)
    model.bert.encoder.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    record(TABLE[name], model=model, moment=DropMoment(3, 2, 4, 1))
    zoo.assert_same(before, model.state_dict())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or "forward" in module.__dict__ for module in model.modules())
    with attendrop.regularize(model.train(), attendrop.FineTune()):  # and it can be regularised again
        pass


def test_dropped_heads_count_with_all_their_positions() -> None:
    found = record(attendrop.DropHead(p_start=0.5, schedule="constant"))
    for drops in found.values():
        possible = drops.possible.expand(drops.dropped.shape)
        whole = (drops.dropped == possible).flatten(2).all(-1)
        assert (whole | ~drops.dropped.flatten(2).any(-1)).all()
    assert drops_any(found)


@pytest.mark.parametrize("method", [attendrop.AttentionLayerDrop(p=0.5), attendrop.LayerDrop(p=0.5)])
def test_dropped_layers_count_with_all_their_positions(method: attendrop.Method) -> None:
    shares = set()
    for step in range(6):
        found = record(method, moment=DropMoment(0, step, 10, 0))
        assert [*found] == ["encoder.0", "encoder.1"]
        shares |= {fraction(drops).item() for drops in found.values()}
    assert shares == {0.0, 1.0}


def test_the_models_own_dropout_is_off_as_in_evaluation() -> None:
    model = zoo.build("bert", dropout=0.5)
    found = record(attendrop.Vanilla(p=0.2, where="weights"), model=model)
    assert 0.05 < fraction(found["encoder.0"]).item() < 0.4
    high = attendrop.ADDrop(q=1.0, layers="all")
    trained, evaluated = (record(high, model=each)["encoder.0"].dropped for each in (model.train(), model.eval()))
    assert torch.equal(trained, evaluated)
    assert not model.training


def test_what_acts_in_attention() -> None:
    assert acting_in_attention(attendrop.FineTune()) is None
    assert acting_in_attention(attendrop.Compose(attendrop.Mixout(), attendrop.RDrop())) is None
    drop = attendrop.ADDrop(cross_tuning=True)
    assert acting_in_attention(drop) is drop
    assert acting_in_attention(attendrop.Compose(drop, attendrop.RDrop())) == drop
    both = attendrop.Compose(drop, attendrop.Vanilla())
    assert acting_in_attention(both) is both


def test_epochs_in_which_all_methods_act() -> None:
    assert active_epochs(attendrop.ADDrop(cross_tuning=True), 4) == [1, 3]
    assert active_epochs(attendrop.Compose(attendrop.ADDrop(cross_tuning=True), attendrop.Vanilla()), 3) == [1]
    assert active_epochs(attendrop.ADDrop(cross_tuning=True), 1) == []


# --- What a run learnt


def test_a_generator_drops_what_it_learnt() -> None:
    method = attendrop.AttendOut(dropout_step=1)
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with attendrop.regularize(model, method, **given(model, batch)) as reg:
        reg.loss(batch)
        saved = {key: value.clone() for key, value in reg.method_state.tensors()["generator"].items()}
    for name in ("query", "key"):  # such that the scores of all positions are equal and high
        saved[f"{name}.weight"].zero_()
        saved[f"{name}.bias"].fill_(10.0)
    new, trained = (record(method, learnt=each) for each in (None, Learnt({}, {"generator": saved})))
    assert all(0.3 < fraction(drops) < 0.7 for drops in new.values())
    assert all(fraction(drops) == 1 for drops in trained.values())
    with pytest.raises(AttendropError, match=r"kept no generator\.safetensors"):
        record(method, learnt=Learnt({}, {}))


def test_learnt_probabilities_of_layers_are_used() -> None:
    method, rates = attendrop_methods.ConcreteDropout(p=0.5), {"encoder.0": 0.01, "encoder.1": 0.95}
    found = record(method, learnt=Learnt({"concrete_dropout": rates}))
    assert fraction(found["encoder.0"]) < 0.1 < 0.8 < fraction(found["encoder.1"])


def test_what_is_recorded_in_one_pass_is_dropped_in_the_next() -> None:
    found = record(TABLE["ad-drop recorded"])
    assert drops_any(found)
