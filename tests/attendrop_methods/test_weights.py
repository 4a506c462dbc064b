"""DropConnect, SAM, L2-SP and layer re-initialisation: weights that are dropped, perturbed, pulled back or new."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from helpers.training import moved
from torch import Tensor
from transformers import BertPreTrainedModel

from attendrop import AttendropError, Compose, HiddenCut, Method, Mixout, SuperT, regularize
from attendrop_methods import L2SP, SAM, DropConnect, LayerReinit


def test_dropconnect_acts_on_the_projections_of_the_attention() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    before = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("dense.weight")}
    seen: dict[str, Tensor] = {}
    with regularize(model, DropConnect(p=0.4, layers="first")) as reg:
        reg.loss(batch)
        for name in before:
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(
                lambda module, _, name=name: seen.update({name: module.weight.detach().clone()})
            )
        reg.loss(batch)
    (changed,) = {name for name, value in seen.items() if not torch.equal(value, before[name])}
    assert changed == "bert.encoder.layer.0.attention.output.dense.weight"
    dropped = seen[changed] == 0
    torch.testing.assert_close(seen[changed], torch.where(dropped, 0.0, before[changed] / 0.6))
    assert 0.25 < dropped.double().mean() < 0.55


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


@pytest.mark.parametrize("name", ["bert", "t5"])
@pytest.mark.parametrize(
    "method",
    [DropConnect(p=0.2), SAM(rho=0.2), Compose(Mixout(p=0.5), HiddenCut(alpha=0.3))],
    ids=lambda method: method.name,
)
def test_replaced_weights_are_replaced_again_where_activations_are_checkpointed(method: Method, name: str) -> None:
    """And only then: T5 has blocks in blocks."""
    found = []
    for checkpointing in (False, True):
        model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
        if checkpointing:
            checkpoint_activations(model)
        stock = {module: dict(vars(module)) for module in model.modules()}
        with regularize(model, method) as reg:
            reg.loss(batch)
            moved(model)  # away from the weights that mixout mixes with
            reg.loss(batch).backward()
        assert all(vars(module) == own for module, own in stock.items())
        found.append(zoo.gradients(model))
    zoo.assert_same(found[0], found[1], 1e-9)


@pytest.mark.parametrize("name", ["t5", "deberta-v3"])
def test_the_gradient_is_that_at_the_perturbed_weights(name: str) -> None:
    """Also where embedding and output share their weights, or a module reads those of another (DeBERTa)."""
    attention = zoo.ZOO[name].implementations[0]
    model, batch = zoo.build(name, attention, dtype=torch.float64), zoo.batch_of(name)
    found, loss = gradients_of(model, SAM(rho=0.02), batch)
    expected, perturbed = perturbed_gradients(model, batch, 0.02)
    zoo.assert_same({k: v for k, v in found.items() if k in expected}, expected, 1e-6)
    torch.testing.assert_close(loss, perturbed)
    assert loss > model(**batch).loss


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


def reinitialized(model: Any, batch: zoo.Batch, method: LayerReinit, **options: Any) -> set[str]:
    """The names of the parameters that the first step changes before its pass."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with regularize(model, method, **options) as reg:
        reg.loss(batch)
    return {name for name, value in model.named_parameters() if not torch.equal(before[name], value)}


def test_the_top_layers_and_the_pooler_are_new() -> None:
    model, batch = zoo.build("bert", num_hidden_layers=3), zoo.batch_of("bert")
    found = reinitialized(model, batch, LayerReinit(layers=2))
    chosen = ("bert.encoder.layer.1.", "bert.encoder.layer.2.", "bert.pooler.")
    assert found == {name for name, _ in model.named_parameters() if name.startswith(chosen)}
    for name, value in model.named_parameters():
        if name in found:
            kind = "norm" if "LayerNorm.weight" in name else "bias" if name.endswith("bias") else "weight"
            if kind == "weight":
                assert value.std().item() == pytest.approx(0.02, rel=0.2)  # BERT's initializer_range
            else:
                assert (value == (1 if kind == "norm" else 0)).all()


def test_the_pooler_of_an_encoder_in_a_class_of_ones_own_is_new() -> None:
    class Own(BertPreTrainedModel):
        def __init__(self, encoder: Any) -> None:
            super().__init__(encoder.config)
            self.encoder = encoder

        def forward(self, labels: Any = None, **inputs: Any) -> Any:
            logits = self.encoder(**inputs).pooler_output
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    found = reinitialized(Own(zoo.build("bert").bert).train(), zoo.batch_of("bert"), LayerReinit(layers=1))
    assert "encoder.pooler.dense.weight" in found


def test_what_cannot_be_reinitialised_is_refused() -> None:
    with pytest.raises(AttendropError, match="layers=3 of a model with 2"):
        reinitialized(zoo.build("bert"), zoo.batch_of("bert"), LayerReinit(layers=3))
    with pytest.raises(AttendropError, match="shares its layers"):
        reinitialized(zoo.build("albert"), zoo.batch_of("albert"), LayerReinit())
    for other in (Mixout(), L2SP(), SuperT()):
        with pytest.raises(AttendropError, match="back to the pre-trained weights"):
            Compose(LayerReinit(), other)
