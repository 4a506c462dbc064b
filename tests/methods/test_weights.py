"""mixout, DropConnect, SAM and L2-SP: weights that are replaced, perturbed or pulled back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from helpers.training import take_step
from torch import Tensor

from attendrop import L2SP, SAM, AttendOut, AttendropError, Compose, DropConnect, Mixout, regularize
from attendrop.methods.common.parameters import _Mix, pretrained_parameters, projection_weights
from attendrop.randomness.keyed_random import sample_parameter_mask
from attendrop.training.regularization import Regularization


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


@pytest.mark.parametrize(("name", "unit"), [("bert", "element"), ("bert", "neuron"), ("gpt2", "neuron")])
def test_mixout_replaces_weights_below_the_head_by_their_pretrained_values(name: str, unit: str) -> None:
    """Of a neuron all together: mixing with zero then is dropout of the layer's input."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    seen: dict[str, Tensor] = {}
    with regularize(model, Mixout(p=0.6, unit=unit)) as reg:
        reg.loss(batch)
        before = moved(model)
        for each in projection_weights(model):
            model.get_submodule(each.removesuffix(".weight")).register_forward_pre_hook(
                lambda module, _, each=each: seen.update({each: module.weight.detach().clone()})
            )
        reg.loss(batch)
    shares = []
    for each, value in seen.items():
        replaced = torch.isclose(value, before[each])
        kept = (model.get_parameter(each).detach() - 0.6 * before[each]) / 0.4
        torch.testing.assert_close(value, torch.where(replaced, before[each], kept))
        replaced = replaced.T if name == "gpt2" else replaced  # (in, out) to (out, in)
        assert torch.equal(replaced.all(0), replaced.any(0)) == (unit == "neuron")
        shares.append(replaced.flatten() if unit == "element" else replaced[0])
    assert float(torch.cat(shares).double().mean()) == pytest.approx(0.6, abs=0.03 if unit == "element" else 0.12)
    assert not any("classifier" in each or "lm_head" in each for each in seen)


def test_mixout_mixes_what_is_unfrozen_later() -> None:
    """From then on, with the values of the start; also after an interruption before it is unfrozen again."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    dense = model.bert.pooler.dense
    dense.weight.requires_grad_(False)
    start, seen = dense.weight.detach().clone(), list[Tensor]()
    with regularize(model, Mixout(p=0.5)) as reg:
        reg.loss(batch)
        dense.weight.requires_grad_(True)
        reg.loss(batch)
        with torch.no_grad():
            dense.weight += 1
        dense.register_forward_pre_hook(lambda module, _: seen.append(module.weight.detach().clone()))
        reg.loss(batch)
        dense.weight.requires_grad_(False)
    resumed = Regularization(zoo.training(model), Mixout()).method_state
    resumed.load_state_dict(reg.method_state.state_dict(), {})
    found = (seen[0] - start).round(decimals=6)
    assert sorted(found.unique().tolist()) == [0, 2]
    assert torch.equal(resumed.state_dict()["pretrained"]["bert.pooler.dense.weight"], start)


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
            take_step(reg, batch)
        defender = reg.method_state.parts[0].players.defender.model  # type: ignore[attr-defined]
        zoo.assert_same(dict(model.state_dict()), dict(defender.state_dict()), 1e-9)


def perturbed_gradients(model: Any, batch: zoo.Batch, rho: float) -> tuple[dict[str, Tensor], Tensor]:
    """The gradients of a copy of the model whose weights are moved, and its loss."""
    moved = copy.deepcopy(model)
    moved(**batch).loss.backward()
    first = {name: p.grad.clone() for name, p in moved.named_parameters() if p.grad is not None}
    norm = torch.cat([gradient.flatten() for gradient in first.values()]).norm()
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            if name in first:
                parameter += rho * first[name] / norm
    moved.zero_grad()
    loss = moved(**batch).loss
    loss.backward()
    return zoo.gradients(moved), loss.detach()


def gradients_of(model: Any, method: Any, batch: zoo.Batch) -> tuple[dict[str, Tensor], Tensor]:
    before = copy.deepcopy(model.state_dict())
    with regularize(model, method) as reg:
        loss = reg.loss(batch)
        loss.backward()
    zoo.assert_same(before, model.state_dict())
    return zoo.gradients(model), loss.detach()


MODELS = ["albert", "t5", "gpt2", "deberta-v3"]


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_at_the_perturbed_weights(name: str) -> None:
    """Also where layers, or embedding and output, share their weights, or a module reads those of another (DeBERTa)."""
    attention = zoo.ZOO[name].implementations[0]
    model, batch = zoo.build(name, attention, dtype=torch.float64), zoo.batch_of(name)
    found, loss = gradients_of(model, SAM(rho=0.02), batch)
    expected, perturbed = perturbed_gradients(model, batch, 0.02)
    zoo.assert_same({k: v for k, v in found.items() if k in expected}, expected, 1e-6)
    torch.testing.assert_close(loss, perturbed)
    assert loss > model(**batch).loss


def test_what_is_frozen_or_unfrozen_later_is_perturbed_accordingly() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    model.bert.requires_grad_(False)
    with regularize(model, SAM(rho=0.02)) as reg:
        for frozen in (model.classifier, model.bert.embeddings):
            model.requires_grad_(True)
            frozen.requires_grad_(False)
            loss = reg.loss(batch).detach()
            torch.testing.assert_close(loss, perturbed_gradients(model, batch, 0.02)[1])


def test_losses_may_be_differentiated_together() -> None:
    """Also where layers run again in the backward pass; a pass of one's own before it is not perturbed."""
    batches = [zoo.batch_of("bert"), zoo.batch_of("bert", (6, 7), seed=5)]
    found = []
    for together in (False, True):
        model = zoo.build("bert", dtype=torch.float64)
        checkpoint_activations(model)
        expected = model(**batches[0]).loss
        with regularize(model, SAM(rho=0.2)) as reg:
            if together:
                losses = [reg.loss(batch) for batch in batches]
                assert torch.equal(model(**batches[0]).loss, expected)
                torch.stack(losses).sum().backward()
            else:
                for batch in batches:
                    reg.loss(batch).backward()
        found.append(zoo.gradients(model))
    zoo.assert_same(*found, 1e-9)


