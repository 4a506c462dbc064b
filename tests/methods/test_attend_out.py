"""AttendOut: the generator, its actions and its training, the two networks, and whole periods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import oracles, zoo
from helpers.device import ON_CPU
from helpers.plans import attached
from torch import Tensor

from attendrop import AttendOut, AttendropError, FineTune, regularize
from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.plan import AttentionCall, AttentionEdit
from attendrop.methods.attend_out import GeneratorState, scores
from attendrop.methods.attend_out_networks import Attack, Draft, Generator, Micro, Players
from attendrop.methods.core.context import RunningStatistics, StepContext
from attendrop.randomness.keyed_random import SampleKey

DOUBLE = {"dtype": torch.float64}


def optimizer_of(model: torch.nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def players_of(
    name: str = "bert", lengths: Sequence[int] = (6, 4), *, model: Any = None, **options: Any
) -> tuple[Players, StepContext]:
    """Make the generator and the context that it needs, for a tiny model in float64."""
    model = model or zoo.build(name, **DOUBLE)
    batch = zoo.batch_of(name, lengths)
    adapter = attached(model, batch)
    context = StepContext(
        model, batch, SampleKey(0, 0, 0, len(batch["labels"])), RunningStatistics(), "attendout", adapter=adapter
    )
    training = zoo.training(model, optimizer=optimizer_of(model), reward_data=object())
    return Players(AttendOut(**options), training, adapter.attention_layers, context.inputs, 0), context


def attack_of(players: Players, context: StepContext) -> tuple[Attack, Micro]:
    micro = Micro(dict(context.batch), dict(context.inputs), context.key)
    return Attack(players, context, micro), micro


def act(players: Players, context: StepContext, number: int = 0) -> Micro:
    """Let the generator act on a pass of its model, without training."""
    plan, micro = attack_of(players, replace(context, key=replace(context.key, step=number)))
    context.adapter.forward(context.batch, plan)
    return micro


def dropped_in(players: Players, micro: Micro) -> dict[str, Tensor]:
    """Return what was dropped in each layer that ran, by sampling it again."""
    with torch.no_grad():
        outcomes = [outcome.dropped for outcome in players.replayed(micro)]
    return dict(zip([key for key in micro.layers if key in players.selected_keys], outcomes, strict=True))


# --- The two networks


def run(
    method: Any,
    steps: int,
    *,
    name: str = "bert",
    accumulation: int = 1,
    watch: Any = None,
    model: Any = None,
    max_norm: float | None = None,
    **options: Any,
) -> Any:
    """Train in a custom loop; ``watch`` is called with the regularization after each step."""
    torch.manual_seed(7)
    model = model or zoo.build(name, dropout=0.1, **DOUBLE)
    optimizer = options.pop("optimizer", optimizer_of)(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    rows = zoo.rows(name, (5, 6, 4, 7) * 2)
    with regularize(
        model, method, optimizer=optimizer, reward_data=[zoo.batch_of(name, seed=8)], max_grad_norm=max_norm, **options
    ) as reg:
        for step in range(steps):
            for part in range(accumulation):
                size = 4 // accumulation
                start = step % 2 * 4 + part * size
                (reg.loss(zoo.on_device(zoo.collate(rows[start : start + size]))) / accumulation).backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            reg.step()
            if watch is not None:
                watch(reg)
    return model


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
                p = (draft.scores(layer, None) + players.generator.bias).sigmoid()[0, 0]
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
def test_until_they_come_together_the_defender_is_plain_fine_tuning() -> None:
    found: list[dict[str, Tensor]] = []

    def watch(reg: Any) -> None:
        found.append(weights(reg.method_state.players.defender.model))

    options: dict[str, Any] = {"accumulation": 2, "max_norm": 0.3, "optimizer": sgd}
    run(AttendOut(dropout_step=9), 3, watch=watch, **options)
    zoo.assert_same(found[-1], weights(run(FineTune(), 3, **options)), 1e-12)


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

    original = GeneratorState._survives

    def spy(self: Any, gaps: Tensor, chance: float) -> bool:
        models = self.training.model, self.players.defender.model
        with torch.no_grad():
            attacked, defended = (float(m.eval()(**batch).loss) for m in models)
        for m in models:
            m.train()
        expected.append(defended - attacked if reward == "difference" else math.copysign(1, defended - attacked))
        return original(self, gaps, chance)

    monkeypatch.setattr(GeneratorState, "_survives", spy)
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


@pytest.mark.parametrize("merge", ["sample", "attacker"])
@pytest.mark.filterwarnings("ignore:The metric|.*lr_scheduler")
def test_a_model_whose_loss_is_not_finite_does_not_survive_and_teaches_nothing(merge: str) -> None:
    """The generator was lost, silently: no attention was dropped any more, and the loss looked normal."""
    broken, told = zoo.build("bert", **DOUBLE), list[dict[str, float]]()

    def watch(reg: Any, both: bool = False) -> None:
        players, number = reg.method_state.players, len(told)
        told.append(reg.metrics())
        if number == 2:  # into the attacker, or both, before the second period ends
            for model in (reg.model, players.defender.model)[: 1 + both]:
                with torch.no_grad():
                    model.bert.pooler.dense.weight[0, 0] = torch.nan
        assert all(value.isfinite().all() for value in players.generator.parameters())

    with pytest.warns(UserWarning, match="has a loss that is not finite: the other goes on"):
        model = run(AttendOut(merge=merge, dropout_step=2), 8, model=broken, watch=watch)
    assert all(value.isfinite().all() for value in model.parameters())
    assert [metrics.get("attendout/attacker_survived") for metrics in told][3] == 0.0
    assert "attendout/reward" not in told[3] and math.isfinite(told[7]["attendout/reward"])
    assert all(0.1 < value < 0.9 for name, value in told[7].items() if "drop_probability" in name)
    told.clear()
    with pytest.raises(AttendropError, match="not finite, with both models: correct these rows"):
        run(AttendOut(merge=merge, dropout_step=2), 8, watch=lambda reg: watch(reg, both=True))


def test_a_last_partial_period_is_completed() -> None:
    told: list[dict[str, float]] = []
    regs: list[Any] = []

    def watch(reg: Any) -> None:
        regs.append(reg)
        told.append(reg.metrics())

    method = AttendOut(dropout_step=4, granularity="layer", generator_feed_forward=True, generator_schedule="linear")
    model = run(method, 6, watch=watch, total_steps=6)
    assert [bool(metrics) for metrics in told] == [False, False, False, True, False, False]
    last, players = regs[0].metrics(), regs[0].method_state.players
    assert (told[3]["attendout/period_share"], last["attendout/period_share"]) == (1.0, 0.5)
    zoo.assert_same(weights(model), weights(players.defender.model))
    assert players.schedule.get_last_lr() == [0.0]
    assert [0 < value < 1 for key, value in last.items() if "drop_probability" in key] == [True, True]


def test_training_batches_with_masked_tokens_give_rewards() -> None:
    told: list[float] = []
    tokenizer = SimpleNamespace(mask_token_id=4, all_special_ids=[0, 2])
    method = AttendOut(dropout_step=2, score_on="noisy_train")
    run(method, 4, watch=lambda reg: told.extend(reg.metrics().values()), tokenizer=tokenizer)
    assert told and any(told)


@pytest.mark.parametrize(("gaps", "expected"), [([0.0, 0.0], 0.5), ([-0.1, 0.1], 0.5), ([2.0, 4.0], 0.9986501)])
def test_the_survivor_is_as_likely_as_it_is_surely_better(gaps: list[float], expected: float) -> None:
    method_state = GeneratorState.__new__(GeneratorState)
    method_state.method = AttendOut(merge="confidence")
    for chance in (expected - 1e-6, expected + 1e-6):
        found = method_state._survives(torch.tensor(gaps, dtype=torch.float64), chance)
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


def test_a_parameter_that_is_unfrozen_between_steps_is_refused() -> None:
    """Frozen ones are shared by both models: each optimizer would step one that is trained later."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    weight = model.bert.pooler.dense.weight.requires_grad_(False)
    with regularize(model, AttendOut(), optimizer=optimizer_of(model), reward_data=[batch]) as reg:
        reg.loss(batch)
        weight.requires_grad_(True)
        with pytest.raises(AttendropError, match=r"'bert\.pooler\.dense\.weight' was frozen or unfrozen"):
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


