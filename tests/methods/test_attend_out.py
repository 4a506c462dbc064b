"""AttendOut: the generator, its actions and its training, the two networks, and whole periods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import oracles, zoo
from helpers.attend_out import DOUBLE, act, attack_of, dropped_in, optimizer_of, players_of, run
from helpers.device import ON_CPU
from torch import Tensor
from torch.nn import functional

from attendrop import AttendOut, AttendropError, FineTune, regularize
from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.plan import AttentionCall, AttentionEdit, CombinedPlan
from attendrop.methods import attend_out_networks
from attendrop.methods.attend_out import GeneratorState, scores
from attendrop.methods.attend_out_networks import Attack, Draft, Generator, Micro, Players
from attendrop.methods.core.context import StepContext
from attendrop.methods.random_dropout import Skipping


def unlabelled(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in batch.items() if name != "labels"}


def generator_of(model: Any, batch: Mapping[str, Tensor], **options: Any) -> Generator:
    return Generator(model, find_attention_layers(model, batch)[0].name, batch, AttendOut(**options))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", zoo.ZOO)
def test_embeddings_are_what_enters_the_first_layer(name: str) -> None:
    model, batch = zoo.build(name).eval(), zoo.batch_of(name)
    embeddings = generator_of(model, batch).embeddings
    adapter = ModelAdapter(model)
    first = model.get_submodule(adapter.trace(batch)[0].name.partition("#")[0])
    seen: list[Tensor] = []
    block = next(
        module
        for path, module in model.named_modules()
        if first in module.modules() and isinstance(model.get_submodule(path.rpartition(".")[0]), torch.nn.ModuleList)
    )
    hook = block.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    model(**batch)
    hook.remove()
    torch.testing.assert_close(embeddings(batch), seen[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "granularity"), [("bert", "score"), ("roberta", "layer"), ("bert-choice", "head")])
def test_the_attackers_loss_is_that_of_a_naive_pass(name: str, granularity: str) -> None:
    model, batch = zoo.build(name, **DOUBLE), zoo.batch_of(name, (6, 4, 3))
    players, step = players_of(name, model=model, granularity=granularity)
    step = replace(step, batch=batch)
    plan, micro = attack_of(players, step)
    loss = step.adapter.forward(batch, plan).loss
    eager = zoo.build(name, "eager", **DOUBLE)
    shape = (micro.sequences, 2, 6, 6)
    drops = [dropped.expand(shape) for dropped in dropped_in(players, micro).values()]
    assert any(drop.all(-1).any() for drop in drops) or granularity != "layer"
    with oracles.EagerAttention(drops).in_place_of_stock(eager):
        torch.testing.assert_close(loss, eager(**batch).loss, rtol=1e-5, atol=1e-6)


def enumerated(
    players: Players, context: StepContext, reward: Tensor, baseline: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Tensor], list[Tensor]]:
    """For a model of one layer and two tokens: the mean of the estimator, and the gradient of the expected reward."""
    learned = [p for p in players.generator.parameters() if p is not players.generator.bias]
    micro = act(players, context)

    def probability() -> Tensor:
        p = Draft(players.generator, context.inputs).logits(0, None).sigmoid()[0, 0]
        return torch.stack([torch.where(action_of(number), p, 1 - p).prod() for number in range(16)])

    def action_of(number: int) -> Tensor:
        return torch.tensor([bool(number >> i & 1) for i in range(4)]).view(2, 2)

    exact = torch.autograd.grad((probability() * reward).sum(), learned, allow_unused=True)
    weights = probability().detach()
    mean = [torch.zeros_like(p) for p in learned]
    for number in range(16):
        action = action_of(number).view(1, 1, 2, 2)
        monkeypatch.setattr(attend_out_networks, "sample_mask", lambda *_, action=action: action)
        likelihood = players.log_likelihood(micro).sum() * (reward[number] - baseline)
        for total, found in zip(mean, torch.autograd.grad(likelihood, learned, allow_unused=True), strict=True):
            if found is not None:
                total += weights[number] * found
    return mean, [torch.zeros_like(p) if g is None else g for p, g in zip(learned, exact, strict=True)]


def test_the_estimator_has_the_gradient_of_the_expected_reward_as_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("bert", num_hidden_layers=1, **DOUBLE)
    players, step = players_of(lengths=(2,), model=model)
    reward = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, exact = enumerated(players, step, reward, 3.0, monkeypatch)
    assert max(float(g.abs().max()) for g in exact) > 1e-4
    for estimated, gradient in zip(mean, exact, strict=True):
        torch.testing.assert_close(estimated * 4, gradient, rtol=0, atol=1e-6)


def test_the_likelihood_is_a_mean_over_valid_units() -> None:
    """Eq. 5, unit by unit, with sequences of different lengths."""
    players, step = players_of(lengths=(6, 4, 3))
    micro = act(players, step)
    with torch.no_grad():
        found = players.log_likelihood(micro)
        for row, length in enumerate((6, 4, 3)):
            inputs = {name: value[row : row + 1, :length] for name, value in unlabelled(step.batch).items()}
            draft = Draft(players.generator, inputs)
            total = 0.0
            for layer, sampled in enumerate(dropped_in(players, micro).values()):
                p = draft.logits(layer, None).sigmoid()[0, 0]
                for i, j in itertools.product(range(length), repeat=2):
                    dropped = bool(sampled[row, 0, i, j])
                    total += math.log(float(p[i, j] if dropped else 1 - p[i, j]))
            assert found[row] == pytest.approx(total / (2 * length**2), rel=1e-6)


@pytest.mark.parametrize("credit", ["step", "return"])
def test_the_objective_is_the_likelihood_weighted_by_rewards_above_the_baseline(credit: str) -> None:
    players, context = players_of(credit=credit)
    period = [[act(players, context, number)] for number in range(2)]
    likelihoods = [players.log_likelihood(micro).mean().item() for (micro,) in period]
    players.baseline, rewards = 0.3, [1.0, -0.5]
    found = players.learn(period, torch.tensor(rewards, dtype=torch.float64))
    paired = rewards if credit == "step" else [0.25, 0.25]
    expected = -sum((reward - 0.3) * each for reward, each in zip(paired, likelihoods, strict=True))
    assert found == {"baseline": 0.3, "generator_loss": pytest.approx(expected, rel=1e-5)}
    assert players.baseline == pytest.approx(0.9 * 0.3 + 0.1 * 0.25)


def test_scores_are_means_over_rows() -> None:
    model, batches = zoo.build("bert"), [zoo.batch_of("bert", (4, 6)), zoo.batch_of("bert", (5,), seed=9)]
    found = scores(AttendOut(), zoo.training(model), [model], [batches])
    losses = [model(**batch).loss.item() for batch in batches]
    assert found.item() == pytest.approx(-(2 * losses[0] + losses[1]) / 3)


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize(("accumulation", "max_norm", "optimizer"), [(1, None, optimizer_of), (2, 0.3, sgd)])
def test_until_they_come_together_the_defender_is_plain_fine_tuning(
    accumulation: int, max_norm: float | None, optimizer: Any
) -> None:
    found: list[dict[str, Tensor]] = []
    expected: list[dict[str, Tensor]] = []
    options: dict[str, Any] = {"accumulation": accumulation, "max_norm": max_norm, "optimizer": optimizer}
    run(
        AttendOut(dropout_step=9),
        4,
        watch=lambda reg: found.append(weights(reg.method_state.players.defender.model)),
        **options,
    )
    run(FineTune(), 4, watch=lambda reg: expected.append(weights(reg.model)), **options)
    for ours, plain in zip(found, expected, strict=True):
        zoo.assert_same(ours, plain, 0.0 if accumulation == 1 else 1e-12)


def states(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    return {
        f"{i}/{name}": torch.as_tensor(value).clone()
        for i, parameter in enumerate(parameters)
        for name, value in optimizer.state[parameter].items()
    }


@pytest.mark.gpu
@pytest.mark.parametrize(("merge", "reward"), [("sample", "difference"), ("best", "sign")])
def test_a_period_is_rewarded_by_the_difference_of_scores_and_leaves_the_survivor(
    merge: str, reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are in evaluation mode, without the generator's masks."""
    found: list[dict[str, float]] = []
    expected: list[float] = []
    batch = zoo.on_device(zoo.batch_of("bert", seed=8))

    def watch(reg: Any) -> None:
        defender = reg.method_state.players.defender
        metrics = reg.metrics()
        if metrics:
            found.append(metrics)
            zoo.assert_same(weights(reg.model), weights(defender.model))
            ours, theirs = zip(*defender.pairs, strict=True)
            zoo.assert_same(states(reg.training.optimizer, ours), states(defender.optimizer, theirs))
        else:
            assert not torch.equal(reg.model.classifier.weight, defender.model.classifier.weight)

    original = GeneratorState._merge

    def spy(self: Any, defender: Any, gaps: Tensor, chance: float) -> bool:
        with torch.no_grad():
            attacked, defended = (float(m.eval()(**batch).loss) for m in (self.training.model, defender.model))
        for m in (self.training.model, defender.model):
            m.train()
        expected.append(defended - attacked if reward == "difference" else math.copysign(1, defended - attacked))
        return original(self, defender, gaps, chance)

    monkeypatch.setattr(GeneratorState, "_merge", spy)
    run(AttendOut(merge=merge, reward=reward, dropout_step=2, temperature=0.01), 8, watch=watch)
    assert [metrics["attendout/reward"] for metrics in found] == pytest.approx(expected)
    survivors = [bool(metrics["attendout/attacker_survived"]) for metrics in found]
    assert merge != "best" or survivors == [gap >= 0 for gap in expected]
    if ON_CPU:  # of other draws of dropout, one model may survive every time
        assert set(survivors) == {True, False}
    baseline = 0.0  # read before the rewards enter it
    for metrics in found:
        assert metrics["attendout/baseline"] == pytest.approx(baseline)
        baseline = 0.9 * baseline + 0.1 * metrics["attendout/reward"]


