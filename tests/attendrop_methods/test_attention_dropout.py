"""DropBlock, DropAttention, adversarial dropout, HeadMask, Alpha Dropout and EDropout: what is dropped."""

from __future__ import annotations

import math
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention, gated
from helpers.plans import weighted
from torch import Tensor

from attendrop import Method, regularize
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit
from attendrop.methods.core.base import MethodState
from attendrop.methods.core.context import RunningStatistics, StepContext
from attendrop.randomness.keyed_random import SampleKey, sample_mask, uniform
from attendrop.training.regularization import Regularization
from attendrop_methods import AdversarialDropout, AlphaDropout, DropAttention, DropBlock, EDropout, HeadMask
from attendrop_methods.attention_dropout import _EDropoutState


def context_of(rows: int, layer: int = 0, step: int = 0) -> StepContext:
    """The context of a model whose only attention layer is that of an encoder."""
    adapter: Any = SimpleNamespace(attention_layers=[AttentionLayer("a", "encoder", layer)], masks_seen={})
    key, model = SampleKey(0, step, 0, rows), torch.nn.Identity()
    return StepContext(model, {}, key, RunningStatistics(), "method", adapter=adapter)


def edit_of(
    method: Method | MethodState, shape: tuple[int, int, int, int], valid: Tensor | None = None, layer: int = 0
) -> AttentionEdit:
    """What a method's plan makes of a layer in which queries attend to keys, ``(batch, heads, query, key)``."""
    context = context_of(shape[0], layer)
    plan = method.plan(context)
    edit = plan.edit(AttentionCall(context.adapter.attention_layers[0], shape, valid, torch.device("cpu")))
    return edit


def gamma(p: float, size: int, rows: int, n: int) -> float:
    """The probability that a block begins at a place where it fits, in a row of ``n`` valid keys."""
    size = min(size, n)
    return p / (rows * size) * n / (n - size + 1)


def blocks(method: DropBlock, key: SampleKey, layer: str, valid: Tensor) -> Tensor:
    """The mask, one row, one block after the other. ``valid``: ``(batch, heads, query, key)``, no padding in front."""
    batch, heads, queries, keys = valid.shape
    origins = torch.zeros(batch, 2, dtype=torch.long)
    chances = torch.zeros(valid.shape)
    for index in torch.cartesian_prod(*map(torch.arange, valid.shape[:3])).tolist():
        row = valid[tuple(index)].nonzero().flatten().tolist()
        for place in row[: max(1, len(row) - method.block_size + 1)]:
            chances[(*index, place)] = gamma(method.p, method.block_size, method.block_rows, len(row))
    if method.block_rows == 1:
        seeds = sample_mask(chances, key, layer, tuple(valid.shape), origins, origins.device)[:, :, None]  # type: ignore[arg-type]
    else:
        sampled = uniform(key, layer, (batch, heads, queries + method.block_rows - 1, keys), origins, origins.device)
        seeds = torch.stack([sampled[:, :, above : above + queries] < chances for above in range(method.block_rows)], 2)
    drop = torch.zeros_like(valid)
    for b, h, _, i, j in seeds.nonzero().tolist():
        for position in range(j, min(j + method.block_size, keys)):
            drop[b, h, i, position] = valid[b, h, i, position]
    return drop


@pytest.mark.parametrize(
    ("name", "method"),
    [("gpt2-class", DropBlock(p=0.5, block_size=3, block_rows=3)), ("bart-class", DropBlock(p=0.4, block_size=3))],
    ids=str,
)
def test_the_loss_of_dropblock(name: str, method: DropBlock) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name, (10, 5, 2))
    with regularize(model, method) as reg:
        loss, attention_layers = reg.loss(batch), reg.adapter.attention_layers
    with EagerAttention().in_place_of_stock(model) as plain:
        model(**batch)
    drops = [
        blocks(method, SampleKey(0, 0, 0, 3), s.key, v) for s, v in zip(attention_layers, plain.valid, strict=True)
    ]
    with EagerAttention(drops).in_place_of_stock(model):
        torch.testing.assert_close(loss, model(**batch).loss)
    assert any(drop.any() for drop in drops)


SHAPE = (4, 3, 9, 9)
LENGTHS = (9, 7, 4, 2)


