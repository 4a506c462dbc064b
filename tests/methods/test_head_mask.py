"""HeadMask: how many heads are masked, which, and that nothing is rescaled."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from helpers.oracles import gated
from torch import Tensor

from attendrop import AttendropError, HeadMask, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.head_importance import head_importance


def masked(method: HeadMask, batch: int, heads: int, importance: Tensor | None = None, layer: int = 0) -> Tensor:
    """Which heads of which sequence are masked, ``(batch, heads)``."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = {f"encoder.{layer}": importance}
        monkeypatch.setattr("attendrop.methods.head_dropout.head_importance", lambda *_: found)
        output = edit_of(method, (batch, heads, 3, 3), layer=layer).output
    assert output is not None
    after = output(torch.ones(batch, 3, heads, 2))
    assert set(after.unique().tolist()) <= {0.0, 1.0}  # nothing is rescaled
    return after[:, 0, :, 0] == 0


# --- How many


@pytest.mark.parametrize(
    ("fraction", "heads", "expected"),
    [(0.125, 8, 1), (0.125, 12, 1), (0.125, 16, 2), (0.3, 10, 3), (1 - 0.9, 10, 1), (0.5, 3, 1), (0.01, 12, 1),
     (0.99, 4, 3), (1 - 1e-9, 4, 3), (0.5, 1, 0)],
)  # fmt: skip
def test_a_fraction_of_the_heads(fraction: float, heads: int, expected: int) -> None:
    method = HeadMask(fraction=fraction)
    assert method.count(heads) == expected
    assert masked(method, 50, heads).sum(1).eq(expected).all()


# --- Which


def test_random_heads_are_equally_often_masked() -> None:
    found = masked(HeadMask(fraction=0.3), 6000, 10).double()
    assert found.mean(0).sub(0.3).abs().max() < 0.025  # 4 standard deviations
    # Two of them together, without replacement: 3 * 2 / (10 * 9).
    pairs = found.T @ found / 6000
    assert (pairs[~torch.eye(10, dtype=torch.bool)] - 6 / 90).abs().max() < 0.015
    assert not torch.equal(found, masked(HeadMask(fraction=0.3), 6000, 10, layer=1).double())


def test_the_most_important_heads_are_masked() -> None:
    importance = torch.tensor([[0.1, 0.4, 0.3, 0.2], [5.0, 1.0, 2.0, 6.0], [0.0, 0.0, 0.0, 0.0]])
    found = masked(HeadMask(fraction=0.5, select_by="importance"), 3, 4, importance)
    assert found.tolist() == [
        [False, True, True, False],
        [True, False, False, True],
        [True, True, False, False],  # no signal: two of them all the same
    ]


@pytest.mark.parametrize("name", ["bert", "bert-choice", "llama-class", "bart", "albert"])
def test_importance_is_the_effect_of_a_gate_on_the_loss(name: str) -> None:
    """Against the difference quotient of one gate after the other."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, (5, 3))
    adapter = ModelAdapter(model)
    adapter.attach()
    attention_layers = adapter.trace(batch)
    found = head_importance(adapter, batch, attention_layers)
    adapter.detach()
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


@pytest.mark.parametrize("select_by", ["random", "importance"])
def test_the_loss_is_that_of_a_model_without_these_heads(select_by: str) -> None:
    model = zoo.build("bert", dtype=torch.float64, num_attention_heads=4)
    batch = zoo.batch_of("bert", (8, 5, 3))
    method = HeadMask(fraction=0.5, select_by=select_by, layers="first")
    with regularize(model, method) as reg:
        loss, logs = reg.loss(batch), reg.logs()
        importance = head_importance(reg._adapter, batch, reg._adapter.attention_layers)["encoder.0"]
    assert logs["headmask/dropped"] == 0.5
    if select_by == "random":
        drop = masked(method, 3, 4)
    else:
        order = [sorted(range(4), key=lambda h: -float(importance[row, h]))[:2] for row in range(3)]
        drop = torch.tensor([[head in first for head in range(4)] for first in order])
    with gated(model.bert.encoder.layer[0].attention.output.dense, ~drop):
        torch.testing.assert_close(model(**batch).loss, loss)


def test_importance_needs_labels() -> None:
    batch = zoo.batch_of("bert", labels=False)
    with (
        regularize(zoo.build("bert"), HeadMask(select_by="importance")) as reg,
        pytest.raises(AttendropError, match=r"for the loss, and the batch has no 'labels'"),
    ):
        reg.loss(batch)