class Nothing:
    """A second model without weights."""

    @staticmethod
    def merge(*, first_survives: bool) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "pruning", "granularity": "head", "layers": "first"},
        {"granularity": "layer", "generator_feed_forward": True, "generator_schedule": "linear", "learn_bias": True},
    ],
    ids=str,
)
def test_a_last_partial_period_is_completed(options: dict[str, Any]) -> None:
    told: list[dict[str, float]] = []
    model = zoo.build("bert", dropout=0.1, **DOUBLE)
    found: dict[str, Any] = {}

    def watch(reg: Any) -> None:
        found["reg"] = reg
        told.extend([reg.metrics()])

    run(AttendOut(dropout_step=4, **options), 6, watch=watch, model=model, total_steps=6)
    assert [bool(metrics) for metrics in told] == [False, False, False, True, False, False]
    last = found["reg"].metrics()
    assert last.keys() == told[3].keys()
    assert (told[3]["attendout/period_share"], last["attendout/period_share"]) == (1.0, 0.5)
    zoo.assert_same(weights(model), weights(found["reg"].method_state.players.defender.model))
    if "generator_schedule" in options:
        assert found["reg"].method_state.players.schedule.get_last_lr() == [0.0]
    layers = [key for key in last if "drop_probability" in key]
    assert len(layers) == (1 if options.get("layers") == "first" else 2)
    assert all(0 < last[key] < 1 for key in layers)