def attention(valid: Tensor) -> Tensor:
    scores = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~valid, -torch.inf).softmax(-1).requires_grad_()


VALID = (torch.arange(9) < torch.tensor(LENGTHS)[:, None])[:, None, None].expand(SHAPE)
CAUSAL = torch.ones(9, 9).tril().bool().expand(SHAPE)


@pytest.mark.parametrize(("valid", "unit"), [(VALID, "column"), (CAUSAL, "element")], ids=["padded", "causal"])
def test_the_rest_of_a_row_is_divided_by_its_sum_without_a_gradient_of_the_sum(unit: str, valid: Tensor) -> None:
    edit = edit_of(DropAttention(p=0.4, unit=unit), SHAPE, valid)
    before = attention(valid)
    assert edit.weights is not None and edit.dropout == 0
    found = edit.weights(before)
    factors = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((found * factors).sum(), before)
    rows = 9 if unit == "element" else 1
    origins = torch.zeros(4, 2, dtype=torch.long)
    drop = sample_mask(0.4, SampleKey(0, 0, 0, 4), "encoder.0", (4, 3, rows, 9), origins, origins.device).expand(SHAPE)
    wholes = 0
    for index in torch.cartesian_prod(*map(torch.arange, SHAPE[:3])).tolist():
        row, after, slope, factor = (x[tuple(index)].tolist() for x in (before.detach(), found, gradient, factors))
        columns = [j for j in range(9) if valid[(*index, j)]]
        kept = [j for j in columns if not drop[(*index, j)]]
        wholes += not kept
        for j in range(9):
            value, derivative = 0.0, 0.0
            if j in kept:
                value, derivative = (number / sum(row[k] for k in kept) for number in (row[j], factor[j]))
            elif j in columns and not kept:
                value = 1 / len(columns)
            assert after[j] == pytest.approx(value, rel=1e-6)
            assert slope[j] == pytest.approx(derivative, rel=1e-6)
    assert wholes > 0


def changed_by_hand(mask: Tensor, gradient: Tensor, valid: Tensor, delta: float) -> Tensor:
    """The greedy algorithm, sequence by sequence; gradients have no ties."""
    found = mask.clone()
    for row, slope, own, after in zip(mask, gradient, valid, found, strict=True):
        places = [tuple(index) for index in own.nonzero().tolist()]
        raising = [i for i in places if (slope[i] < 0 if row[i] == 1 else slope[i] > 0)]
        raising.sort(key=lambda i: -abs(float(slope[i])))
        for index in raising[: int(len(places) * delta + 1e-6)]:
            after[index] = 1 - after[index]
    return found


def test_the_loss_of_adversarial_dropout() -> None:
    model: Any = zoo.build("bert", dtype=torch.float64)
    batch = zoo.batch_of("bert", (8, 5, 3))
    with regularize(model, AdversarialDropout(p=0.2, delta=0.1, weight=0.7)) as reg:
        loss = reg.loss(batch)
        raised = reg.logs()["adversarial_dropout/raised"]
    keys, origins = ("encoder.0", "encoder.1"), torch.zeros(3, 2, dtype=torch.long)
    masks = {
        key: (~sample_mask(0.2, SampleKey(0, 0, 0, 3), key, (3, 2, 8, 8), origins, origins.device))
        .double()
        .requires_grad_()
        for key in keys
    }
    first = weighted(model, batch, {key: mask / 0.8 for key, mask in masks.items()}).loss
    gradients = torch.autograd.grad(first, list(masks.values()))
    inside = batch["attention_mask"].bool()
    valid = (inside[:, None, None] & inside[:, None, :, None]).expand(3, 2, 8, 8)
    changed = {
        key: changed_by_hand(masks[key].detach(), gradient, valid & (gradient != 0).any(-1, keepdim=True), 0.1) / 0.8
        for key, gradient in zip(keys, gradients, strict=True)
    }
    second = weighted(model, batch, changed).loss
    torch.testing.assert_close(loss, first + 0.7 * second, rtol=1e-6, atol=1e-6)
    assert raised == pytest.approx((second - first).item(), abs=1e-6)
    assert raised > 0


