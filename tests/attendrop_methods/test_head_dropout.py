"""HeadMask, EDropout, Alpha Dropout: which heads and units are dropped, and how the others are rescaled."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from helpers.oracles import gated
from torch import Tensor

from attendrop import regularize
from attendrop.attribution.gradient import head_importance
from attendrop.randomness.keyed_random import SampleKey
from attendrop.reports.attention_maps import Drops, record_drops
from attendrop.training.regularization import Regularization
from attendrop_methods import AlphaDropout, EDropout, HeadMask
from attendrop_methods.head_dropout import _EDropoutState, affine


def masked(method: HeadMask, batch: int, heads: int, importance: Tensor | None = None, layer: int = 0) -> Tensor:
    """Which heads of which sequence are masked, ``(batch, heads)``."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = {f"encoder.{layer}": importance}
        monkeypatch.setattr("attendrop_methods.head_dropout.head_importance", lambda *_: found)
        output = edit_of(method, (batch, heads, 3, 3), layer=layer).output
    after = output(torch.ones(batch, 3, heads, 2))
    assert set(after.unique().tolist()) <= {0.0, 1.0}  # nothing is rescaled
    return after[:, 0, :, 0] == 0


@pytest.mark.parametrize(
    ("fraction", "heads", "expected"),
    [(0.125, 16, 2), (1 - 0.9, 10, 1), (0.01, 12, 1), (0.99, 4, 3), (0.5, 1, 0)],
)  # fmt: skip
def test_a_fraction_of_the_heads(fraction: float, heads: int, expected: int) -> None:
    method = HeadMask(fraction=fraction)
    assert method.count(heads) == expected
    assert masked(method, 50, heads).sum(1).eq(expected).all()


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


def test_the_loss_is_that_of_a_model_without_these_heads() -> None:
    model = zoo.build("bert", dtype=torch.float64, num_attention_heads=4)
    batch = zoo.batch_of("bert", (8, 5, 3))
    with regularize(model, HeadMask(fraction=0.5, select_by="importance", layers="first")) as reg:
        loss, logs = reg.loss(batch), reg.logs()
        importance = head_importance(reg.adapter, batch, reg.adapter.attention_layers)["encoder.0"]
    assert logs["headmask/dropped"] == 0.5
    order = [sorted(range(4), key=lambda h: -float(importance[row, h]))[:2] for row in range(3)]
    drop = torch.tensor([[head in first for head in range(4)] for first in order])
    with gated(model.bert.encoder.layer[0].attention.output.dense, ~drop):
        torch.testing.assert_close(model(**batch).loss, loss)


ALPHA = -1.7580993408473766


def acted(p: float, inputs: Tensor) -> Tensor:
    """What becomes of hidden units ``(batch, query, heads, dim)`` of a layer."""
    batch, queries, heads, _ = inputs.shape
    edit = edit_of(AlphaDropout(p=p), (batch, heads, queries, queries))
    found = edit.output(inputs)
    assert torch.equal(edit.output(inputs), found)  # under activation checkpointing it is called again
    return found