@pytest.mark.parametrize(("gaps", "expected"), [([0.0, 0.0], 0.5), ([-0.1, 0.1], 0.5), ([2.0, 4.0], 0.9986501)])
def test_the_survivor_is_as_likely_as_it_is_surely_better(gaps: list[float], expected: float) -> None:
    method_state = GeneratorState.__new__(GeneratorState)
    method_state.method = AttendOut(merge="confidence")
    for chance in (expected - 1e-6, expected + 1e-6):
        found = method_state._merge(Nothing, torch.tensor(gaps, dtype=torch.float64), chance)  # type: ignore[arg-type]
        assert found == (chance < expected)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({}, (), "needs the optimizer"),
        ({}, ("optimizer",), "pass reward_data"),
        ({"score": "metric"}, ("optimizer", "reward_data"), "compute_metrics"),
        ({"score_on": "noisy_train"}, ("optimizer",), "mask token"),
        ({"generator_schedule": "linear"}, ("optimizer", "reward_data"), "pass total_steps"),
    ],
)
def test_what_is_missing_is_said(options: dict[str, Any], given: tuple[str, ...], message: str) -> None:
    model = zoo.build("bert")
    every = {"optimizer": optimizer_of(model), "reward_data": [zoo.batch_of("bert")]}
    here: dict[str, Any] = {name: every[name] for name in given}
    with pytest.raises(AttendropError, match=message), regularize(model, AttendOut(**options), **here):
        pass
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("frozen", [False, True], ids=["frozen", "unfrozen"])
def test_a_parameter_that_is_frozen_or_unfrozen_between_steps_is_refused(frozen: bool) -> None:
    """Frozen ones are shared by both models: each optimizer would step one that is trained later."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    weight = model.bert.pooler.dense.weight.requires_grad_(not frozen)
    with regularize(model, AttendOut(), optimizer=optimizer_of(model), reward_data=[batch]) as reg:
        reg.loss(batch)
        weight.requires_grad_(frozen)
        with pytest.raises(AttendropError, match=r"'bert\.pooler\.dense\.weight' was frozen or unfrozen after"):
            reg.loss(batch)


def strong(players: Players) -> Players:
    """Let the scores of layers differ by much."""
    with torch.no_grad():
        players.generator.query.weight.mul_(60)
        players.generator.output.weight.mul_(60)
    return players


def test_a_layer_gets_the_scores_of_its_number_whatever_is_chosen() -> None:
    found = []
    for layers in ("all", [1]):
        players, step = players_of("albert", (6, 4), layers=layers)
        micro = act(strong(players), step)
        found.append([outcome.logits for outcome in players.replayed(micro)])
    assert [len(logits) for logits in found] == [2, 1]
    assert torch.equal(found[0][1], found[1][0])
    assert not torch.allclose(found[0][0], found[0][1], atol=1e-3)


def test_padding_changes_no_probability() -> None:
    players, step = players_of(lengths=(6,), granularity="layer")
    strong(players)
    found = []
    for extra in (0, 4):
        micro = act(players, replace(step, batch=zoo.batch_of("bert", (6,), extra=extra)))
        found.append([outcome.logits for outcome in players.replayed(micro)])
    for alone, padded in zip(*found, strict=True):
        torch.testing.assert_close(alone, padded)


def test_a_skipped_layer_is_left_out_of_actions_and_likelihood() -> None:
    players, step = players_of(lengths=(5,), model=zoo.build("bert", num_hidden_layers=3, **DOUBLE))
    whole = dropped_in(strong(players), act(players, step))
    micro = Micro(dict(step.batch), dict(step.inputs), step.key)
    step.adapter.forward(step.batch, CombinedPlan([Attack(players, step, micro), Skipping({"encoder.1"})]))
    found = dropped_in(players, micro)
    assert list(found) == ["encoder.0", "encoder.2"]
    with torch.no_grad():
        terms = []
        for layer, key in ((0, "encoder.0"), (2, "encoder.2")):
            assert torch.equal(found[key], whole[key])
            logits = Draft(players.generator, step.inputs).logits(layer, None)
            terms.append(-functional.binary_cross_entropy_with_logits(logits, found[key].double()))
        torch.testing.assert_close(players.log_likelihood(micro)[0], torch.stack(terms).mean())


def test_layers_that_the_generator_cannot_reach_are_refused() -> None:
    sizes: dict[str, Any] = {"image_size": 12, "patch_size": 3, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
    windowed = hf.SwinForImageClassification(hf.SwinConfig(**sizes, window_size=2))
    with pytest.raises(AttendropError, match="differ in their windows and heads"):
        players_of("vit", model=windowed)
    with pytest.raises(AttendropError, match=r"layers='decoder:0': .* can only drop in the encoder's self-attention"):
        run(AttendOut(layers="decoder:0"), 1, name="bart")


class Watched(Attack):
    """Keeps what the model was told to drop."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: dict[str, Tensor] = {}

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edit = super().edit(call)
        if edit is not None:
            assert edit.drop is not None
            self.seen[call.layer.key] = edit.drop
        return edit


@pytest.mark.parametrize(
    ("name", "autocast", "granularity"),
    [
        ("bert-choice", torch.float16, "head"),
        ("modernbert", torch.bfloat16, "score"),
    ],
)
def test_what_is_drawn_again_is_what_was_dropped(name: str, autocast: torch.dtype, granularity: str) -> None:
    players, step = players_of(name, (9, 4, 6), model=zoo.build(name), granularity=granularity)
    strong(players)
    micro = Micro(dict(step.batch), dict(step.inputs), replace(step.key, step=3))
    plan = Watched(players, step, micro)
    with torch.autocast("cpu", autocast):
        step.adapter.forward(step.batch, plan)
    with players.precision(torch.device("cpu")):
        found = dropped_in(players, micro)
    assert found.keys() == plan.seen.keys()
    for key, dropped in found.items():
        assert torch.equal(dropped.expand(plan.seen[key].shape), plan.seen[key])
    assert any(dropped.any() for dropped in found.values())
