"""AttendOut layer by layer: scores of each layer, layers that are skipped, and masks that are sampled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import zoo
from helpers.attend_out import DOUBLE, act, dropped_in, optimizer_of, players_of, run
from helpers.training import examples, trainer_of, weights
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from attendrop import AttendOut, AttendropError, Compose, LayerDrop, regularize
from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.plan import CombinedPlan
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


def test_it_trains_beside_what_skips_all_layers() -> None:
    metrics: list[dict[str, float]] = []
    method = Compose(AttendOut(variant="pruning", dropout_step=2), LayerDrop(p=1.0))
    model = run(method, 6, watch=lambda reg: metrics.append(reg.metrics()))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    told = [found for found in metrics if found]
    assert len(told) == 3
    assert all("attendout/reward" in found for found in told)


def test_heads_are_those_of_the_part_of_the_model_that_reads_images() -> None:
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vision = text | {"num_attention_heads": 4, "image_size": 12, "patch_size": 4}
    model = hf.CLIPForImageClassification(hf.CLIPConfig(text_config=text, vision_config=vision))
    players, step = players_of("vit", model=model, granularity="head")
    assert dropped_in(players, act(players, step))["encoder.0"].shape == (2, 4, 1, 1)


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


def test_a_period_is_completed_when_training_ends_early(tmp_path: Path) -> None:
    """Early stopping after the second epoch of four steps; the best model is then loaded."""
    method = AttendOut(variant="pruning", dropout_step=5, merge="sample")
    choice = {"metric_for_best_model": "eval_loss", "load_best_model_at_end": True, "save_strategy": "epoch"}
    stopping = hf.EarlyStoppingCallback(1, 1e9)
    trainer = trainer_of(
        tmp_path, method, num_train_epochs=9, eval_dataset=examples(), eval_strategy="epoch", callbacks=[stopping],
        **choice,
    )  # fmt: skip
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "attendout/reward" in entry and "loss" not in entry]
    assert [(entry["step"], entry["attendout/period_share"]) for entry in steps] == [(5, 1.0), (8, 0.6)]
    saved = load_file(Path(str(trainer.state.best_model_checkpoint)) / "model.safetensors")
    zoo.assert_same(weights(trainer), saved)


class Defending(hf.TrainerCallback):
    """Keeps the defender's weights when it last took a step of its own."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.found: dict[str, Tensor] = {}

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        method_state = self.trainer.method_state
        self.found = {name: p.detach().clone() for name, p in method_state.players.defender.model.named_parameters()}


def test_the_defender_is_plain_fine_tuning_under_unequal_micro_batches(tmp_path: Path) -> None:
    rows = zoo.rows("bert", [5, 7, 4, 6, 8, 3])
    options: dict[str, Any] = {
        "train_dataset": rows, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 3,
    }  # fmt: skip
    plain = trainer_of(tmp_path, None, model=zoo.build("bert", **DOUBLE), **options)
    plain.train()
    keep = Defending()
    method = AttendOut(variant="pruning", dropout_step=9)
    keep.trainer = trainer_of(tmp_path, method, model=zoo.build("bert", **DOUBLE), callbacks=[keep], **options)
    keep.trainer.train()
    zoo.assert_same(keep.found, dict(plain.model.named_parameters()), 1e-6)
