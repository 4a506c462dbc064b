"""DropHead, and the importance of heads: which are dropped, and how the others are rescaled."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from helpers import zoo
from helpers.oracles import gated

from attendrop import DropHead, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import head_importance
from attendrop.randomness.keyed_random import SampleKey, sample_mask

CONSTANT = DropHead(p_start=0.5, schedule="constant")


@pytest.mark.parametrize(("progress", "expected"), [(0, 0.4), (0.1, 0.2), (0.2, 0), (0.6, 0.1), (1, 0.2)])
def test_the_v(progress: float, expected: float) -> None:
    assert DropHead(p_start=0.4, p_end=0.2, turn=0.2).probability_at(progress) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "heads", "step"), [("bert", 2, 0), ("llama-class", 4, 2)])
def test_the_loss_is_that_of_the_formula(name: str, heads: int, step: int) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, [8, 5, 3, 4])
    with regularize(model, CONSTANT) as reg:
        reg.begin_step(step)
        loss = reg.loss(batch)
        attention_layers, blocks = reg.adapter.attention_layers, reg.adapter.blocks
    with ExitStack() as stack:
        for layer, block in zip(attention_layers, blocks, strict=True):
            shape, origins = (4, heads, 1, 1), torch.zeros(4, 2, dtype=torch.long)
            drop = sample_mask(0.5, SampleKey(0, step, 0, 4), layer.key, shape, origins, torch.device("cpu"))[
                :, :, 0, 0
            ].tolist()
            gates = [[0 if gone else heads / own.count(False) for gone in own] for own in drop]
            stack.enter_context(gated(block.output_projections[layer.key], gates))
        torch.testing.assert_close(model(**batch).loss, loss)


@pytest.mark.parametrize("name", ["bert-choice", "llama-class", "albert"])
def test_importance_is_the_effect_of_a_gate_on_the_loss(name: str) -> None:
    """Against the difference quotient of one gate after the other."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, (5, 3))
    with ModelAdapter(model) as adapter:
        attention_layers = adapter.trace(batch)
        found = head_importance(adapter, batch, attention_layers)
    assert [*found] == [layer.key for layer in attention_layers]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for layer in attention_layers[:: max(1, len(attention_layers) - 1)]:
        visit = layer.name.partition("#")[2]  # of a module that several layers share
        block = next(b for b in adapter.blocks if layer.key in b.output_projections)
        for row, head in ((0, 0), (1, -1)):
            losses = []
            for gate in (1.001, 0.999):
                gates = torch.ones(found[layer.key].shape)
                gates[row, head] = gate
                with gated(block.output_projections[layer.key], gates, int(visit or 0)):
                    losses.append(model(**batch).loss.item())
            # Some models compute their norms in single precision.
            quotient = abs(losses[0] - losses[1]) / 0.002
            assert quotient == pytest.approx(found[layer.key][row, head].item(), rel=1e-3, abs=1e-4)