def test_both_passes_have_the_same_dropout() -> None:
    """And what follows a step sees the random state that plain fine-tuning leaves."""
    model, batch = zoo.build("bert", dropout=0.3, dtype=torch.float64), zoo.batch_of("bert")
    losses = []
    for method in (SAM(rho=1e-9), None):
        torch.manual_seed(3)
        if method is None:
            losses.append(model(**batch).loss.item())
        else:
            with regularize(model, method) as reg:
                losses.append(reg.loss(batch).item())
                assert abs(reg.logs()["sam/sharpness"]) < 1e-6
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_the_gradient_is_that_of_the_loss_and_the_penalty() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with regularize(model, L2SP(alpha=0.3, beta=0.7), optimizer=optimizer) as reg:
        moved(model)
        reg.loss(batch).backward()
        optimizer.step()
        report = reg.method_state.final_report([])
    found = zoo.gradients(model)
    distance = sum(
        ((value - start[name]) ** 2).sum() for name, value in model.named_parameters() if name.startswith("bert.")
    )
    norm = sum((value**2).sum() for value in model.classifier.parameters())
    (model(**batch).loss + 0.3 / 2 * distance + 0.7 / 2 * norm).backward()
    zoo.assert_same(found, zoo.gradients(model), 1e-9)
    assert report["l2_sp"]["distance"] == pytest.approx(distance.item() ** 0.5)


def test_what_is_unfrozen_later_is_pulled_to_where_it_began() -> None:
    """Also after an interruption: the checkpoint knows more weights than the state that loads it."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    model.bert.requires_grad_(False)
    weight, optimizer = model.bert.pooler.dense.weight, torch.optim.SGD(model.parameters(), lr=0.1)
    start = weight.detach().clone()
    with regularize(model, L2SP(alpha=0.3, beta=0.7), optimizer=optimizer) as reg:
        model.bert.requires_grad_(True)
        take_step(reg, batch)
        reg.loss(batch).backward()
        expected = weight.grad + 0.3 * (weight.detach() - start)
        optimizer.step()
        torch.testing.assert_close(weight.grad, expected)
        model.bert.requires_grad_(False)
    resumed = Regularization(zoo.training(model, optimizer=optimizer), L2SP()).method_state
    resumed.load_state_dict(reg.method_state.state_dict(), {})
    assert torch.equal(resumed.state_dict()["start"]["bert.pooler.dense.weight"], start)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", {"classifier.weight", "classifier.bias"}),
        ("vit", {"classifier.weight", "classifier.bias"}),
        ("gpt2", set()),  # its output is its embedding
        ("llama", {"lm_head.weight"}),
        ("gpt2-class", {"score.weight"}),
    ],
)
def test_all_but_the_head_is_pre_trained(name: str, head: set[str]) -> None:
    model = zoo.build(name)
    assert {key for key, _ in model.named_parameters()} - set(pretrained_parameters(model)) == head
