"""Attn.LayerDrop: which layers are chosen, and what a chosen layer computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from torch import Tensor

from attendrop import AttendropError, AttentionLayerDrop, regularize
from attendrop.keyed_random import SampleKey
from attendrop.methods.core.context import Processes
from attendrop.methods.core.registry import build_method
from attendrop.training.regularization import Regularization

LENGTHS = (8, 5, 3, 6)


def at_work(
    model: Any, method: AttentionLayerDrop, *, step: int = 0, seed: int = 0, rank: int = 0, world: int = 1
) -> Any:
    training = zoo.training(model, Processes(rank, world), seed=seed)
    regularization = Regularization(training, method)
    regularization.begin_step(step)
    return regularization


def chosen(reg: Regularization, batch: zoo.Batch) -> dict[str, bool]:
    """Which layers one pass chose, as the logs say."""
    reg.loss(batch)
    prefix = "attention_layerdrop/dropped/"
    return {k.removeprefix(prefix): bool(v) for k, v in reg.logs().items() if k.startswith(prefix)}


# --- What is chosen


def test_a_number_for_a_step_is_uniform() -> None:
    sampled = torch.tensor([SampleKey(0, step, 0, 1).uniform(f"encoder.{i}") for step in range(500) for i in range(4)])
    assert ((sampled >= 0) & (sampled < 1)).all()
    for p in (0.1, 0.5, 0.9):
        assert (sampled < p).double().mean().item() == pytest.approx(p, abs=0.03)  # 3 standard deviations


@pytest.mark.parametrize("other", [SampleKey(1, 2, 0, 4), SampleKey(0, 3, 0, 4)], ids=["seed", "step"])
def test_a_number_for_a_step_depends_on_seed_and_step_alone(other: SampleKey) -> None:
    key = SampleKey(0, 2, 0, 4)
    assert key.uniform("encoder.0") == SampleKey(0, 2, 12, 3).uniform("encoder.0")
    assert key.uniform("encoder.0") not in (key.uniform("encoder.1"), other.uniform("encoder.0"))


def test_the_share_of_layers_that_is_dropped() -> None:
    model = zoo.build("bert", num_hidden_layers=4)
    batch = zoo.batch_of("bert", (3,))
    with regularize(model, AttentionLayerDrop(p=0.2)) as reg:
        for _ in range(100):
            reg.loss(batch)
            reg.step()
        logs = reg.logs()
    layers = [logs[f"attention_layerdrop/dropped/encoder.{i}"] for i in range(4)]
    assert logs["attention_layerdrop/dropped"] == pytest.approx(sum(layers) / 4)
    assert sum(layers) / 4 == pytest.approx(0.2, abs=0.06)
    assert len(set(layers)) > 1


def test_the_global_batch_shares_a_draw_however_it_is_cut() -> None:
    model, rows = zoo.build("bert", num_hidden_layers=6), zoo.rows("bert", LENGTHS)
    method = AttentionLayerDrop(p=0.5)
    for step in range(3):
        found = []
        for parts, extra, rank, world in (
            ([rows], 0, 0, 1), ([rows[:1], rows[1:]], 0, 0, 1), ([rows], 5, 0, 1), ([rows[2:]], 0, 1, 2)
        ):  # fmt: skip
            reg = at_work(model, method, step=step, rank=rank, world=world)
            found += [chosen(reg, zoo.collate(part, extra=extra)) for part in parts]
            reg.close()
        assert all(one == found[0] for one in found)
        assert 0 < sum(found[0].values()) < 6


@pytest.mark.parametrize(
    ("layers", "expected"),
    [("all", {"encoder.0", "encoder.1", "decoder.0", "decoder.1", "cross.0", "cross.1"}), ("cross:1", {"cross.1"}),
     ([0], {"encoder.0", "decoder.0", "cross.0"})],
)  # fmt: skip
def test_layers(layers: Any, expected: set[str]) -> None:
    reg = at_work(zoo.build("bart"), AttentionLayerDrop(p=1, layers=layers))
    found = chosen(reg, zoo.batch_of("bart"))
    reg.close()
    assert found == dict.fromkeys(expected, True)


# --- What a chosen layer computes


@pytest.mark.parametrize("name", ["bert", "llama-class", "bart-class"])
@pytest.mark.parametrize("step", range(3))
def test_chosen_layers_attend_equally_to_valid_keys(name: str, step: int) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name)
    reg = at_work(model, AttentionLayerDrop(p=0.5), step=step)
    loss = reg.loss(batch)
    logs = reg.logs()
    attention_layers = reg._adapter.attention_layers
    reg.close()
    drops = [
        torch.full((1, 1, 1, 1), bool(logs[f"attention_layerdrop/dropped/{layer.key}"])) for layer in attention_layers
    ]
    with EagerAttention(drops).in_place_of_stock(model) as oracle:
        torch.testing.assert_close(loss, model(**batch).loss)
    assert len(oracle.weights) == len(attention_layers)


def test_the_layer_not_chosen_is_the_models_own() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    reg = at_work(model, AttentionLayerDrop(p=1e-6))
    assert torch.equal(reg.loss(batch), model(**batch).loss)
    reg.close()


@pytest.mark.parametrize("p", [1, 1e-6])
def test_the_models_own_dropout_stays_and_is_drawn_alike(p: float) -> None:
    model, batch = zoo.build("bert", dropout=0.3), zoo.batch_of("bert")
    torch.manual_seed(5)
    plain: Tensor = model(**batch).loss
    after = torch.rand(1)
    torch.manual_seed(5)
    reg = at_work(model, AttentionLayerDrop(p=p))
    loss = reg.loss(batch)
    reg.close()
    assert torch.equal(torch.rand(1), after)
    assert torch.equal(loss, plain) == (p != 1)


def test_gradients_reach_values_and_not_scores() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    reg = at_work(model, AttentionLayerDrop(p=1))
    reg.loss(batch).backward()
    reg.close()
    attention = model.bert.encoder.layer[0].attention.self
    assert attention.value.weight.grad.abs().max() > 0
    assert attention.query.weight.grad is None or attention.query.weight.grad.abs().max() == 0


def test_activation_checkpointing_counts_and_drops_once() -> None:
    found = []
    for checkpointing in (False, True):
        model = zoo.build("bert")
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        reg = at_work(model, AttentionLayerDrop(p=0.3))
        reg.loss(zoo.batch_of("bert")).backward()
        found.append((reg.state_dict()["statistics"]["counts"], zoo.gradients(model)))
        reg.close()
    assert found[0][0] == found[1][0]
    zoo.assert_same(found[0][1], found[1][1], 1e-6)


# --- Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0}, r"p=0 must be above 0 and at most 1"),
        ({"p": 1.1}, r"p=1\.1 must be above 0 and at most 1"),
        ({"p": [0.2]}, r"p=\[0\.2\] is not a number"),
        ({"p": True}, r"p=True is not a number"),
        ({"layers": "x"}, r"layers='x' is not a selection"),
        ({"layers": 1.5}, r"layers=1\.5 is not a selection"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method("attention-layerdrop", options)


def test_options() -> None:
    assert AttentionLayerDrop().options() == {"p": 0.2, "layers": "all"}
    assert build_method("attention-layerdrop", {"p": "0.3", "layers": "0,2"}) == AttentionLayerDrop(0.3, "0,2")
