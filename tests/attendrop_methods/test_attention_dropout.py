"""DropBlock, DropAttention and adversarial dropout: what is dropped, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from helpers.oracles import EagerAttention
from helpers.weighted import weighted
from torch import Tensor

from attendrop import AttendropError, Compose, Vanilla, regularize
from attendrop.attention.plan import AttentionEdit
from attendrop.randomness.keyed_random import SampleKey, sample_mask, uniform
from attendrop_methods import AdversarialDropout, DropAttention, DropBlock, attention_dropout
from attendrop_methods.attention_dropout import flipped


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


BLOCKS = [DropBlock(p=0.4, block_size=3), DropBlock(p=0.3, block_size=1), DropBlock(p=0.5, block_size=3, block_rows=3)]


@pytest.mark.parametrize(
    ("name", "method"),
    [("bert", BLOCKS[1]), ("gpt2-class", BLOCKS[2]), ("bart-class", BLOCKS[0])],
    ids=str,
)
def test_the_loss_is_that_of_the_formula(name: str, method: DropBlock) -> None:
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


def test_almost_everything_dropped_is_finite() -> None:
    model, batch = zoo.build("bert", dtype=torch.bfloat16), zoo.batch_of("bert", (8, 2, 1))
    with regularize(model, DropBlock(p=0.99999, block_size=50)) as reg:
        loss = reg.loss(batch)
        assert reg.logs()["dropblock/dropped"] == 1
        loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value).all() for value in zoo.gradients(model).values())


SHAPE = (4, 3, 9, 9)


LENGTHS = (9, 7, 4, 2)


def attention(valid: Tensor) -> Tensor:
    scores = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~valid, -torch.inf).softmax(-1).requires_grad_()


VALID = (torch.arange(9) < torch.tensor(LENGTHS)[:, None])[:, None, None].expand(SHAPE)


CAUSAL = torch.ones(9, 9).tril().bool().expand(SHAPE)


@pytest.mark.parametrize("valid", [VALID, CAUSAL], ids=["padded", "causal"])
@pytest.mark.parametrize("unit", ["element", "column"])
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_small_weights_are_normalised_and_have_finite_gradients(dtype: torch.dtype) -> None:
    """The first key takes nearly all the weight; of a row without it, float16 has few digits left, or none."""
    edit = edit_of(DropAttention(p=0.4, unit="element"), SHAPE)
    scores = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    scores[..., 0] = torch.linspace(6, 90, 9)
    scores.requires_grad_()
    found = edit.weights(scores.softmax(-1).to(dtype))
    torch.testing.assert_close(found.float().sum(-1), torch.ones(SHAPE[:3]), rtol=0, atol=0.02)
    (100 * found * torch.arange(1.0, 10).to(dtype)).sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_a_row_that_loses_its_keys_to_two_methods_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    make = AttentionEdit.drop_weights

    def drop_weights(edit: AttentionEdit, *args: Any) -> Tensor:
        found.append(make(edit, *args))
        return found[-1]

    monkeypatch.setattr(AttentionEdit, "drop_weights", drop_weights)
    batch = zoo.batch_of("bert", (4, 4, 4))
    with regularize(zoo.build("bert", dtype=torch.float64), Compose(Vanilla(p=0.5), DropAttention(p=0.5))) as reg:
        reg.loss(batch)
    rows = torch.stack(found)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 2, 4, dtype=torch.float64))
    assert (rows == 0.25).all(-1).any()


def without_weight(method: DropAttention, valid: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor:
    """The positions that lose their weight; those of a row that is without_weight whole do not."""
    edit = edit_of(method, shape, valid)
    return edit.weights(torch.ones(shape)) == 0


@pytest.mark.parametrize("unit", ["element", "column"])
def test_neighbours_are_dropped_together(unit: str) -> None:
    drop = without_weight(DropAttention(p=0.2, unit=unit, window=3), None, (64, 4, 30, 30))
    for row in drop[:, :, 0].flatten(0, 1).tolist():
        runs = "".join("x" if each else " " for each in row).split()
        assert all(len(run) >= 3 for run in runs)
    assert drop.float().mean().item() == pytest.approx(0.19, abs=0.015)  # 0.2, less the overlap of windows


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


def numbers_changed(name: str, monkeypatch: pytest.MonkeyPatch, **padding: int) -> list[list[int]]:
    """How many positions of each layer and sequence are changed, in the order of execution."""
    found = []

    def counted(mask: Tensor, *given: Any) -> Tensor:
        after = flipped(mask, *given)
        found.append((after != mask).flatten(1).sum(-1).tolist())
        return after

    monkeypatch.setattr(attention_dropout, "flipped", counted)
    with regularize(zoo.build(name, dtype=torch.float64), AdversarialDropout(p=0.2, delta=0.05)) as reg:
        reg.loss(zoo.batch_of(name, (12, 5), **padding))
    monkeypatch.undo()
    return found


def test_delta_is_a_fraction_of_the_positions_that_the_loss_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer of BERT has one row of 12 and 5 keys in each of 2 heads."""
    assert numbers_changed("bert", monkeypatch) == [[14, 2], [1, 0]]


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_padded_targets_do_not_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers_changed(name, monkeypatch) == numbers_changed(name, monkeypatch, extra=20)


def test_it_takes_the_place_of_the_models_own_attention_dropout() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64, attention_probs_dropout_prob=0.5), zoo.batch_of("bert")
    with regularize(model, AdversarialDropout(p=1e-9, delta=1e-6)) as reg:
        torch.testing.assert_close(reg.loss(batch), 2 * model.eval()(**batch).loss)
        model.train()
    with pytest.raises(AttendropError, match="dropout of attention weights"):
        Compose(AdversarialDropout(), Vanilla(where="weights"))
