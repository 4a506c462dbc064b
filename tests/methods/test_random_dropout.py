"""Vanilla dropout, the scheduler, DropHead and LayerDrop: what is dropped, and plans that skip blocks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention, gated
from helpers.plans import passed
from helpers.weighted import weighted
from torch import Tensor

from attendrop import (
    AttendropError,
    AttentionLayerDrop,
    DropHead,
    LayerDrop,
    Scheduler,
    Vanilla,
    regularize,
)
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.plan import AttentionCall, BlockEdit, Plan
from attendrop.attribution.gradient import head_importance
from attendrop.methods.core.context import Processes
from attendrop.methods.core.registry import build_method
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop.training.regularization import Regularization

CPU = torch.device("cpu")


@pytest.mark.parametrize("where", ["scores", "weights"])
def test_the_loss_of_vanilla_dropout(where: str) -> None:
    """Dropout of weights takes the place of the model's own."""
    own = {"attention_probs_dropout_prob": 0.5 if where == "weights" else 0.0}
    model, batch = zoo.build("bert", "eager", dtype=torch.float64, **own), zoo.batch_of("bert", (6, 4))
    with regularize(model, Vanilla(p=0.4, where=where), seed=5) as reg:
        loss = reg.loss(batch)
    model.eval()
    origins, keys = torch.zeros(2, 2, dtype=torch.long), ("encoder.0", "encoder.1")
    drops = {key: sample_mask(0.4, SampleKey(5, 0, 0, 2), key, (2, 2, 6, 6), origins, CPU) for key in keys}
    if where == "weights":
        expected = weighted(model, batch, {key: ~drop / 0.6 for key, drop in drops.items()}).loss
    else:
        with EagerAttention([*drops.values()]).in_place_of_stock(model):
            expected = model(**batch).loss
    torch.testing.assert_close(loss, expected)


def test_the_loss_of_the_scheduler() -> None:
    step = 3
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3))
    method = Scheduler((0, 0.5, 1), ((0.6, 0.35, 0.35), (1.0, 1.0, 1.0)))
    with regularize(model, method, total_steps=8) as reg:
        reg.begin_step(step)
        loss, logs = reg.loss(batch), reg.logs()
    drops, valid, origins = [], batch["attention_mask"].bool()[:, None, None], torch.zeros(3, 2, dtype=torch.long)
    for i, p in enumerate((0.6 - 0.5 * step / 8, 0.95)):  # the second is beyond the bound
        sampled = sample_mask(p, SampleKey(0, step, 0, 3), f"encoder.{i}", (3, 2, 8, 8), origins, torch.device("cpu"))
        drops.append(sampled & valid)
        counted = valid & valid.transpose(-1, -2)
        share = (sampled & counted).sum() / (counted.sum() * 2)
        assert logs[f"scheduler/dropped/encoder.{i}"] == pytest.approx(share.item())
    with EagerAttention(drops).in_place_of_stock(model):
        torch.testing.assert_close(loss, model(**batch).loss)


@pytest.mark.parametrize(
    ("options", "curves"),
    [
        ({}, ((0.6, 0.0),)),
        ({"probabilities": " 0.6,0.5 ; 1,0 "}, ((0.6, 0.5), (1.0, 0.0))),
    ],
)
def test_probabilities_as_text_and_as_numbers(options: dict[str, Any], curves: tuple[tuple[float, ...], ...]) -> None:
    for method in (Scheduler(**options), build_method("scheduler", options)):
        assert (method.progress, method.probabilities) == ((0.0, 1.0), curves)
        assert build_method("scheduler", json.loads(json.dumps(method.options()))) == method
        assert hash(method) == hash(Scheduler(**options))


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
    ("shape", "layer", "end", "progress"),
    [("qnli", 1, 0.45, 1.0), ("qnli", 4, 0.25, 0.5), ("cola", 4, 0.9, 1.0)],
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


@pytest.mark.parametrize(("progress", "expected"), [(0.1, 0.2), (0.2, 0), (0.6, 0.1)])
def test_the_v(progress: float, expected: float) -> None:
    assert DropHead(p_start=0.4, p_end=0.2, turn=0.2).probability_at(progress) == pytest.approx(expected)


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
            drop = sample_mask(0.5, SampleKey(0, step, 0, 4), layer.key, shape, origins, torch.device("cpu"))[
                :, :, 0, 0
            ].tolist()
            gates = [[0 if gone else heads / own.count(False) for gone in own] for own in drop]
            stack.enter_context(gated(block.output_projections[layer.key], gates))
        torch.testing.assert_close(model(**batch).loss, loss)


