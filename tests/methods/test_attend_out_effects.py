"""AttendOut's learner of layer effects: simulated rewards, planted ones in real runs, checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.attend_out import run
from torch import Tensor

from attendrop import AttendOut, AttendropError, regularize
from attendrop.methods.attend_out.effects import LayerEffects, Period, noise_band
from attendrop.methods.attend_out.periods import AttendOutState, _confidence

START, NOISE, RUNS = 0.1, 0.002, 200
Simulated = Callable[..., Tensor]


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    """The probabilities of 200 runs after simulated periods: rewards are the dropped layers' effects and noise."""

    @cache
    def probabilities(*effects: float, updates: int = 50, offset: float = 0.0, constant: bool = False) -> Tensor:
        """``constant``: rewards have noise also where nothing is dropped."""
        generator, learner = torch.Generator().manual_seed(0), LayerEffects(len(effects), (RUNS,))
        for _ in range(updates):
            actions = (torch.rand(RUNS, len(effects), generator=generator) < learner.probabilities(START)).double()
            noise = NOISE * torch.randn(RUNS, generator=generator, dtype=torch.float64)
            if not constant:
                noise = noise * actions.any(-1)
            learner.observe(actions, actions @ torch.tensor(effects).double() + noise + offset)
        return learner.probabilities(START)

    return probabilities


@pytest.mark.parametrize("constant", [False, True])
def test_harmful_layers_are_dropped_less_within_fifty_updates(simulated: Simulated, constant: bool) -> None:
    assert (simulated(*[-0.006] * 6, constant=constant) < START).double().mean() >= 0.95


@pytest.mark.parametrize("constant", [False, True])
def test_a_layer_that_pays_is_dropped_and_the_others_are_not(simulated: Simulated, constant: bool) -> None:
    found = simulated(0, 0, 0.006, 0, 0, 0, updates=60, constant=constant)
    others = found[:, [0, 1, 3, 4, 5]]
    assert (found[:, 2] >= 0.8).double().mean() >= 0.95
    assert (others.amax(-1) <= 0.3).double().mean() >= 0.95


@pytest.mark.parametrize("constant", [False, True])
def test_noise_moves_nothing(simulated: Simulated, constant: bool) -> None:
    moved = simulated(*[0.0] * 6, constant=constant) - START
    assert moved.abs().mean() <= 0.02
    assert (moved > 0.2).double().mean() <= 0.006


@pytest.mark.parametrize("offset", [-0.5, 3.0])
def test_an_offset_of_all_rewards_changes_nothing(simulated: Simulated, offset: float) -> None:
    torch.testing.assert_close(
        simulated(-0.006, 0, 0.003, offset=offset), simulated(-0.006, 0, 0.003), rtol=0, atol=1e-6
    )


def learner_of(rows: Sequence[tuple[Sequence[float], float]], batch: Sequence[int] = ()) -> LayerEffects:
    learner = LayerEffects(len(rows[0][0]), batch)
    for actions, reward in rows:
        learner.observe(torch.tensor(actions).expand(*batch, -1), torch.tensor(reward).double().expand(batch))
    return learner


ROWS = [([1.0, 0.0], 0.3), ([0.0, 1.0], -0.2), ([0.0, 0.0], 0.1), ([1.0, 1.0], 0.0), ([1.0, 0.0], 0.4)]


def test_learners_of_a_batch_are_independent() -> None:
    alone, both = learner_of(ROWS), LayerEffects(2, (2,))
    for actions, reward in ROWS:
        both.observe(torch.tensor([actions, [1.0, 0.0]]), torch.tensor([reward, -reward]).double())
    torch.testing.assert_close(both.evidence()[0], alone.evidence())
    torch.testing.assert_close(both.estimate()[1][0], alone.estimate()[1])


def test_the_estimate_is_weighted_least_squares_with_a_prior() -> None:
    """Periods weigh as much as they are long, and half as much after 40 whole periods."""
    chance, rows, learner, lengths = random.Random(0), [], LayerEffects(2), [1.0] * 6 + [0.2] * 6
    for length in lengths:
        actions = [float(chance.random() < 0.5) for _ in range(2)]
        rows.append((actions, 0.3 * actions[0] - 0.1 * actions[1] + chance.gauss(0, 0.05) + 7))
        learner.observe(torch.tensor(actions), torch.tensor(rows[-1][1]).double(), length)
    passed = [sum(lengths[i + 1 :]) for i in range(12)]
    weights = torch.tensor(lengths).double() * 0.5 ** (torch.tensor(passed).double() / 40)
    design = torch.tensor([[1.0, *actions] for actions, _ in rows], dtype=torch.float64)
    rewards = torch.tensor([reward for _, reward in rows], dtype=torch.float64)
    penalty = torch.diag(torch.tensor([0.0, 0.25, 0.25]).double())  # the prior's variance is 4 of the noise's
    solved = torch.linalg.solve(design.T @ (weights[:, None] * design) + penalty, design.T @ (weights * rewards))
    torch.testing.assert_close(learner.estimate()[0], solved[1:])


