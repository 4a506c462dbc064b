"""SAM: the perturbation of the weights, and the gradient at the perturbed ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import SAM, AttendropError, Compose, LayerDrop, Mixout, regularize


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


MODELS = ["bert", "albert", "t5", "gpt2", "modernbert", "deberta-v3"]


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


def test_each_micro_batch_has_its_own_perturbation() -> None:
    model = zoo.build("bert", dtype=torch.float64)
    rows = zoo.rows("bert", (8, 5, 3, 6))
    halves = [zoo.collate(rows[:2]), zoo.collate(rows[2:])]
    with regularize(model, SAM(rho=0.3)) as reg:
        for half in halves:
            (reg.loss(half) / 2).backward()
    found = zoo.gradients(model)
    expected = [perturbed_gradients(model, half, 0.3)[0] for half in halves]
    zoo.assert_same(found, {name: (value + expected[1][name]) / 2 for name, value in expected[0].items()}, 1e-6)


def test_layers_that_another_method_skips_are_not_perturbed() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    with regularize(model, Compose(SAM(rho=0.3), LayerDrop(p=0.9))) as reg:
        reg.loss(batch).backward()
    assert all(gradient.isfinite().all() for gradient in zoo.gradients(model).values())
    with pytest.raises(AttendropError, match="only one replacement would take effect"):
        Compose(SAM(), Mixout())