def test_each_unit_is_kept_or_saturated_and_then_transformed() -> None:
    p = 0.1
    inputs = torch.randn(2, 6, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = 1 - p
    a = 1 / math.sqrt(q + ALPHA**2 * q * (1 - q))
    b = -a * (1 - q) * ALPHA
    dropped = 0
    for before, after in zip(inputs.flatten().tolist(), acted(p, inputs).flatten().tolist(), strict=True):
        if math.isclose(after, a * ALPHA + b, abs_tol=1e-9):
            dropped += 1
        else:
            assert math.isclose(after, a * before + b, abs_tol=1e-9)
    assert dropped / inputs.numel() == pytest.approx(p, abs=4 * math.sqrt(p * q / inputs.numel()))
    assert affine(p) == pytest.approx((a, b))


KEY = SampleKey(0, 0, 0, 3)


def loss_with(model: Any, batch: zoo.Batch, drops: list[list[bool]]) -> Tensor:
    """The loss of the stock model without some heads, by layer; the others are scaled up."""
    with ExitStack() as stack:
        for layer, drop in zip(model.bert.encoder.layer, drops, strict=True):
            kept = len(drop) - sum(drop)
            gates = [0.0 if each else len(drop) / kept for each in drop]
            stack.enter_context(gated(layer.attention.output.dense, [gates] * len(batch["input_ids"])))
        return model(**batch).loss


def state(population: Any, number: int) -> list[list[bool]]:
    return [population.dropped(KEY, f"encoder.{layer}", 4, number).tolist() for layer in range(2)]


def test_a_step() -> None:
    model = zoo.build("bert", dtype=torch.float64, num_attention_heads=4)
    batch = zoo.batch_of("bert")
    reg = Regularization(zoo.training(model), EDropout(p=0.4, population=5))
    loss = reg.loss(batch)
    population: Any = reg.method_state
    states = [state(population, number) for number in range(10)]
    torch.testing.assert_close(loss, loss_with(model, batch, states[0]))
    energies = [loss_with(model, batch, each).item() for each in states]
    assert population.energies.tolist() == pytest.approx(energies)
    reg.step()
    survivors = [one if energies[i] <= energies[i + 5] else states[i + 5] for i, one in enumerate(states[:5])]
    lowest = [min(energies[i], energies[i + 5]) for i in range(5)]
    assert survivors != states[:5]
    assert [[each[i].tolist() for each in population.states.values()] for i in range(5)] == survivors
    assert population.best == min(range(5), key=lambda i: lowest[i])
    torch.testing.assert_close(reg.loss(batch), loss_with(model, batch, survivors[population.best]))
    report = population.final_report([])["edropout"]
    assert report == {
        f"encoder.{layer}": [head for head, each in enumerate(drop) if each]
        for layer, drop in enumerate(survivors[population.best])
    }
    reg.close()


def population_of(**options: Any) -> Any:
    return _EDropoutState(EDropout(**options), zoo.training(zoo.build("bert")))


def test_challengers_mutate_one_of_three_other_states() -> None:
    """Without chance in mutation and crossover: ``a``, changed where ``b`` and ``c`` differ."""
    population = population_of(p=0.5, population=6, mutation=1.0, crossover=1.0)
    for number in range(6):
        population.dropped(KEY, "encoder.0", 40, number)
    states, challengers = population.states["encoder.0"], population.challengers["encoder.0"]
    for number, challenger in enumerate(challengers):
        others = [other for other in range(6) if other != number]
        made = [
            states[a] ^ (states[b] != states[c]) for a in others for b in others for c in others if len({a, b, c}) == 3
        ]
        assert any(torch.equal(challenger, each) for each in made)
        assert not torch.equal(challenger, states[number])


def test_an_energy_that_is_not_finite_loses() -> None:
    population = population_of()
    population.states = {"encoder.0": torch.tensor([[False]] * 4)}
    population.challengers = {"encoder.0": torch.tensor([[True]] * 4)}
    population.energies = torch.tensor([1.0, torch.nan, 0.5, 1.0, torch.nan, 0.4, torch.nan, 2.0])
    population.after_step(1)
    assert population.states["encoder.0"].flatten().tolist() == [False, True, False, False]
    assert population.best == 1


def test_what_a_finished_run_drops_is_shown() -> None:
    """In all layers, and at any step: the heads that its report names."""
    model = zoo.build("bert", num_attention_heads=4)
    learnt = {"encoder.0": [1, 2], "encoder.1": []}
    for step in range(3):
        drops = Drops(EDropout(p=0.5), step=step, learnt=({"edropout": learnt}, {}))
        found = record_drops(model, drops, zoo.batch_of("bert"))
        drops = [drop.dropped.flatten(2).any(-1).all(0) for drop in found.values()]
        assert [drop.nonzero().flatten().tolist() for drop in drops] == list(learnt.values())
