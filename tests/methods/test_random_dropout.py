"""Vanilla dropout, the scheduler, DropHead and LayerDrop: what is dropped, and plans that skip blocks."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers import families, zoo
from helpers.oracles import EagerAttention, gated
from helpers.plans import passed, weighted
from torch import Tensor

from attendrop import AttendropError, AttentionLayerDrop, DropHead, LayerDrop, Scheduler, Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.plan import AttentionCall, BlockEdit, Plan
from attendrop.attribution.gradient import head_importance
from attendrop.methods.core import plans
from attendrop.methods.core.registry import build_method
from attendrop.randomness.keyed_random import SampleKey, sample_mask


def sampled(p: float, step: int, layer: int) -> Tensor:
    """The mask of a batch of 3 sequences, 2 heads and 8 tokens."""
    origins = torch.zeros(3, 2, dtype=torch.long)
    return sample_mask(p, SampleKey(0, step, 0, 3), f"encoder.{layer}", (3, 2, 8, 8), origins, origins.device)


@pytest.mark.parametrize("where", ["scores", "weights"])
def test_the_loss_of_vanilla_dropout(where: str) -> None:
    """Dropout of weights takes the place of the model's own."""
    own = {"attention_probs_dropout_prob": 0.5 if where == "weights" else 0.0}
    model, batch = zoo.build("bert", "eager", dtype=torch.float64, **own), zoo.batch_of("bert", (8, 5, 3))
    with regularize(model, Vanilla(p=0.4, where=where)) as reg:
        loss = reg.loss(batch)
    model.eval()
    drops = [sampled(0.4, 0, layer) for layer in range(2)]
    if where == "weights":
        expected = weighted(model, batch, {f"encoder.{i}": ~drop / 0.6 for i, drop in enumerate(drops)}).loss
    else:
        with EagerAttention(drops).in_place_of_stock(model):
            expected = model(**batch).loss
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(("name", "attention"), [("bert", "sdpa"), ("bert", "eager"), ("gpt2", "sdpa")])
def test_small_layers_get_their_masks_together(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each layer makes its own mask of keys, of a mask that is added or of causality: masks of all layers
    that were left were made again at each."""
    asked, original = list[Any](), plans.sample_mask
    monkeypatch.setattr(plans, "sample_mask", lambda *given: asked.append(given[2]) or original(*given))
    model, batch = zoo.build(name, attention), zoo.batch_of(name, (6, 6) if name == "gpt2" else (6, 4))
    with regularize(model, Vanilla(p=0.5)) as reg:
        for _ in range(2):
            asked.clear()
            reg.loss(batch)
    assert [len(names) for names in asked] == [2]


def test_the_loss_of_the_scheduler() -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3))
    method = Scheduler((0, 0.5, 1), ((0.6, 0.35, 0.35), (1.0, 1.0, 1.0)))
    with regularize(model, method, total_steps=8) as reg:
        reg.begin_step(3)
        loss, logs = reg.loss(batch), reg.logs()
    valid = batch["attention_mask"].bool()[:, None, None]
    counted = valid & valid.transpose(-1, -2)
    drops = [sampled(p, 3, i) & valid for i, p in enumerate((0.6 - 0.5 * 3 / 8, 0.95))]  # 0.95 is the bound
    for i, drop in enumerate(drops):
        share = (drop & counted).sum() / (counted.sum() * 2)
        assert logs[f"scheduler/dropped/encoder.{i}"] == pytest.approx(share.item())
    with EagerAttention(drops).in_place_of_stock(model):
        torch.testing.assert_close(loss, model(**batch).loss)


def test_probabilities_are_read_from_text() -> None:
    method = build_method("scheduler", {"probabilities": " 0.6,0.5 ; 1,0 "})
    assert method == Scheduler(probabilities=((0.6, 0.5), (1.0, 0.0)))
    assert build_method("scheduler", json.loads(json.dumps(method.options()))) == method


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"progress": "0,1,0.5"}, "must ascend from 0 to 1"),
        ({"probabilities": "0.6,x"}, r"probabilities='0\.6,x' is not a list of numbers"),
        ({"probabilities": (0.5, 1.1)}, r"holds 1\.1; give numbers from 0 to 1"),
        ({"progress": "0,.5,1", "probabilities": "1,1,1; 1,1"}, r"a list is 2 long, but progress has 3 knots"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method("scheduler", options)


@pytest.mark.parametrize(
    ("shape", "layer", "end", "progress"), [("qnli", 1, 0.45, 1.0), ("qnli", 4, 0.25, 0.5), ("cola", 4, 0.9, 1.0)]
)
def test_ready_made_shapes_start_at_the_papers_value(shape: str, layer: int, end: float, progress: float) -> None:
    """The layer is chosen alone, and keeps its number."""
    model, batch = zoo.build("bert", num_hidden_layers=5), zoo.batch_of("bert", (30, 30, 30))
    with regularize(model, Scheduler(shape=shape, layers=(layer,)), total_steps=2) as reg:
        reg.begin_step(int(progress * 2))
        reg.loss(batch)
        share = reg.logs()[f"scheduler/dropped/encoder.{layer}"]
    assert share == pytest.approx(0.6 + (end - 0.6) * progress, abs=0.02)


CONSTANT = DropHead(p_start=0.5, schedule="constant")


@pytest.mark.parametrize(("step", "expected"), [(1, 0.2), (2, 0.0), (6, 0.1)])
def test_the_v(step: int, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many heads are dropped as of evenly spaced numbers are below the probability."""

    def evenly(key: Any, names: Any, shape: tuple[int, ...], *_: Any) -> Tensor:
        return ((torch.arange(math.prod(shape)) + 0.5) / math.prod(shape)).view(shape)

    monkeypatch.setattr("attendrop.methods.random_dropout.uniform", evenly)
    with regularize(zoo.build("bert"), DropHead(p_start=0.4, p_end=0.2, turn=0.2), total_steps=10) as reg:
        reg.begin_step(step)
        reg.loss(zoo.batch_of("bert", [4] * 25))
        assert reg.logs()["drophead/dropped"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("name", "heads", "step"), [("bert", 2, 0), ("llama-class", 4, 2)])
def test_the_loss_of_drophead(name: str, heads: int, step: int) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, [8, 5, 3, 4])
    with regularize(model, CONSTANT) as reg:
        reg.begin_step(step)
        loss = reg.loss(batch)
        attention_layers, blocks = reg.adapter.attention_layers, reg.adapter.blocks
    with ExitStack() as stack:
        for layer, block in zip(attention_layers, blocks, strict=True):
            shape, origins = (4, heads, 1, 1), torch.zeros(4, 2, dtype=torch.long)
            drop = sample_mask(0.5, SampleKey(0, step, 0, 4), layer.key, shape, origins, origins.device)[..., 0, 0]
            gates = [[0 if gone else heads / own.count(False) for gone in own] for own in drop.tolist()]
            stack.enter_context(gated(block.output_projections[layer.key], gates))
        torch.testing.assert_close(model(**batch).loss, loss)


