"""Mixout: weights that are replaced by the pre-trained ones."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.training import moved
from torch import Tensor

from attendrop import Mixout, regularize
from attendrop.methods.common.parameters import _Mix, pretrained_parameters, projection_weights
from attendrop.randomness.keyed_random import sample_parameter_mask
from attendrop.training.regularization import Regularization


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
