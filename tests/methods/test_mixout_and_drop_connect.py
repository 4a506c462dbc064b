"""mixout and DropConnect: weights that are replaced in training passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import AttendOut, AttendropError, Compose, DropConnect, Method, Mixout, regularize
from attendrop.methods.common.parameters import _Mix, projection_weights
from attendrop.randomness.keyed_random import sample_parameter_mask


def moved(model: Any) -> dict[str, Tensor]:
    """Change all weights, as training would; returns what they were."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.2
    return before


def test_the_gradient_is_that_of_the_formula() -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randn(4, 6, dtype=torch.float64)
    mask = sample_parameter_mask(0.4, 0, 0, "w", (4, 6), torch.device("cpu"))
    assert torch.autograd.gradcheck(lambda w: _Mix.apply(w, mask, target, 0.4), (weight,))
    assert torch.autograd.gradcheck(lambda w: _Mix.apply(w, mask, None, 0.4), (weight,))


@pytest.mark.parametrize("name", ["bert", "gpt2-class", "t5", "albert"])
def test_mixout_acts_on_the_linear_layers_below_the_head(name: str) -> None:
    names = projection_weights(zoo.build(name))
    assert names
    assert not [
        each for each in names if "classifier" in each or "embeddings." in each or "lm_head" in each or "score" in each
    ]
    assert all(each.endswith("weight") for each in names)


def test_passes_of_training_see_the_pretrained_value_or_more_than_the_weight() -> None:
    model = zoo.build("bert", dtype=torch.float64)
    names = projection_weights(model)
    found: list[dict[str, Tensor]] = []
    with regularize(model, Mixout(p=0.6, unit="element")) as reg:
        reg.loss(zoo.batch_of("bert"))
        before = moved(model)
        for name in names:
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(
                lambda module, _, name=name: found.append({name: module.weight.detach().clone()})
            )
        reg.loss(zoo.batch_of("bert"))
    seen = {name: value for each in found for name, value in each.items()}
    assert seen.keys() == set(names)
    shares = []
    for name, value in seen.items():
        weight, pretrained = model.get_parameter(name).detach(), before[name]
        replaced = torch.isclose(value, pretrained)
        expected = torch.where(replaced, pretrained, (weight - 0.6 * pretrained) / 0.4)
        torch.testing.assert_close(value, expected)
        shares.append(replaced.double().mean())
    assert float(torch.stack(shares).mean()) == pytest.approx(0.6, abs=0.03)


def test_dropconnect_acts_on_the_projections_of_the_attention() -> None:
    model = zoo.build("bert", dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen: dict[str, Tensor] = {}
    with regularize(model, DropConnect(p=0.4, layers="first")) as reg:
        reg.loss(zoo.batch_of("bert"))
        for name in before:
            if name.endswith("weight") and "embeddings" not in name:
                module = model.get_submodule(name.removesuffix(".weight"))
                module.register_forward_pre_hook(
                    lambda module, _, name=name: seen.update({name: module.weight.detach().clone()})
                )
        reg.loss(zoo.batch_of("bert"))
    changed = {name for name, value in seen.items() if not torch.equal(value, before[name])}
    start = "bert.encoder.layer.0.attention."
    assert changed == {start + part for part in (
        "self.query.weight", "self.key.weight", "self.value.weight", "output.dense.weight"
    )}  # fmt: skip
    for name in changed:
        dropped = seen[name] == 0
        torch.testing.assert_close(seen[name], torch.where(dropped, 0.0, before[name] / 0.6))
        assert 0.25 < dropped.double().mean() < 0.55


@pytest.mark.parametrize("method", [Mixout(p=0.5), DropConnect(p=0.5)], ids=lambda method: method.name)
def test_one_draw_serves_a_step_and_another_the_next(method: Method) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    moved_after: list[Tensor] = []
    with regularize(model, method) as reg:
        reg.loss(batch)
        moved(model)
        for _ in range(2):
            first, again = reg.loss(batch).detach(), reg.loss(batch).detach()
            assert torch.equal(first, again)
            moved_after.append(first)
            reg.step()
    assert not torch.isclose(*moved_after)


def test_a_frozen_weight_is_left_alone_and_mixout_says_when_all_are() -> None:
    model = zoo.build("bert")
    for parameter in model.base_model.parameters():
        parameter.requires_grad_(False)
    assert projection_weights(model) == []
    with pytest.raises(
        AttendropError, match=r"BertForSequenceClassification has no trainable linear layers .* nothing to mix"
    ):
        Mixout().start(zoo.training(model))


def test_mixout_draws_the_defenders_weights_back_too() -> None:
    """Attacker and defender see the same weights mixed by the same draws: nothing but the mask sets them apart."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    method = Compose(AttendOut(variant="pruning", dropout_step=9, init_drop_prob=1e-6), Mixout(p=0.5))
    with regularize(model, method, optimizer=optimizer, total_steps=9) as reg:
        for _ in range(4):
            reg.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            reg.step()
        defender = reg.method_state.parts[0].players.defender.model  # type: ignore[attr-defined]
        zoo.assert_same(dict(model.state_dict()), dict(defender.state_dict()), 1e-9)
    alone = zoo.build("bert", dtype=torch.float64)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    with regularize(
        alone, AttendOut(variant="pruning", dropout_step=9, init_drop_prob=1e-6), optimizer=optimizer
    ) as reg:
        for _ in range(4):
            reg.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            reg.step()
    assert not torch.allclose(alone.classifier.weight, model.classifier.weight)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_all_weights_that_leave_a_neuron_are_replaced_together(name: str) -> None:
    """Mixing with zero then is dropout of the layer's input."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    names = projection_weights(model)
    seen: dict[str, Tensor] = {}
    with regularize(model, Mixout(p=0.5)) as reg:
        reg.loss(batch)
        before = moved(model)
        for each in names:
            model.get_submodule(each.removesuffix(".weight")).register_forward_pre_hook(
                lambda module, _, each=each: seen.update({each: module.weight.detach().clone()})
            )
        reg.loss(batch)
    shares = []
    for each, value in seen.items():
        replaced = torch.isclose(value, before[each])
        replaced = replaced.T if name == "gpt2" else replaced  # (in, out) to (out, in)
        assert torch.equal(replaced.all(0), replaced.any(0))
        shares.append(replaced[0].double())
    assert float(torch.cat(shares).mean()) == pytest.approx(0.5, abs=0.12)