def test_few_periods_tell_nothing() -> None:
    assert learner_of([([1.0, 0.0], 0.0), ([1.0, 0.0], 5.0)]).evidence().tolist() == [0, 0]
    assert learner_of([([1.0, 0.0], 0.3), *[([0.0, 0.0], 0.0)] * 9]).evidence().tolist() == [0, 0]


def test_the_noise_is_that_of_periods_with_a_dropped_layer() -> None:
    """Periods without one, in which both networks are the same, do not make it smaller."""
    chance = random.Random(0)
    noisy = [([float(i % 2)], chance.gauss(0, 1)) for i in range(60)]
    quiet = [(actions, reward * actions[0]) for actions, reward in noisy]
    _, errors = zip(*[learner_of(rows).estimate() for rows in (quiet, noisy)], strict=True)
    assert float(errors[0]) == pytest.approx(float(errors[1]), rel=0.1)


# --- The control


def periods_of(effect: float, seed: int, count: int = 60) -> list[Period]:
    """The periods of a simulated run of three layers; dropping the second changes the reward by ``effect``."""
    chance, learner, periods = random.Random(seed), LayerEffects(3), []
    for _ in range(count):
        actions = [float(chance.random() < p) for p in learner.probabilities(START).tolist()]
        reward = effect * actions[1] + chance.gauss(0, NOISE) * any(actions)
        learner.observe(torch.tensor(actions), torch.tensor(reward).double())
        periods.append(Period(tuple(actions), reward, 1.0))
    return periods


def told(periods: list[Period]) -> list[bool]:
    learner = learner_of([(period.actions, period.reward) for period in periods])
    low, high = noise_band(periods, START, 0).evidence
    return ((learner.evidence() < low) | (learner.evidence() > high)).tolist()


def test_an_effect_is_told_from_noise() -> None:
    assert told(periods_of(0.01, 1)) == [False, True, False]


def test_noise_is_not_told_from_noise() -> None:
    found = [any(told(periods_of(0.0, seed, 30))) for seed in range(30)]
    assert sum(found) <= 5  # 1.5 are expected


def test_the_control_is_what_learners_make_of_noise(simulated: Simulated) -> None:
    """Its interval holds 95 % of learners whose rewards are drawn anew."""
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(50, generator=generator).tolist()
    periods = [Period((float(i % 2),) * 6, (i % 2) * reward, 1.0) for i, reward in enumerate(rewards)]
    low, high = noise_band(periods, START, 0).probabilities[-1]
    fresh = simulated(*[0.0] * 6)
    assert ((fresh >= low) & (fresh <= high)).double().mean() == pytest.approx(0.95, abs=0.03)


def test_neither_scale_nor_offset_of_the_rewards_changes_the_control() -> None:
    periods = periods_of(0.01, 2)
    scaled = [replace(period, reward=100 * period.reward + 7) for period in periods]
    found, other = noise_band(periods, START, 3), noise_band(scaled, START, 3)
    torch.testing.assert_close(found.probabilities, other.probabilities)
    assert found.probabilities.shape == (61, 2)
    assert found.probabilities[0].tolist() == pytest.approx([START, START])


