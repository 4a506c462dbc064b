"""Calls of attention layers, their valid keys, and edits: no engine ignores one, and none is lost in combination."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.plans import Everywhere, Weights, attached
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from attendrop import SCAL, ADDrop, AttendropError, regularize
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, BlockEdit, DropoutDraws, Plan, ReadyMask, merge_edits
from attendrop_methods import TokenCutoff

# A model for each way in which edits are applied.
ENGINES = pytest.mark.parametrize("name", ["bert", "deberta-v3", "mpnet"])


@cache
def logits(name: str, plan: Plan | None) -> Tensor:
    batch = zoo.batch_of(name)
    adapter = attached(zoo.build(name).train(), batch)
    torch.manual_seed(0)
    return adapter.forward(batch, plan).logits


def test_merging_goes_over_all_fields() -> None:
    drops = torch.tensor([True, False]), torch.tensor([False, False])
    found = merge_edits([AttentionEdit(drop=drops[0]), AttentionEdit(dropout=0.5, drop=drops[1]), AttentionEdit()])
    assert found is not None and found.dropout == 0.5
    assert found.drop is not None and found.drop.tolist() == [True, False]
    assert merge_edits([BlockEdit(), BlockEdit(skip=True)]) == BlockEdit(skip=True)
    with pytest.raises(AttendropError, match="use one of them"):
        merge_edits([AttentionEdit(dropout=0.1), AttentionEdit(dropout=0.0)])


READ: list[Tensor] = []
FIELDS: dict[str, Any] = {
    "drop": torch.tensor([[[[True] + [False] * 7]]]),
    "weights": lambda weights: weights * 0.5,
    "constant": True,
    "output": lambda output: output * 0.5,
    "inputs": lambda query, key, value: (query, key, value * 0.5),
    "values": READ.append,
    "dropout": 0.9,
}


# "bert" runs a fused kernel for most fields; a function of the weights has every engine compute them.
CASES = [(field, too) for field in FIELDS for too in (False, True) if not (too and field == "weights")]


@pytest.mark.parametrize(("field", "explicit"), CASES)
@ENGINES
def test_every_field_has_an_effect(name: str, field: str, explicit: bool) -> None:
    READ.clear()
    others = {"weights": lambda weights: weights} if explicit else {}
    found = logits(name, Everywhere(AttentionEdit(**{field: FIELDS[field]}, **others)))
    assert found.isfinite().all()
    assert READ or not torch.allclose(found, logits(name, None))
    without_effect = {"draws", "in_part", "ready"}
    assert FIELDS.keys() == {each.name for each in fields(AttentionEdit)} - without_effect


# --- Where the tokens of a call are


CPU = torch.device("cpu")


def call_of(valid: Tensor | None, kind: str = "encoder", size: int = 5, keys: int | None = None) -> AttentionCall:
    return AttentionCall(AttentionLayer("layer", kind, 0), (2, 1, size, keys or size), valid, CPU)


LENGTHS = torch.tensor([5, 3])[:, None, None, None]
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
RIGHT = torch.arange(5) < LENGTHS
LEFT = torch.arange(5) >= 5 - LENGTHS


@pytest.mark.parametrize(
    ("valid", "kind", "expected"),
    [
        (None, "encoder", [[0, 0], [0, 0]]),
        (RIGHT, "encoder", [[0, 0], [0, 0]]),
        (RIGHT & CAUSAL, "decoder", [[0, 0], [0, 0]]),
        (LEFT, "encoder", [[0, 0], [2, 2]]),
        (LEFT & CAUSAL, "decoder", [[0, 0], [2, 2]]),
        (LEFT, "cross", [[0, 0], [0, 2]]),
    ],
)
def test_origins(valid: Tensor | None, kind: str, expected: list[list[int]]) -> None:
    assert call_of(valid, kind).origins().tolist() == expected
    for queries, first in ((4, 1), (3, 0), (1, 0)):  # which follow a cache
        after = (LEFT & CAUSAL)[..., -queries:, :]
        assert call_of(after, "decoder", queries, 5).origins().tolist() == [[0, 0], [first, 2]]


def test_valid_queries_are_those_that_someone_may_attend_to() -> None:
    assert call_of(None).valid_queries() is None
    assert call_of(RIGHT, "cross").valid_queries() is None
    for valid in (RIGHT, RIGHT & CAUSAL):
        found = call_of(valid).valid_queries()
        assert found.squeeze().tolist() == [[True] * 5, [True] * 3 + [False] * 2]


# --- Which keys the model's mask hides


KEYS = torch.tensor([6, 4])
VALID = (torch.arange(6) < KEYS[:, None])[:, None, None, :].expand(2, 1, 6, 6)
EVERYTHING = torch.ones(1, 1, 1, 1, dtype=torch.bool)

# What models add to their scores beside the mask.
BIASES = {"no bias": (0, 0), "relative bias": (5, 0), "bias far from zero": (5, -30)}


def look(mask: Tensor, dtype: torch.dtype, drop: Tensor | None = None) -> Weights:
    """One call of the registered function under a plan."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(2, 2, 6, 4, generator=generator).to(dtype) for _ in range(3))
    module, plan = torch.nn.Identity(), Weights(drop)
    plan._layers_by_module = {module: (AttentionLayer("layer", "encoder", 0),)}
    AttentionInterface._global_mapping["attendrop"](
        module, query, key, value, mask.to(dtype), scaling=0.7, is_causal=False, attendrop_plan=plan
    )
    return plan


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("hidden", ["-inf", "min", "-100"])
def test_padding_is_hidden_by_any_hugely_negative_mask(hidden: str, dtype: torch.dtype, bias: str) -> None:
    scale, shift = BIASES[bias]
    number = torch.finfo(dtype).min if hidden == "min" else float(hidden)
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.float64).masked_fill(~VALID, number).to(dtype)
    mask = mask + (torch.randn(1, 2, 6, 6) * scale + shift).to(dtype)
    for drop in (None, EVERYTHING):
        plan = look(mask, dtype, drop)
        assert torch.equal(plan.valid["encoder.0"].expand(2, 2, 6, 6), VALID.expand(2, 2, 6, 6))
        assert (plan.seen["encoder.0"].masked_select(~VALID) == 0).all()
    expected = VALID / KEYS.view(2, 1, 1, 1)
    torch.testing.assert_close(plan.seen["encoder.0"].float(), expected.expand(2, 2, 6, 6), rtol=1e-2, atol=0)


