"""Attn.LayerDrop: which layers are chosen, and what a chosen layer computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from torch import Tensor

from attendrop import AttentionLayerDrop
from attendrop.methods.core.context import Processes
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


# --- What a chosen layer computes


@pytest.mark.parametrize(("name", "step"), [("bert", 0), ("bert", 2), ("llama-class", 1), ("bart-class", 2)])
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
