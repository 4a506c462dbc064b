"""Layer re-initialisation: which weights are new, when, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, zoo
from safetensors.torch import load_file

from attendrop import L2SP, AttendropError, ChildTuning, Compose, LayerReinit, Mixout, SuperT, regularize
from attendrop.runs.train import train


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


def test_the_pooler_can_be_kept() -> None:
    model = zoo.build("bert")
    found = reinitialized(model, zoo.batch_of("bert"), LayerReinit(pooler=False))
    assert found and all(name.startswith("bert.encoder.layer.1.") for name in found)


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("bart-class", "model.decoder.layers.1."),
        ("gpt2-class", "transformer.h.1."),
        ("t5", "decoder.block.1."),
        ("vit", "vit.layers.1."),
    ],
)
def test_other_models(name: str, top: str) -> None:
    found = reinitialized(zoo.build(name), zoo.batch_of(name), LayerReinit(pooler=False))
    assert found and all(each.startswith(top) for each in found)


def test_the_weights_depend_on_the_seed_alone() -> None:
    models = [zoo.build("bert") for _ in range(4)]
    for number, (model, seed) in enumerate(zip(models, (0, 0, 1, 0), strict=True)):
        torch.manual_seed(number)
        state = torch.get_rng_state()
        if number == 3:
            LayerReinit().prepare(model, seed)
            assert torch.equal(torch.get_rng_state(), state)
        reinitialized(model, zoo.batch_of("bert"), LayerReinit(), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)  # the model has no dropout
    zoo.assert_same(models[0].state_dict(), models[1].state_dict())
    zoo.assert_same(models[0].state_dict(), models[3].state_dict())
    assert not torch.equal(models[0].bert.pooler.dense.weight, models[2].bert.pooler.dense.weight)


def test_only_the_first_step_reinitialises() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with regularize(model, LayerReinit()) as reg:
        for _ in range(2):
            reg.loss(batch).backward()
        optimizer.step()
        reg.step()
        before = model.bert.pooler.dense.weight.detach().clone()
        reg.loss(batch)
        assert torch.equal(before, model.bert.pooler.dense.weight)
        assert reg.logs()["layer_reinit/active"] == 1


def test_fisher_information_is_that_of_the_new_weights() -> None:
    found = []
    for method in (ChildTuning(variant="D"), Compose(ChildTuning(variant="D"), LayerReinit())):
        model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
        if not found:
            LayerReinit().prepare(model, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with regularize(model, method, optimizer=optimizer, train_data=[batch]) as reg:
            reg.loss(batch)
            found.append(reg.method_state.tensors()["fisher_mask"])
    zoo.assert_same(*found)


def test_what_cannot_be_reinitialised_is_refused() -> None:
    with pytest.raises(AttendropError, match="layers=3 of a model with 2"):
        reinitialized(zoo.build("bert"), zoo.batch_of("bert"), LayerReinit(layers=3))
    with pytest.raises(AttendropError, match="shares its layers"):
        reinitialized(zoo.build("albert"), zoo.batch_of("albert"), LayerReinit())
    for other in (Mixout(), L2SP(), SuperT()):
        with pytest.raises(AttendropError, match="back to the pre-trained weights"):
            Compose(LayerReinit(), other)


def test_the_head_starts_from_the_features_of_the_new_layers(tmp_path: Path) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    found = []
    for method in ("finetune", "layer-reinit"):
        config = tiny.config(tmp_path, method, method=method, pooling="mean", head_start="frozen", max_steps=0)
        assert train(config)["head_start"]["kind"] == "logistic regression"
        found.append(load_file(tmp_path / method / "model.safetensors"))
    changed = {name for name in found[0] if not torch.equal(found[0][name], found[1][name])}
    assert {name.partition(".")[0] for name in changed} == {"bert", "mean_classifier"}
    assert all("layer.1." in name for name in changed if name.startswith("bert."))
