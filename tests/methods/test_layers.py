"""LayerDrop, of blocks or of attention only, and plans that skip blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from helpers.plans import passed
from torch import Tensor

from attendrop import (
    AttendropError,
    AttentionLayerDrop,
    LayerDrop,
    regularize,
)
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.plan import AttentionCall, BlockEdit, Plan
from attendrop.methods.core.context import Processes
from attendrop.training.regularization import Regularization


class Without(torch.nn.Module):
    """Gives its input back."""

    def __init__(self, attention_type: str | None) -> None:
        super().__init__()
        self.attention_type = attention_type  # ModernBERT chooses its mask by it

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


@pytest.mark.parametrize("name", ["modernbert", "bart-class", "gpt2-class", "vit"])
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


def test_a_dropped_block_is_not_computed_and_gets_no_gradient() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    ran: list[int] = []
    with regularize(model, LayerDrop(p=1.0, layers=[1])) as reg:
        reg.loss(batch)
        for number, layer in enumerate(model.bert.encoder.layer):
            layer.intermediate.register_forward_hook(lambda *_, number=number: ran.append(number))
        reg.loss(batch).backward()
    assert ran == [0]
    assert all(p.grad is None for p in model.bert.encoder.layer[1].parameters())
    assert all(p.grad is not None for p in model.bert.encoder.layer[0].parameters())


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


def test_a_plan_cannot_skip_what_others_need() -> None:
    class Skip(Plan):
        def block(self, block: Block) -> BlockEdit:
            return BlockEdit(skip=True)

    with pytest.raises(AttendropError, match=r"T5Block encoder\.0: its output .position bias. is used by later blocks"):
        passed(zoo.build("t5"), zoo.batch_of("t5"), Skip())


@pytest.mark.parametrize("name", ["bert", "albert"])
@pytest.mark.parametrize("skipped", [{1}, {0, 2}])
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


class Feeding(Plan):
    """Doubles what feed-forwards put out, and keeps the shapes that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def block(self, block: Block) -> BlockEdit:
        return BlockEdit(activations=self.keep, feed_forward=self.keep)

    def keep(self, states: Tensor) -> Tensor:
        self.shapes.append(tuple(states.shape))
        return states * 2


@pytest.mark.parametrize("name", ["bert", "opt-class"])
def test_a_feed_forward_is_given_by_sequence_and_token(name: str) -> None:
    """OPT puts all tokens of the batch in one dimension."""
    plan = Feeding()
    passed(zoo.build(name), zoo.batch_of(name, (6, 4)), plan)
    assert plan.shapes == [(2, 6, 16)] * 4


def test_a_feed_forward_in_chunks_is_refused() -> None:
    model = zoo.build("bert", chunk_size_feed_forward=2)
    with pytest.raises(AttendropError, match=r"some of the tokens at a time.*chunk_size_feed_forward"):
        passed(model, zoo.batch_of("bert", (6, 4)), Feeding())


LENGTHS = (8, 5, 3, 6)


def at_work(
    model: Any, method: AttentionLayerDrop, *, step: int = 0, seed: int = 0, rank: int = 0, world: int = 1
) -> Any:
    training = zoo.training(model, Processes(rank, world), seed=seed)
    regularization = Regularization(training, method)
    regularization.begin_step(step)
    return regularization


def chosen(reg: Regularization, batch: zoo.Batch) -> dict[str, bool]:
    """Which layers one pass chose, as the logs say."""
    reg.loss(batch)
    prefix = "attention_layerdrop/dropped/"
    return {k.removeprefix(prefix): bool(v) for k, v in reg.logs().items() if k.startswith(prefix)}


def test_the_global_batch_shares_a_draw_however_it_is_cut() -> None:
    model, rows = zoo.build("bert", num_hidden_layers=6), zoo.rows("bert", LENGTHS)
    method = AttentionLayerDrop(p=0.5)
    for step in range(3):
        found = []
        for parts, rank, world in (([rows], 0, 1), ([rows[:1], rows[1:]], 0, 1), ([rows[2:]], 1, 2)):
            reg = at_work(model, method, step=step, rank=rank, world=world)
            found += [chosen(reg, zoo.collate(part)) for part in parts]
            reg.close()
        assert all(one == found[0] for one in found)
        assert 0 < sum(found[0].values()) < 6


@pytest.mark.parametrize(("name", "step"), [("llama-class", 1), ("bart-class", 2)])
def test_chosen_layers_attend_equally_to_valid_keys(name: str, step: int) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name)
    reg = at_work(model, AttentionLayerDrop(p=0.5), step=step)
    loss = reg.loss(batch)
    logs = reg.logs()
    attention_layers = reg.adapter.attention_layers
    reg.close()
    drops = [
        torch.full((1, 1, 1, 1), bool(logs[f"attention_layerdrop/dropped/{layer.key}"])) for layer in attention_layers
    ]
    with EagerAttention(drops).in_place_of_stock(model) as oracle:
        torch.testing.assert_close(loss, model(**batch).loss)
    assert len(oracle.weights) == len(attention_layers)


@pytest.mark.parametrize("p", [1, 1e-6])
def test_the_models_own_dropout_stays_and_is_drawn_alike(p: float) -> None:
    model, batch = zoo.build("bert", dropout=0.3), zoo.batch_of("bert")
    torch.manual_seed(5)
    plain: Tensor = model(**batch).loss
    after = torch.rand(1)
    torch.manual_seed(5)
    reg = at_work(model, AttentionLayerDrop(p=p))
    loss = reg.loss(batch)
    reg.close()
    assert torch.equal(torch.rand(1), after)
    assert torch.equal(loss, plain) == (p != 1)
