"""AttendOut layer by layer: scores of each layer, layers that are skipped, and masks that are sampled again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import zoo
from helpers.attend_out import DOUBLE, act, dropped_in, optimizer_of, players_of, run
from torch import Tensor
from torch.nn import functional

from attendrop import AttendOut, AttendropError, regularize
from attendrop.attention.plan import AttentionCall, AttentionEdit, CombinedPlan
from attendrop.methods.attend_out.generator import Attack, Micro, Players
from attendrop.methods.core.context import StepContext
from attendrop.methods.random_dropout import Skipping


def strong(players: Players) -> Players:
    """Let the scores of layers differ by much."""
    with torch.no_grad():
        players.generator.query.weight.mul_(60)
        players.generator.output.weight.mul_(60)
    return players


@pytest.mark.parametrize("name", ["albert", "gpt2"])
def test_a_layer_gets_the_scores_of_its_number_whatever_is_chosen(name: str) -> None:
    found = []
    for layers in ("all", [1]):
        players, step = players_of(name, (6, 4), model=zoo.build(name, **DOUBLE), layers=layers)
        micro = act(strong(players), step)
        found.append([outcome.logits for outcome in players.replayed(micro)])
    assert [len(logits) for logits in found] == [2, 1]
    assert torch.equal(found[0][1], found[1][0])
    assert not torch.allclose(found[0][0], found[0][1], atol=1e-3)


def skipping(players: Players, context: StepContext, keys: set[str]) -> Micro:
    """A pass in which the blocks of ``keys`` are skipped."""
    micro = Micro(dict(context.batch), dict(context.inputs), context.key)
    plan = CombinedPlan([Attack(players, context, micro), Skipping(keys)])
    context.adapter.forward(context.batch, plan)
    return micro


def test_a_skipped_layer_is_left_out_of_actions_and_likelihood() -> None:
    skipped = 1
    players, step = players_of(lengths=(5,), model=zoo.build("bert", num_hidden_layers=3, **DOUBLE))
    whole = dropped_in(strong(players), act(players, step))
    micro = skipping(players, step, {f"encoder.{skipped}"})
    left = [layer for layer in range(3) if layer != skipped]
    found = dropped_in(players, micro)
    assert list(found) == [f"encoder.{layer}" for layer in left]
    with torch.no_grad():
        draft = players.begin(step.inputs)
        terms = []
        for layer in range(3):
            logits = draft.logits(layer, None)
            if layer in left:
                assert torch.equal(found[f"encoder.{layer}"], whole[f"encoder.{layer}"])
                dropped = found[f"encoder.{layer}"].double()
                terms.append(-functional.binary_cross_entropy_with_logits(logits, dropped))
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
        ("bert", None, "score"),
        ("bert-choice", torch.float16, "head"),
        ("modernbert", torch.bfloat16, "score"),
        ("t5", None, "head"),
    ],
)
def test_what_is_drawn_again_is_what_was_dropped(name: str, autocast: torch.dtype | None, granularity: str) -> None:
    players, step = players_of(name, (9, 4, 6), model=zoo.build(name), granularity=granularity)
    strong(players)
    micro = Micro(dict(step.batch), dict(step.inputs), replace(step.key, step=3))
    plan = Watched(players, step, micro)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        step.adapter.forward(step.batch, plan)
    micro = Micro.load(micro.state_dict(), torch.device("cpu"))
    with players.precision(torch.device("cpu")):
        found = dropped_in(players, micro)
    assert found.keys() == plan.seen.keys()
    for key, dropped in found.items():
        assert torch.equal(dropped.expand(plan.seen[key].shape), plan.seen[key])
    assert any(dropped.any() for dropped in found.values())


def test_a_period_keeps_no_draws_and_one_mask_for_all_layers() -> None:
    """What a checkpoint holds of a step: its batch, and a bit for each pair of tokens."""
    layers, rows, length = 4, 3, 32
    model = zoo.build("bert", num_hidden_layers=layers)
    batch = zoo.batch_of("bert", (length, 20, 9))
    with regularize(model, AttendOut(), optimizer=optimizer_of(model), reward_data=[batch]) as reg:
        reg.loss(batch).backward()
        ((micro,),) = reg.method_state.rank_state_dict()["period"]
    assert len(micro["layers"]) == layers
    assert sum(bits.numel() for bits, _ in micro["masks"]) <= rows * length * length / 8
    assert not [name for name, value in micro.items() if isinstance(value, Tensor)]