# --- Runs


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dropping layer 1 pay: rewards are planted, with noise, in place of scores."""
    chance = random.Random(5)

    def scores(self: Any, players: Any, seed: int) -> tuple[Tensor, Tensor]:
        pays = players.actions()["encoder.1"]
        gain = torch.tensor([(0.01 if pays else 0.0) + chance.gauss(0, 0.004) for _ in self.period])
        return gain.double(), torch.zeros(len(gain)).double()

    monkeypatch.setattr(AttendOutState, "_scores", scores)


def test_a_planted_reward_is_learnt_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 updates at default options; the run says which layer it is."""
    planted(monkeypatch)
    seen: list[dict[str, float]] = []
    report: dict[str, Any] = {}

    def watch(reg: Any) -> None:
        seen.append(reg.metrics())
        if len(seen) == 300:
            report.update(reg.method_state.final_report([]))

    run(AttendOut(), 300, model=zoo.build("bert", num_hidden_layers=3), watch=watch, optimizer=sgd)
    last = {key: value for key, value in seen[-1].items() if "drop_probability" in key}
    assert last.pop("attendout/drop_probability/encoder.1") >= 0.8
    assert max(last.values()) <= 0.3
    assert seen[-1]["attendout/effect/encoder.1"] == pytest.approx(0.01, abs=0.004)
    found = report["layer_effects"]
    assert [key for key, layer in found.items() if layer["told_from_noise"]] == ["encoder.1"]
    low, high = found["encoder.1"]["effect_interval"]
    assert low < 0.01 < high
    assert found["encoder.1"]["change"] == found["encoder.1"]["probability"] - 0.1 >= 0.7
    assert len(report["noise_band"]) == 60


def test_a_layer_is_constant_in_all_passes_of_a_period() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = AttendOut(init_drop_prob=0.5, dropout_step=3)
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
    method = AttendOut(init_drop_prob=0.3, dropout_step=3)
    states: list[Any] = []

    def keep(reg: Any) -> None:
        states.append((reg.state_dict(), reg.method_state_dicts()))

    run(method, 8, watch=keep)
    (_, (whole, _)), (_, (again, _)) = states[-1], states[3]
    assert len(again["history"]) == 1
    assert whole["history"][:1] == again["history"]
    assert [weight for _, _, weight in whole["history"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("gaps", "expected"), [([1.0, 1.0], 1.0), ([0.0, 0.0], 0.5), ([-0.1, 0.1], 0.5), ([2.0, 4.0], 0.9986501)]
)
def test_the_survivor_is_as_likely_as_it_is_surely_better(gaps: list[float], expected: float) -> None:
    assert _confidence(torch.tensor(gaps, dtype=torch.float64)) == pytest.approx(expected, abs=1e-6)


def test_summary_in_words() -> None:
    layer = {"start": 0.1, "probability": 0.08, "change": -0.02, "told_from_noise": False}
    metrics: dict[str, Any] = {
        "dropout_steps": [{"attacker_survived": True}, {"attacker_survived": False}],
        "layer_effects": {"encoder.0": layer, "encoder.1": layer},
    }
    lines = AttendOut().summary_lines(metrics)
    assert lines["merging"] == "attacker survived 1 of 2 periods"
    assert lines["learnt"] == (
        "drop probabilities moved by at most 0.02 from 0.10; none of 2 layers can be told from noise "
        "(attention-layerdrop with p=0.1 drops as much, without learning, at less than half the cost)"
    )
    metrics["layer_effects"]["encoder.1"] = layer | {"probability": 0.83, "told_from_noise": True}
    lines = AttendOut().summary_lines(metrics)
    assert lines["learnt"] == "encoder.1: 0.10 -> 0.83, told from noise; the other 1 cannot"


def test_defaults_depend_on_learner_and_variant() -> None:
    names = ("learner", "init_drop_prob", "dropout_step", "reward_batch_size", "merge", "granularity", "score_on")

    def resolved(**options: Any) -> tuple[Any, ...]:
        method = AttendOut(**options)
        assert AttendOut(**method.options()) == method
        return tuple(getattr(method, name) for name in names)

    ours = ("effects", 0.1, 5, 8, "confidence", "layer", "reward_data")
    assert resolved() == resolved(variant="dropout", dropout_step=5) == ours
    assert resolved(learner="policy_gradient") == ("policy_gradient", 0.5, 10, 4, "sample", "score", "reward_data")
    assert resolved(variant="pruning") == ("policy_gradient", 0.5, 10, 4, "attacker", "score", "train")
    assert AttendOut().rewarded_on() == "split" and AttendOut(variant="pruning").rewarded_on() is None
    assert resolved(variant="pruning", learner="effects") == ("effects", 0.1, 5, 8, "attacker", "layer", "train")
    assert resolved(init_drop_prob=0.3, dropout_step=7, reward_batch_size=2, merge="best")[1:5] == (0.3, 7, 2, "best")


@pytest.mark.parametrize(
    "options",
    [
        {"generator_heads": 2},
        {"baseline_decay": 0.5},
    ],
    ids=str,
)
def test_options_of_the_generator_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(AttendropError, match=f"{next(iter(options))}=.* is an option of the generator"):
        AttendOut(**options)