@pytest.mark.parametrize("name", ["bert-choice", "albert"])
def test_importance_is_the_effect_of_a_gate_on_the_loss(name: str) -> None:
    """Against the difference quotient of one gate after the other."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, (5, 3))
    with ModelAdapter(model) as adapter:
        attention_layers = adapter.trace(batch)
        found = head_importance(adapter, batch, attention_layers)
    assert [*found] == [layer.key for layer in attention_layers]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for layer in attention_layers[:: max(1, len(attention_layers) - 1)]:
        visit = layer.name.partition("#")[2]  # of a module that several layers share
        block = next(b for b in adapter.blocks if layer.key in b.output_projections)
        for row, head in ((0, 0), (1, -1)):
            losses = []
            for gate in (1.001, 0.999):
                gates = torch.ones(found[layer.key].shape)
                gates[row, head] = gate
                with gated(block.output_projections[layer.key], gates, int(visit or 0)):
                    losses.append(model(**batch).loss.item())
            # Some models compute their norms in single precision.
            quotient = abs(losses[0] - losses[1]) / 0.002
            assert quotient == pytest.approx(found[layer.key][row, head].item(), rel=1e-3, abs=1e-4)


class Without(torch.nn.Module):
    """Gives its input back."""

    def __init__(self, attention_type: str | None) -> None:
        super().__init__()
        self.attention_type = attention_type  # ModernBERT chooses its mask by it

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


@pytest.mark.parametrize("name", ["modernbert", "bart-class", "gpt2-class"])
def test_a_dropped_block_passes_its_input_on(name: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    key = "decoder:0" if name == "gpt2-class" else "encoder:0"
    with regularize(model, LayerDrop(p=1.0, layers=key)) as reg:
        loss = reg.loss(batch)
    adapter = ModelAdapter(model)
    adapter.trace(batch)
    block = adapter.blocks[0].module
    for module in model.modules():
        for child_name, child in module.named_children():
            if child is block:
                module._modules[child_name] = Without(getattr(block, "attention_type", None))
    torch.testing.assert_close(loss, model(**batch).loss)


def test_a_block_that_others_need_always_stays() -> None:
    """T5's first block makes the position bias of all."""
    model, batch = zoo.build("t5"), zoo.batch_of("t5")
    with regularize(model, LayerDrop(p=1.0)) as reg:
        reg.loss(batch)
        assert {key for key in reg.logs() if "dropped/" in key} == {
            "layerdrop/dropped/encoder.1",
            "layerdrop/dropped/decoder.1",
        }
    with (
        pytest.raises(AttendropError, match="none of these layers can be left out"),
        regularize(model, LayerDrop(layers="encoder:0")) as reg,
    ):
        reg.loss(batch)


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


LENGTHS = (8, 5, 3, 6)


def test_the_global_batch_shares_a_draw_however_it_is_cut() -> None:
    model, rows = zoo.build("bert", num_hidden_layers=6), zoo.rows("bert", LENGTHS)
    method = AttentionLayerDrop(p=0.5)
    found = []
    for parts, rank, world in (([rows], 0, 1), ([rows[:1], rows[1:]], 0, 1), ([rows[2:]], 1, 2)):
        reg = Regularization(zoo.training(model, Processes(rank, world)), method)
        reg.begin_step(0)
        for part in parts:
            reg.loss(zoo.collate(part))
            logs = reg.logs()
            found.append([logs[f"attention_layerdrop/dropped/encoder.{layer}"] for layer in range(6)])
        reg.close()
    assert all(one == found[0] for one in found)
    assert 0 < sum(found[0]) < 6


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


class Edited(Plan):
    """Makes the same edit at every block."""

    def __init__(self, edited: BlockEdit) -> None:
        super().__init__()
        self.edited = edited

    def block(self, block: Block) -> BlockEdit:
        return self.edited


@pytest.mark.parametrize(
    ("name", "options", "edited", "message"),
    [
        ("t5", {}, BlockEdit(skip=True), r"encoder\.0: its output .position bias. is used by later blocks"),
        ("bert", {"chunk_size_feed_forward": 2}, BlockEdit(activations=torch.clone), "chunk_size_feed_forward"),
    ],
)
def test_what_blocks_cannot_do_is_refused(name: str, options: dict[str, Any], edited: BlockEdit, message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        passed(zoo.build(name, **options), zoo.batch_of(name, (6, 4)), Edited(edited))
