"""AttendOut's learner of layer effects: simulated rewards, planted ones in real runs, checkpoints."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.attend_out import run
from torch import Tensor

from attendrop import AttendOut, AttendropError, regularize
from attendrop.methods.attend_out.layer_effects import LayerEffects
from attendrop.methods.attend_out.periods import AttendOutState, _confidence

START, NOISE, RUNS = 0.1, 0.002, 200


def learnt(effects: list[float], seed: int, *, updates: int = 50, offset: float = 0.0) -> list[float]:
    """The probabilities after simulated periods, whose reward is the sum of the dropped layers' effects and noise."""
    chance, found = random.Random(seed), LayerEffects(len(effects))
    for _ in range(updates):
        actions = [float(chance.random() < p) for p in found.probabilities(START)]
        reward = sum(effect * action for effect, action in zip(effects, actions, strict=True))
        found.observe(actions, reward + chance.gauss(0, NOISE) + offset)
    return found.probabilities(START)


def test_harmful_layers_are_dropped_less_within_fifty_updates() -> None:
    found = [p for seed in range(RUNS) for p in learnt([-0.006] * 6, seed)]
    assert sum(p < START for p in found) >= 0.95 * len(found)


def test_a_layer_that_pays_is_dropped_and_the_others_are_not() -> None:
    found = [learnt([0, 0, 0.006, 0, 0, 0], seed) for seed in range(RUNS)]
    assert sum(p[2] >= 0.8 for p in found) >= 0.95 * RUNS
    assert sum(max(p[:2] + p[3:]) <= 0.3 for p in found) >= 0.95 * RUNS


def test_noise_moves_nothing() -> None:
    found = [p for seed in range(RUNS) for p in learnt([0.0] * 6, seed)]
    assert sum(abs(p - START) for p in found) / len(found) <= 0.03


@pytest.mark.parametrize("offset", [-0.5, 3.0])
def test_an_offset_of_all_rewards_changes_nothing(offset: float) -> None:
    assert learnt([-0.006, 0, 0.003], 0, offset=offset) == pytest.approx(learnt([-0.006, 0, 0.003], 0), abs=1e-6)


def test_the_scale_of_rewards_changes_nothing() -> None:
    rows = [([1.0, 0.0], 0.3), ([0.0, 1.0], -0.2), ([0.0, 0.0], 0.1), ([1.0, 1.0], 0.0), ([1.0, 0.0], 0.4)]
    one, other = LayerEffects(2), LayerEffects(2)
    for actions, reward in rows:
        one.observe(actions, reward)
        other.observe(actions, 1000 * reward)
    assert one.probabilities(START) == pytest.approx(other.probabilities(START))


def test_the_estimate_is_weighted_least_squares_with_a_prior() -> None:
    chance, found, rows = random.Random(0), LayerEffects(2), []
    for _ in range(12):
        actions = [float(chance.random() < 0.5) for _ in range(2)]
        rows.append((actions, 0.3 * actions[0] - 0.1 * actions[1] + chance.gauss(0, 0.05) + 7))
        found.observe(*rows[-1])
    weights = torch.tensor([0.5 ** ((11 - i) / 40) for i in range(12)], dtype=torch.float64)
    design = torch.tensor([[1.0, *actions] for actions, _ in rows], dtype=torch.float64)
    rewards = torch.tensor([reward for _, reward in rows], dtype=torch.float64)
    penalty = torch.diag(
        torch.tensor([0.0, 0.25, 0.25], dtype=torch.float64)
    )  # the prior's variance is 4 of the noise's
    solved = torch.linalg.solve(design.T @ (weights[:, None] * design) + penalty, design.T @ (weights * rewards))
    torch.testing.assert_close(found.estimate()[0], solved[1:])


def test_few_periods_tell_nothing() -> None:
    found = LayerEffects(2)
    for reward in (0.0, 5.0):
        found.observe([1.0, 0.0], reward)
    assert found.probabilities(START) == pytest.approx([START, START])


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dropping layer 1 pay: rewards are planted, with noise, in place of scores."""
    chance = random.Random(5)

    def scores(self: Any, players: Any, seed: int) -> tuple[Tensor, Tensor]:
        pays = players.actions()["encoder.1"]
        gain = torch.tensor([(0.01 if pays else 0.0) + chance.gauss(0, 0.004) for _ in self.period])
        return gain.double(), torch.zeros(len(gain)).double()

    monkeypatch.setattr(AttendOutState, "_scores", scores)


def test_a_planted_reward_is_learnt_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    seen: list[dict[str, float]] = []
    method = AttendOut(learner="effects", init_drop_prob=0.1, dropout_step=1)
    run(method, 60, model=zoo.build("bert", num_hidden_layers=4), watch=lambda reg: seen.append(reg.metrics()))
    last = {key: value for key, value in seen[-1].items() if "drop_probability" in key}
    assert last.pop("attendout/drop_probability/encoder.1") >= 0.8
    assert max(last.values()) <= 0.3
    assert seen[-1]["attendout/effect/encoder.1"] == pytest.approx(0.01, abs=0.004)


def test_a_layer_is_constant_in_all_passes_of_a_period() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = AttendOut(learner="effects", init_drop_prob=0.5, dropout_step=3)
    with regularize(model, method, optimizer=optimizer, reward_data=[batch]) as reg:
        dropped = []
        for _ in range(12):
            reg.loss(batch).backward()
            optimizer.step()
            dropped.append(reg.logs()["attendout/dropped/encoder.0"])
            reg.step()
    periods = [dropped[i : i + 3] for i in range(0, 12, 3)]
    assert all(len(set(period)) == 1 for period in periods)
    assert len({period[0] for period in periods}) == 2


def test_it_resumes_within_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    method = AttendOut(learner="effects", init_drop_prob=0.3, dropout_step=3)
    states: list[Any] = []

    def keep(reg: Any) -> None:
        states.append((reg.state_dict(), reg.method_state_dicts()))

    run(method, 8, watch=keep)
    (_, (whole, _)), (_, (again, _)) = states[-1], states[3]
    effects = LayerEffects(2)
    effects.load_state_dict(again["effects"])
    assert again["periods"] == 1 and whole["periods"] == 2
    assert effects.weight == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gaps", "expected"), [([1.0, 1.0], 1.0), ([0.0, 0.0], 0.5), ([-0.1, 0.1], 0.5), ([2.0, 4.0], 0.9986501)]
)
def test_the_survivor_is_as_likely_as_it_is_surely_better(gaps: list[float], expected: float) -> None:
    assert _confidence(torch.tensor(gaps, dtype=torch.float64)) == pytest.approx(expected, abs=1e-6)


def test_it_drops_whole_layers() -> None:
    with pytest.raises(AttendropError, match="drops whole layers, not granularity='score'"):
        AttendOut(learner="effects", granularity="score")
