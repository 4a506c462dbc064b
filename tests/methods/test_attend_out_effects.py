"""AttendOut's default learner: an exact test, exploration that costs nothing, and what follows from it."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny, zoo
from helpers.attend_out import optimizer_of, run
from helpers.training import take_step
from safetensors.torch import load_file
from scipy import stats
from torch import Tensor
from transformers import TrainerCallback

from attendrop import AttendOut, AttendropError, AttentionLayerDrop, Compose, FineTune, Mixout, regularize
from attendrop.extend import MethodState
from attendrop.methods.attend_out import effects
from attendrop.methods.attend_out.effects import KNOWN, Period, drawn, layer_effects
from attendrop.methods.attend_out.policy_gradient import _confidence
from attendrop.methods.core.compose import ComposedState
from attendrop.model_support.batches import ROW_INDEX
from attendrop.reports.attention_stages import load_stages
from attendrop.runs.train import train

LAYERS = 6

# --- The test

# Standard deviation of a period's reward, given its share of the training, and what is dropped.
NOISES: dict[str, Any] = {
    "constant": lambda passed, dropped: 1.0,
    "shrinking": lambda passed, dropped: 2.1 - 2 * passed,
    "growing": lambda passed, dropped: 0.1 + 2 * passed,
    "by the number of dropped layers": lambda passed, dropped: math.sqrt(sum(dropped) / 3),
    "of one layer": lambda passed, dropped: 1.0 + 4 * dropped[1],
}


def simulated(noise: str, seed: int, pairs: int = 16, effect: float = 0.0) -> list[Period]:
    """Simulate a run; dropping the first layer changes the reward by ``effect``."""
    chance, periods = random.Random(f"{noise}/{seed}"), []
    for number in range(2 * pairs):
        dropped = drawn(seed, number, LAYERS)
        reward = chance.gauss(0, NOISES[noise](number / (2 * pairs), dropped)) + effect * dropped[0]
        periods.append(Period(dropped, reward))
    return periods


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_noise_is_told_from_noise_in_five_percent_of_runs(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "REDRAWS", 999)
    found = [layer_effects(simulated(noise, seed), seed) for seed in range(1000)]
    assert sum(any(layer.told_from_noise for layer in each) for each in found) / 1000 <= 0.06
    noisy = torch.tensor([each[1].effect for each in found])
    assert abs(noisy.mean()) < 3 * noisy.std() / 1000**0.5  # no bias


@pytest.mark.parametrize(("effect", "pairs", "least"), [(2.0, 16, 0.9), (1.0, 32, 0.7), (-1.0, 32, 0.7)])
def test_effects_are_found(effect: float, pairs: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "REDRAWS", 499)
    found = [layer_effects(simulated("constant", seed, pairs, effect), seed) for seed in range(50)]
    assert sum(each[0].told_from_noise and each[0].effect * effect > 0 for each in found) / 50 >= least
    assert sum(layer.told_from_noise for each in found for layer in each[1:]) <= 8


def test_the_effect_is_the_mean_over_pairs_of_with_less_without() -> None:
    periods = [Period(drawn(0, number, 2), reward) for number, reward in enumerate([0.3, -0.1, 0.5, 0.2, 9.0])]
    for layer, found in enumerate(layer_effects(periods, 0)):
        pairs = [(periods[0], periods[1]), (periods[2], periods[3])]
        gains = [(a.reward - b.reward) * (1 if a.dropped[layer] else -1) for a, b in pairs]
        assert found.effect == pytest.approx(sum(gains) / 2)
        assert found.standard_error == pytest.approx(abs(gains[0] - gains[1]) / 2)
    assert layer_effects(periods[:2], 0)[0] == effects.LayerEffect()


def test_neither_scale_nor_offset_of_the_rewards_changes_the_test() -> None:
    periods = simulated("constant", 3, effect=1.0)
    others = [Period(period.dropped, 100 * period.reward + 7) for period in periods]
    assert [each.p for each in layer_effects(periods, 3)] == [each.p for each in layer_effects(others, 3)]


def test_many_periods_are_tested_in_little_memory_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, randint, periods = [], torch.randint, simulated("constant", 3, pairs=100)

    def counted(high: int, size: tuple[int, ...], **options: Any) -> Tensor:
        sizes.append(math.prod(size))
        return randint(high, size, **options)

    monkeypatch.setattr(torch, "randint", counted)
    found = layer_effects(periods, 3)
    assert max(sizes) <= 2**16
    monkeypatch.setattr(effects, "_SIGNS", 2**30)
    assert layer_effects(periods, 3) == found


def test_the_second_period_of_a_pair_drops_the_other_layers() -> None:
    for pair in range(20):
        first, second = drawn(5, 2 * pair, LAYERS), drawn(5, 2 * pair + 1, LAYERS)
        assert all(a != b for a, b in zip(first, second, strict=True))
    share = sum(drawn(seed, 0, 1)[0] for seed in range(400)) / 400
    assert share == pytest.approx(0.5, abs=0.08)


def test_rounding_takes_no_pair_of_periods_from_the_exploration() -> None:
    # 0.58 * 100 is 57.99999999999999.
    state: Any = SimpleNamespace(method=AttendOut(dropout_step=1, explore=0.58), found=None)
    state.training = SimpleNamespace(total_steps=100)
    for state.number in (57, 58):
        assert effects.EffectsState.exploring.fget(state) == (state.number < 58)


# --- Runs


@pytest.mark.parametrize(("name", "accumulation"), [("bert", 2), ("llama", 1)])
def test_a_run_that_tells_nothing_from_noise_is_plain_fine_tuning_to_the_bit(name: str, accumulation: int) -> None:
    options: dict[str, Any] = {"name": name, "accumulation": accumulation, "max_norm": 0.1, "total_steps": 10}
    plain = run(FineTune(), 10, **options)
    found = run(AttendOut(dropout_step=2, explore=0.8), 10, **options)
    assert all(torch.equal(*pair) for pair in zip(plain.parameters(), found.parameters(), strict=True))


def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dropping layer 1 pay: rewards are planted, with noise, in place of scores."""
    chance = random.Random(5)

    def scores(self: Any) -> dict[str, float]:
        dropped = drawn(self.training.seed, self.number, len(self.attention_layers))
        self.periods.append(Period(dropped, 0.01 * dropped[1] + chance.gauss(0, 0.003)))
        return {}

    monkeypatch.setattr(effects.EffectsState, "_learn", scores)


