"""Adversarial dropout: which elements of the masks change, and how both passes make up the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.weighted import weighted
from torch import Tensor

from attendrop import AdversarialDropout, AttendropError, Compose, Vanilla, regularize
from attendrop.methods import adversarial
from attendrop.methods.adversarial import flipped
from attendrop.randomness.keyed_random import SampleKey, sample_mask

LENGTHS = (8, 5, 3)


def changed_by_hand(mask: Tensor, gradient: Tensor, valid: Tensor, delta: float) -> Tensor:
    """The greedy algorithm, sequence by sequence; gradients have no ties."""
    found = mask.clone()
    for row, slope, own, after in zip(mask, gradient, valid, found, strict=True):
        places = [tuple(index) for index in own.nonzero().tolist()]
        raising = [i for i in places if (slope[i] < 0 if row[i] == 1 else slope[i] > 0)]
        raising.sort(key=lambda i: -abs(float(slope[i])))
        for index in raising[: int(len(places) * delta + 1e-6)]:
            after[index] = 1 - after[index]
    return found


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.9])
def test_the_elements_that_raise_the_loss_most_are_changed(delta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 2, 8, 8)
    mask = (torch.rand(shape, generator=generator) < 0.7).float()
    gradient = torch.randn(shape, generator=generator)
    inside = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    valid = (inside[:, None, None] & inside[:, None, :, None]).expand(shape)
    found = flipped(mask, gradient, valid, delta)
    assert torch.equal(found, changed_by_hand(mask, gradient, valid, delta))
    assert not torch.equal(found, mask)


def test_the_loss() -> None:
    model: Any = zoo.build("bert", dtype=torch.float64)
    batch = zoo.batch_of("bert", LENGTHS)
    with regularize(model, AdversarialDropout(p=0.2, delta=0.1, weight=0.7)) as reg:
        loss = reg.loss(batch)
        raised = reg.logs()["adversarial_dropout/raised"]
    keys, origins = ("encoder.0", "encoder.1"), torch.zeros(3, 2, dtype=torch.long)
    masks = {
        key: (~sample_mask(0.2, SampleKey(0, 0, 0, 3), key, (3, 2, 8, 8), origins, origins.device))
        .double()
        .requires_grad_()
        for key in keys
    }
    first = weighted(model, batch, {key: mask / 0.8 for key, mask in masks.items()}).loss
    gradients = torch.autograd.grad(first, list(masks.values()))
    inside = batch["attention_mask"].bool()
    valid = (inside[:, None, None] & inside[:, None, :, None]).expand(3, 2, 8, 8)
    changed = {
        key: changed_by_hand(masks[key].detach(), gradient, valid & (gradient != 0).any(-1, keepdim=True), 0.1) / 0.8
        for key, gradient in zip(keys, gradients, strict=True)
    }
    second = weighted(model, batch, changed).loss
    torch.testing.assert_close(loss, first + 0.7 * second, rtol=1e-6, atol=1e-6)
    assert raised == pytest.approx((second - first).item(), abs=1e-6)
    assert raised > 0


def numbers_changed(name: str, monkeypatch: pytest.MonkeyPatch, **padding: int) -> list[list[int]]:
    """How many positions of each layer and sequence are changed, in the order of execution."""
    found = []

    def counted(mask: Tensor, *given: Any) -> Tensor:
        after = flipped(mask, *given)
        found.append((after != mask).flatten(1).sum(-1).tolist())
        return after

    monkeypatch.setattr(adversarial, "flipped", counted)
    with regularize(zoo.build(name, dtype=torch.float64), AdversarialDropout(p=0.2, delta=0.05)) as reg:
        reg.loss(zoo.batch_of(name, (12, 5), **padding))
    monkeypatch.undo()
    return found


def test_delta_is_a_fraction_of_the_positions_that_the_loss_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer of BERT has one row of 12 and 5 keys in each of 2 heads."""
    assert numbers_changed("bert", monkeypatch) == [[14, 2], [1, 0]]


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_padded_targets_do_not_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers_changed(name, monkeypatch) == numbers_changed(name, monkeypatch, extra=20)


def test_it_takes_the_place_of_the_models_own_attention_dropout() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64, attention_probs_dropout_prob=0.5), zoo.batch_of("bert")
    with regularize(model, AdversarialDropout(p=1e-9, delta=1e-6)) as reg:
        torch.testing.assert_close(reg.loss(batch), 2 * model.eval()(**batch).loss)
        model.train()
    with pytest.raises(AttendropError, match="dropout of attention weights"):
        Compose(AdversarialDropout(), Vanilla(where="weights"))


def test_almost_no_weight_and_dropping_is_plain_fine_tuning() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    model(**batch).loss.backward()
    plain = zoo.gradients(model)
    with regularize(model, AdversarialDropout(p=1e-9, weight=1e-9)) as reg:
        reg.loss(batch).backward()
    zoo.assert_same(zoo.gradients(model), plain, 1e-6)