def test_rows_that_hide_everything_do_no_harm() -> None:
    """A custom mask hides padding from every row, and every key from rows of padding."""
    batch, found = zoo.batch_of("bert"), []
    real = batch["attention_mask"].bool()
    seen = real[:, None, None, :] & real[:, None, :, None]
    for hidden in (-torch.inf, torch.finfo(torch.float32).min):
        model = zoo.build("bert", "sdpa")
        mask = torch.zeros(seen.shape).masked_fill(~seen, hidden)
        with regularize(model, ADDrop(layers="all")) as reg:
            loss = reg.loss({**batch, "attention_mask": mask})
            loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        found.append(loss.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    mask = torch.where(VALID, 0.0, -1e4)
    mask[1, :, 4:] = -1e4
    plan, stock = look(mask, torch.float32, EVERYTHING), look(mask, torch.float32)
    assert not plan.valid["encoder.0"].expand(2, 2, 6, 6)[1, :, 4:].any()
    torch.testing.assert_close(plan.seen["encoder.0"][1, :, 4:], stock.seen["encoder.0"][1, :, 4:])


@pytest.mark.parametrize("method", [TokenCutoff(fraction=0.3, alpha=0), SCAL()])
def test_methods_know_padding_by_masks_of_any_form(method: Any) -> None:
    batch = zoo.batch_of("bert", (6, 4))
    real = batch["attention_mask"].bool()
    of_keys = real[:, None, None]
    forms = [batch["attention_mask"], of_keys, torch.zeros(of_keys.shape).masked_fill(~of_keys, -1e9)]
    forms += [torch.zeros(2, 1, 6, 6).masked_fill(~of_keys, -torch.inf), of_keys.expand(2, 1, 6, 6)]
    found = []
    for mask in forms:
        with regularize(zoo.build("bert", "sdpa"), method) as reg:
            found.append(reg.loss({**batch, "attention_mask": mask}).item())
    assert found == pytest.approx([found[0]] * len(forms), rel=1e-5)


# --- Draws of dropout that two passes have in common are made once


SHAPE = (2, 3, 17, 17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drawn_or_kept_it_is_the_dropout_of_torch(dtype: torch.dtype) -> None:
    """Another random state, shape or probability draws anew."""
    draws = DropoutDraws()
    cases = [(3, SHAPE, 0.5), (3, SHAPE, 0.5), (4, SHAPE, 0.5), (3, (*SHAPE[:3], 9), 0.5), (3, SHAPE, 0.4)]
    for seed, shape, p in [*cases, (3, SHAPE, 0.0), (3, SHAPE, 1.0)]:
        weights, found = torch.randn(shape).to(dtype), []
        for dropout in (functional.dropout, draws.dropout, draws.dropout):
            torch.manual_seed(seed)
            found.append([dropout(weights, p), dropout(weights, p), torch.rand(4)])
        for passes in found[1:]:
            assert all(torch.equal(one, other) for one, other in zip(passes, found[0], strict=True))


def test_ad_drop_draws_the_dropout_of_each_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("attendrop.attention.plan.pack", lambda kept: drawn.append(kept) or (kept, kept.shape))
    monkeypatch.setattr("attendrop.attention.plan.unpack", lambda kept, shape: kept)
    with regularize(zoo.build("bert", dropout=0.5, num_hidden_layers=3), ADDrop(layers="all")) as reg:
        reg.loss(zoo.batch_of("bert")).backward()
    assert len(drawn) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("whole_rows", [False, True])
def test_ready_masks_hide_by_minus_infinity_in_every_dtype(dtype: torch.dtype, whole_rows: bool) -> None:
    valid, drop = torch.rand(2, 1, 4, 6) < 0.8, torch.rand(2, 3, 4, 6) < 0.5
    valid[..., :1], drop[..., :1] = True, False  # no row is dropped whole
    found = ReadyMask.of(valid, drop & valid, drop.shape, dtype, whole_rows=whole_rows)
    expected = torch.zeros(drop.shape, dtype=dtype).masked_fill(drop | ~valid, -torch.inf)
    assert torch.equal(found.additive, expected)
    assert (found.queries is None) is not whole_rows