def test_importance_is_the_effect_of_a_gate_on_the_loss() -> None:
    """Against the difference quotient of one gate after the other."""
    model, batch = zoo.build("bert-choice", dtype=torch.float64), zoo.batch_of("bert-choice", (5, 3))
    with ModelAdapter(model) as adapter:
        attention_layers = adapter.trace(batch)
        found = head_importance(adapter, batch, attention_layers)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for layer, block in zip(attention_layers, adapter.blocks, strict=True):
        for row, head in ((0, 0), (1, -1)):
            losses = []
            for gate in (1.001, 0.999):
                gates = torch.ones(found[layer.key].shape)
                gates[row, head] = gate
                with gated(block.output_projections[layer.key], gates):
                    losses.append(model(**batch).loss.item())
            quotient = abs(losses[0] - losses[1]) / 0.002
            assert quotient == pytest.approx(found[layer.key][row, head].item(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["modernbert", "bart-class", "gpt2-class"])
def test_a_dropped_block_passes_its_input_on(name: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    key = "decoder:0" if name == "gpt2-class" else "encoder:0"
    with regularize(model, LayerDrop(p=1.0, layers=key)) as reg:
        loss = reg.loss(batch)
    adapter = ModelAdapter(model)
    adapter.trace(batch)
    adapter.blocks[0].module.register_forward_hook(
        lambda _, args, kwargs, output: args[0] if args else kwargs["hidden_states"], with_kwargs=True
    )
    torch.testing.assert_close(loss, model(**batch).loss)


def test_a_block_that_others_need_always_stays() -> None:
    """T5's first block makes the position bias of all; a stage of SegFormer makes smaller hidden states."""
    model, batch = zoo.build("t5"), zoo.batch_of("t5")
    with regularize(model, LayerDrop(p=1.0)) as reg:
        reg.loss(batch)
        assert {key for key in reg.logs() if "dropped/" in key} == {
            "layerdrop/dropped/encoder.1",
            "layerdrop/dropped/decoder.1",
        }
    for needed, given, layers in ((model, batch, "encoder:0"), (*families.any_model("segformer"), "all")):
        with (
            pytest.raises(AttendropError, match="none of these layers can be left out"),
            regularize(needed, LayerDrop(layers=layers)) as reg,
        ):
            reg.loss(given)


@pytest.mark.parametrize(("name", "skipped"), [("bert", {1}), ("albert", {1}), ("albert", {0, 2})])
def test_attention_is_told_apart_where_blocks_are_skipped(name: str, skipped: set[int]) -> None:
    """Also in a model that shares its layers, whose attention layers are told apart by counting calls."""

    class Skip(Plan):
        def __init__(self) -> None:
            super().__init__()
            self.met: list[str] = []

        def block(self, block: Block) -> BlockEdit:
            return BlockEdit(skip=block.attention_layers[0].index in skipped)

        def edit(self, call: AttentionCall) -> None:
            self.met.append(call.layer.key)

    plan = Skip()
    passed(zoo.build(name, num_hidden_layers=3), zoo.batch_of(name), plan)
    assert plan.met == [f"encoder.{layer}" for layer in range(3) if layer not in skipped]


@pytest.mark.parametrize(("name", "step"), [("llama-class", 1), ("bart-class", 2)])
def test_chosen_layers_attend_equally_to_valid_keys(name: str, step: int) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name)
    with regularize(model, AttentionLayerDrop(p=0.5)) as reg:
        reg.begin_step(step)
        loss, logs = reg.loss(batch), reg.logs()
        attention_layers = reg.adapter.attention_layers
    drops = [
        torch.full((1, 1, 1, 1), bool(logs[f"attention_layerdrop/dropped/{layer.key}"])) for layer in attention_layers
    ]
    with EagerAttention(drops).in_place_of_stock(model) as oracle:
        torch.testing.assert_close(loss, model(**batch).loss)
    assert len(oracle.weights) == len(attention_layers)
