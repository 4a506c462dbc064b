"""Child-Tuning: which gradients are left, and by how much they are scaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import ChildTuning, regularize
from attendrop.methods import weights as weight_methods
from attendrop.methods.common.parameters import layer_parameters
from attendrop.methods.weights import fisher_information
from attendrop.training.regularization import LabelledBatches


def masked(method: ChildTuning, steps: int = 1, **options: Any) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The gradients before and after the mask, at each step."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = []
    with regularize(model, method, optimizer=optimizer, train_data=[batch], **options) as reg:
        for _ in range(steps):
            reg.loss(batch).backward()
            before = {name: p.grad.clone() for name, p in model.named_parameters()}
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            after = {name: (weights[name] - p.detach()) / 1e-3 for name, p in model.named_parameters()}
            found.append((before, after))
            optimizer.zero_grad()
            reg.step()
    return found


@pytest.mark.parametrize("small", [0, 1 << 14])
def test_f_draws_every_element_by_itself(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a parameter is drawn alone, with other small ones, or row by row, as word embeddings are."""
    monkeypatch.setattr(weight_methods, "_SMALL", small)
    (before, after), (_, next_step) = masked(ChildTuning(p=0.3), steps=2)
    words = "bert.embeddings.word_embeddings.weight"
    for name in (words, "bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.1.output.dense.weight"):
        rows = before[name].abs().amax(1) > 1e-7
        assert (after[name][~rows] == 0).all()
        kept = (after[name][rows].abs() > 1e-9).double()
        assert float(kept.mean()) == pytest.approx(0.3, abs=0.12)
        assert len({tuple(row) for row in kept.int().tolist()}) == len(kept)
    masks = [after[f"bert.encoder.layer.{layer}.output.dense.weight"] != 0 for layer in (0, 1)]
    assert not torch.equal(*masks)
    masks.append(next_step["bert.encoder.layer.1.output.dense.weight"] != 0)
    assert not torch.equal(*masks[1:])
    scaled = torch.where(after[words].abs() > 1e-9, before[words] / 0.3, 0.0)
    torch.testing.assert_close(after[words], scaled, atol=1e-8, rtol=1e-6)


def test_d_keeps_the_stated_share_of_the_layers_for_the_whole_run() -> None:
    found = masked(ChildTuning(variant="D", p=0.25), steps=2)
    names = layer_parameters(zoo.build("bert"))
    for before, after in found:
        for name in before:
            if name not in names:  # embeddings and head are trained whole
                torch.testing.assert_close(after[name], before[name], atol=1e-8, rtol=1e-6)
    masks = [torch.cat([(after[name].abs() > 1e-12).flatten() for name in names]) for _, after in found]
    assert torch.equal(masks[0], masks[1])
    assert float(masks[0].double().mean()) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_the_fisher_information_is_the_mean_squared_gradient_of_single_rows(max_norm: float) -> None:
    """Of each parameter; as in the authors' code, its gradient may be clipped before."""
    model = zoo.build("bert", dtype=torch.float64, dropout=0.3)
    rows = [zoo.collate([row]) for row in zoo.rows("bert", (4, 7, 5))]
    training = zoo.training(model, train_data=LabelledBatches(rows, torch.device("cpu")))
    state = torch.get_rng_state()
    found = fisher_information(training, ChildTuning(variant="D", fisher_max_norm=max_norm))
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    expected: dict[str, Tensor] = {}
    for row in rows:
        model.zero_grad()
        logits = model(**row).logits
        loss = torch.log(logits.exp().sum()) - logits[0, row["labels"][0]]
        loss.backward()
        for name in found:
            if max_norm:
                torch.nn.utils.clip_grad_norm_(model.get_parameter(name), max_norm)
            expected[name] = expected.get(name, 0) + model.get_parameter(name).grad ** 2 / 3
    assert set(found) == set(layer_parameters(model))
    for name in found:
        torch.testing.assert_close(found[name].double(), expected[name], rtol=1e-5, atol=1e-9)


def test_gradients_are_masked_after_accumulation_and_clipping() -> None:
    """The mask is no part of the norm: a clipped gradient is larger than the norm once its kept part is scaled."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with regularize(model, ChildTuning(p=0.2), optimizer=optimizer) as reg:
        for _ in range(2):
            (reg.loss(batch) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        clipped = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        for name, p in model.named_parameters():
            kept = p.grad != 0
            torch.testing.assert_close(p.grad[kept], clipped[name][kept] / 0.2)