def masked(method: HeadMask, batch: int, heads: int, importance: Tensor | None = None, layer: int = 0) -> Tensor:
    """Which heads of which sequence are masked, ``(batch, heads)``."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = {f"encoder.{layer}": importance}
        monkeypatch.setattr("attendrop_methods.attention_dropout.head_importance", lambda *_: found)
        output = edit_of(method, (batch, heads, 3, 3), layer=layer).output
    after = output(torch.ones(batch, 3, heads, 2))
    assert set(after.unique().tolist()) <= {0.0, 1.0}  # nothing is rescaled
    return after[:, 0, :, 0] == 0


def test_the_most_important_heads_are_masked() -> None:
    importance = torch.tensor([[0.1, 0.4, 0.3, 0.2], [5.0, 1.0, 2.0, 6.0], [0.0, 0.0, 0.0, 0.0]])
    found = masked(HeadMask(fraction=0.5, select_by="importance"), 3, 4, importance)
    assert found.tolist() == [
        [False, True, True, False],
        [True, False, False, True],
        [True, True, False, False],  # no signal: two of them all the same
    ]


ALPHA = -1.7580993408473766


def test_each_unit_is_kept_or_saturated_and_then_transformed() -> None:
    p, q = 0.1, 0.9
    inputs = torch.randn(2, 6, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edit = edit_of(AlphaDropout(p=p), (2, 2, 6, 6))
    found = edit.output(inputs)
    assert torch.equal(edit.output(inputs), found)  # under activation checkpointing it is called again
    a = 1 / math.sqrt(q + ALPHA**2 * q * (1 - q))
    b = -a * (1 - q) * ALPHA
    dropped = (found - (a * ALPHA + b)).abs() < 1e-9
    torch.testing.assert_close(found[~dropped], a * inputs[~dropped] + b)
    assert dropped.double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * q / inputs.numel()))


KEY = SampleKey(0, 0, 0, 3)


def loss_with(model: Any, batch: zoo.Batch, drops: list[list[bool]]) -> Tensor:
    """The loss of the stock model without some heads, by layer; the others are scaled up."""
    with ExitStack() as stack:
        for layer, drop in zip(model.bert.encoder.layer, drops, strict=True):
            kept = len(drop) - sum(drop)
            gates = [0.0 if each else len(drop) / kept for each in drop]
            stack.enter_context(gated(layer.attention.output.dense, [gates] * len(batch["input_ids"])))
        return model(**batch).loss


def state(population: Any, number: int) -> list[list[bool]]:
    return [population.dropped(KEY, f"encoder.{layer}", 4, number).tolist() for layer in range(2)]


def test_a_step() -> None:
    model = zoo.build("bert", dtype=torch.float64, num_attention_heads=4)
    batch = zoo.batch_of("bert")
    reg = Regularization(zoo.training(model), EDropout(p=0.4, population=5))
    loss = reg.loss(batch)
    population: Any = reg.method_state
    states = [state(population, number) for number in range(10)]
    torch.testing.assert_close(loss, loss_with(model, batch, states[0]))
    energies = [loss_with(model, batch, each).item() for each in states]
    assert population.energies.tolist() == pytest.approx(energies)
    reg.step()
    survivors = [one if energies[i] <= energies[i + 5] else states[i + 5] for i, one in enumerate(states[:5])]
    lowest = [min(energies[i], energies[i + 5]) for i in range(5)]
    assert survivors != states[:5]
    assert [[each[i].tolist() for each in population.states.values()] for i in range(5)] == survivors
    assert population.best == min(range(5), key=lambda i: lowest[i])
    torch.testing.assert_close(reg.loss(batch), loss_with(model, batch, survivors[population.best]))
    report = population.final_report([])["edropout"]
    assert report == {
        f"encoder.{layer}": [head for head, each in enumerate(drop) if each]
        for layer, drop in enumerate(survivors[population.best])
    }
    reg.close()


def test_an_energy_that_is_not_finite_loses() -> None:
    population: Any = _EDropoutState(EDropout(), zoo.training(zoo.build("bert")))
    population.states = {"encoder.0": torch.tensor([[False]] * 4)}
    population.challengers = {"encoder.0": torch.tensor([[True]] * 4)}
    population.energies = torch.tensor([1.0, torch.nan, 0.5, 1.0, torch.nan, 0.4, torch.nan, 2.0])
    population.after_step(1)
    assert population.states["encoder.0"].flatten().tolist() == [False, True, False, False]
    assert population.best == 1