def test_a_layer_that_helps_is_dropped_after_the_exploration_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    shares: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    states: list[Any] = []

    def watch(reg: Any) -> None:
        state = reg.method_state
        shares[state.exploring].update({**dict.fromkeys(state.dropped(), 1), "periods": 1})
        if not state.exploring:
            assert state.attacker is None  # its memory is free
        states[:] = [state]

    model = zoo.build("bert", num_hidden_layers=3)
    run(AttendOut(dropout_step=1, explore=0.4), 80, model=model, watch=watch, total_steps=80)
    assert set(shares[True]) == {"encoder.0", "encoder.1", "encoder.2", "periods"}
    assert set(shares[False]) == {"encoder.1", "periods"}
    assert shares[False]["encoder.1"] / shares[False]["periods"] == pytest.approx(0.5, abs=0.15)
    found = states[0].final_report([])["layer_effects"]
    assert [key for key, layer in found.items() if layer["told_from_noise"]] == ["encoder.1"]
    low, high = found["encoder.1"]["effect_interval"]
    assert low < 0.01 < high
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, 15) * found["encoder.1"]["standard_error"])


def rows_with_a_shortcut(count: int, seed: int, *, holds: bool) -> dict[str, Tensor]:
    """Rows whose label is that of a word in nine of ten, and, where the shortcut ``holds``, of another word in all."""
    chance, ids, labels = random.Random(seed), [], []
    for _ in range(count):
        label = chance.random() < 0.5
        word, shortcut = label ^ (chance.random() < 0.1), label if holds else chance.random() < 0.5
        tokens = [2 + word, 4 + shortcut, *(chance.randrange(6, 16) for _ in range(9))]
        chance.shuffle(tokens)
        ids.append([1, *tokens])
        labels.append(int(label))
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def model_with_a_layer_for_each_word(seed: int) -> Any:
    """A BERT of two layers with fixed attention: the first sees words 2 and 3, the second the shortcuts 4 and 5."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 32}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=16, max_position_embeddings=12, **sizes, **off))
    with torch.no_grad():
        words = model.bert.embeddings.word_embeddings.weight.mul_(10)
        words[:, :2] = 0
        words[2:4, 0] = words[4:6, 1] = 3.0
        for flag, layer in enumerate(model.bert.encoder.layer):
            query, key = layer.attention.self.query, layer.attention.self.key
            for tensor in (query.weight, query.bias, key.weight, key.bias):
                tensor.zero_().requires_grad_(False)
            query.bias[0], key.weight[0, flag] = 20.0, 1.0
    words.requires_grad_(False)
    return model.train()


class Interrupted(TrainerCallback):
    """Interrupts the second training of a process, in its second epoch."""

    def __init__(self) -> None:
        self.trainings = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainings += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if (self.trainings, state.global_step) == (2, 8):
            raise KeyboardInterrupt


@pytest.mark.parametrize("reward_data", ["rotating", "split"])  # rows that were set aside are trained on, too
def test_a_run_is_trained_again_from_the_start_without_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reward_data: str
) -> None:
    planted(monkeypatch)
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    options: dict[str, Any] = {"epochs": 3}  # of 5 steps
    own = {"dropout_step": 1, "explore": 1.0, "reward_data": reward_data}
    attendout = options | {"method": "attendout", "options": own}
    with pytest.raises(KeyboardInterrupt):
        train(tiny.config(tmp_path, "run", **attendout), callbacks=[Interrupted()])
    metrics = train(tiny.config(tmp_path, "run", **attendout), resume=True)

    known = {"p": KNOWN, "layers": "encoder:1"}
    assert metrics["trained_again"] == {"method": "attention-layerdrop", "options": known}
    assert [key for key, layer in metrics["layer_effects"].items() if layer["told_from_noise"]] == ["encoder.1"]
    assert sorted(metrics["history"][0]["dropped"]) == ["attention-layerdrop"]
    assert metrics["data"]["rows"] == {"train": 36, "selection": 4, "dev": 12}
    assert "rewarded by scores on training rows" in (tmp_path / "run" / "README.md").read_text()
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({"selection", "checkpoint-15"})
    assert load_stages(str(tmp_path / "run"), None, FineTune(), device="cpu").method == AttentionLayerDrop(**known)
    train(tiny.config(tmp_path, "known", **options, method="attention-layerdrop", options=known))
    again, direct = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "known"))
    assert all(torch.equal(value, again[name]) for name, value in direct.items())


def test_a_composition_trains_again_with_its_other_methods() -> None:
    method = Compose(AttendOut(), Mixout(p=0.5))
    state = ComposedState.__new__(ComposedState)
    state.method, state.states = method, [MethodState(part) for part in method.parts]
    assert state.train_again() is None
    known = AttentionLayerDrop(p=KNOWN, layers="encoder:1")
    state.states[0].train_again = lambda: known  # type: ignore[method-assign]
    assert state.train_again() == Compose(known, Mixout(p=0.5))


@pytest.mark.slow
def test_a_layer_of_shortcuts_is_found_and_training_again_without_it_is_ahead() -> None:
    """Rewards are on rows in which the shortcut does not hold, as in those to be predicted."""
    again, scores = [], Counter[str]()
    data, others = (rows_with_a_shortcut(256, seed, holds=seed == 0) for seed in (0, 1))
    test = rows_with_a_shortcut(2000, 2, holds=False)
    for seed in range(3):
        for method in (FineTune(), AttendOut(explore=0.4), None):
            method = again[-1] if method is None else method
            model = model_with_a_layer_for_each_word(seed)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
            chance = torch.Generator().manual_seed(seed)
            given = {"optimizer": optimizer, "total_steps": 320, "reward_data": [others]}
            with regularize(model, method, **given) as reg:
                for _ in range(320):
                    chosen = torch.randint(256, (16,), generator=chance)
                    take_step(reg, {name: column[chosen] for name, column in data.items()})
                again += [reg.method_state.train_again()] if method.name == "attendout" else []
            predicted = model.eval()(input_ids=test["input_ids"]).logits.argmax(-1)
            scores[method.name] += float((predicted == test["labels"]).double().mean()) / 3
    assert again == [AttentionLayerDrop(p=KNOWN, layers="encoder:1")] * 3
    assert scores["finetune"] - 0.02 < scores["attendout"]
    assert scores["attention-layerdrop"] > scores["finetune"] + 0.3


def test_it_resumes_within_a_period_and_after_the_exploration() -> None:
    batch = {**zoo.batch_of("bert"), ROW_INDEX: torch.arange(2)}

    def trained(first: int, last: int, states: Any, seed: int = 0) -> Any:
        model = zoo.build("bert")
        optimizer = optimizer_of(model)
        given: dict[str, Any] = {
            "optimizer": optimizer,
            "reward_data": [zoo.batch_of("bert", seed=3)],
            "total_steps": 12,
        }
        with regularize(model, AttendOut(dropout_step=3, explore=0.5), seed=seed, **given) as reg:
            if states is not None:
                model.load_state_dict(states[0])
                optimizer.load_state_dict(states[1])
                reg.load_state_dict(*states[2:])
            for _ in range(first, last):
                take_step(reg, batch)
            kept = (model.state_dict(), optimizer.state_dict(), reg.state_dict(), reg.method_state_dicts())
            return copy.deepcopy(kept), reg.method_state.final_report([])

    (weights, _, _, (shared, _)), report = trained(0, 12, None)
    assert (len(shared["periods"]), shared["attacker"]) == (2, None)
    for stopped in (4, 8, 12):  # killed after the last checkpoint, it takes no further step
        half = trained(0, stopped, None)[0]
        assert (half[3][0]["attacker"] is None) == (stopped > 4)
        assert half[3][1]["rows"] == ([0, 1] if stopped == 4 else [])
        (again, _, _, (found, _)), repeated = trained(stopped, 12, half, seed=4)  # that of the checkpoint is kept
        assert found["periods"] == shared["periods"]
        assert all(torch.equal(weights[name], again[name]) for name in weights)
        assert repeated == report


@pytest.mark.parametrize(
    ("gaps", "expected"), [([1.0, 1.0], 1.0), ([0.0, 0.0], 0.5), ([-0.1, 0.1], 0.5), ([2.0, 4.0], 0.9986501)]
)
def test_the_survivor_is_as_likely_as_it_is_surely_better(gaps: list[float], expected: float) -> None:
    assert _confidence(torch.tensor(gaps, dtype=torch.float64)) == pytest.approx(expected, abs=1e-6)


def test_summary_in_words() -> None:
    layer = {"effect": 0.01, "p": 0.4, "told_from_noise": False}
    metrics: dict[str, Any] = {"dropout_steps": [{}, {}], "layer_effects": {"encoder.0": layer, "encoder.1": layer}}
    assert AttendOut().summary_lines(metrics) == {
        "explored": "2 periods",
        "learnt": "none of 2 layers can be told from noise, so the model was trained by plain fine-tuning",
    }


def test_defaults_depend_on_learner_and_variant() -> None:
    names = ("learner", "init_drop_prob", "dropout_step", "reward_batch_size", "merge", "score_on", "reward_data")

    def resolved(**options: Any) -> tuple[Any, ...]:
        method = AttendOut(**options)
        assert AttendOut(**method.options()) == method
        return tuple(getattr(method, name) for name in names)

    ours = ("effects", 0.5, 5, 8, "", "reward_data", "rotating")
    assert resolved() == resolved(dropout_step=5) == resolved(variant="pruning", learner="effects") == ours
    paper = ("policy_gradient", 0.5, 10, 4)
    assert resolved(learner="policy_gradient") == (*paper, "sample", "reward_data", "split")
    assert resolved(variant="pruning") == (*paper, "attacker", "train", "split")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator_heads": 2}, "generator_heads=2 does not apply to learner='effects'"),
        ({"merge": "best"}, "merge='best' does not apply"),
        ({"init_drop_prob": 0.1}, "init_drop_prob=0.1 does not apply"),
        ({"learner": "effects", "granularity": "score"}, "drops whole layers"),
        ({"score_on": "train"}, "scores on rows that it does not train on"),
        ({"variant": "pruning", "explore": 0.5}, "explore=0.5 does not apply to learner='policy_gradient'"),
        ({"learner": "policy_gradient", "reward_data": "rotating"}, "use 'split' or 'eval'"),
    ],
    ids=str,
)
def test_options_of_the_other_learner_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        AttendOut(**options)