def test_layers_that_the_generator_cannot_reach_are_refused() -> None:
    with pytest.raises(AttendropError, match=r"layers='decoder:0': .* can only drop in the encoder's self-attention"):
        run(AttendOut(layers="decoder:0"), 1, name="bart")


@pytest.mark.parametrize(
    ("name", "autocast", "granularity"),
    [("bert-choice", torch.float16, "head"), ("modernbert", torch.bfloat16, "score")],
)
def test_what_is_drawn_again_is_what_was_dropped(name: str, autocast: torch.dtype, granularity: str) -> None:
    players, step = players_of(name, (9, 4, 6), model=zoo.build(name), granularity=granularity)
    strong(players)
    micro = Micro(dict(step.batch), dict(step.inputs), replace(step.key, step=3))
    plan, seen = Attack(players, step, micro), dict[str, tuple[Tensor, Tensor]]()
    edit = plan.edit

    def watched(call: AttentionCall) -> AttentionEdit | None:
        found = edit(call)
        if found is not None:
            seen[call.layer.key] = found.drop, call.valid
        return found

    plan.edit = watched  # type: ignore[method-assign]
    with torch.autocast("cpu", autocast):
        step.adapter.forward(step.batch, plan)
    with players.precision(torch.device("cpu")):
        found = dropped_in(players, micro)
    assert found.keys() == seen.keys()
    assert all(torch.equal((found[key] & valid).expand(drop.shape), drop) for key, (drop, valid) in seen.items())
    assert any(dropped.any() for dropped in found.values())
