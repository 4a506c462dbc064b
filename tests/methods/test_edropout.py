"""EDropout: the states, their energies, and how they evolve."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import gated
from torch import Tensor

from attendrop import AttendOut, AttendropError, Compose, EDropout, SuperT
from attendrop.methods.edropout import _Population
from attendrop.randomness.keyed_random import SampleKey
from attendrop.reports.drops import DropMoment, Learnt, record_drops
from attendrop.training.regularization import Regularization

KEY = SampleKey(0, 0, 0, 3)


def loss_with(model: Any, batch: zoo.Batch, drops: list[list[bool]]) -> Tensor:
    """The loss of the stock model without some heads, by layer; the others are scaled up."""
    with ExitStack() as stack:
        for layer, drop in zip(model.bert.encoder.layer, drops, strict=True):
            kept = len(drop) - sum(drop)
            gates = [0.0 if each else len(drop) / kept for each in drop]
            stack.enter_context(gated(layer.attention.output.dense, [gates] * len(batch["input_ids"])))
        loss: Tensor = model(**batch).loss
        return loss


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
    return _Population(EDropout(**options), zoo.training(zoo.build("bert")))


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


def test_how_often_elements_change() -> None:
    rare = population_of(p=0.5, population=6, mutation=1e-4, crossover=0.3)
    rare.dropped(KEY, "encoder.0", 4000, 0)
    states, challengers = rare.states["encoder.0"], rare.challengers["encoder.0"]
    assert states.float().mean().item() == pytest.approx(0.5, abs=0.01)
    # Elements of another state, which are equal half of the time, come in with the probability of crossover.
    assert (states != challengers).float().mean().item() == pytest.approx(0.15, abs=0.01)


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
        found = record_drops(
            model, EDropout(p=0.5), zoo.batch_of("bert"), DropMoment(step=step), learnt=Learnt({"edropout": learnt})
        )
        for shown in found:
            drops = [drop.dropped.flatten(2).any(-1).all(0) for drop in shown.layers.values()]
            assert [drop.nonzero().flatten().tolist() for drop in drops] == list(learnt.values())


def test_what_is_refused() -> None:
    with pytest.raises(AttendropError, match="population=3"):
        EDropout(population=3)
    for other, reason in ((SuperT(), "but the states are not"), (AttendOut(), "two are trained")):
        with pytest.raises(AttendropError, match=reason):
            Compose(EDropout(), other)
