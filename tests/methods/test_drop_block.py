"""DropBlock: where blocks begin, what they cover, and the fraction of positions that is dropped."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from helpers.oracles import EagerAttention
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from attendrop import DropBlock, regularize
from attendrop.methods.score_dropout import spread
from attendrop.randomness.keyed_random import SampleKey, sample_mask, uniform

CPU = torch.device("cpu")


def gamma(p: float, size: int, rows: int, n: int) -> float:
    """The probability that a block begins at a place where it fits, in a row of ``n`` valid keys."""
    size = min(size, n)
    return p / (rows * size) * n / (n - size + 1)


def expected(p: float, size: int, rows: int, n: int) -> list[float]:
    """The probability that each of a row's ``n`` valid positions is dropped: that some block covers it."""
    size = min(size, n)
    places = [sum(begin <= j < begin + size for begin in range(n - size + 1)) for j in range(n)]
    return [1 - (1 - gamma(p, size, rows, n)) ** (rows * count) for count in places]


def dropped(method: DropBlock, shape: tuple[int, int, int, int], valid: Tensor | None) -> Tensor:
    drop = edit_of(method, shape, valid).drop
    assert drop is not None and drop.shape == shape
    return drop


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
        seeds = sample_mask(chances, key, layer, tuple(valid.shape), origins, CPU)[:, :, None]  # type: ignore[arg-type]
    else:
        sampled = uniform(key, layer, (batch, heads, queries + method.block_rows - 1, keys), origins, CPU)
        seeds = torch.stack([sampled[:, :, above : above + queries] < chances for above in range(method.block_rows)], 2)
    drop = torch.zeros_like(valid)
    for b, h, _, i, j in seeds.nonzero().tolist():
        for position in range(j, min(j + method.block_size, keys)):
            drop[b, h, i, position] = valid[b, h, i, position]
    return drop


METHODS = [DropBlock(p=0.4, block_size=3), DropBlock(p=0.3, block_size=1), DropBlock(p=0.5, block_size=3, block_rows=3)]


@pytest.mark.parametrize(
    ("name", "method"),
    [("bert", METHODS[0]), ("bert", METHODS[1]), ("gpt2-class", METHODS[2]), ("bart-class", METHODS[0])],
    ids=str,
)
def test_the_loss_is_that_of_the_formula(name: str, method: DropBlock) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name, (10, 5, 2))
    with regularize(model, method) as reg:
        loss, attention_layers = reg.loss(batch), reg._adapter.attention_layers
    with EagerAttention().in_place_of_stock(model) as plain:
        model(**batch)
    drops = [
        blocks(method, SampleKey(0, 0, 0, 3), s.key, v) for s, v in zip(attention_layers, plain.valid, strict=True)
    ]
    with EagerAttention(drops).in_place_of_stock(model):
        torch.testing.assert_close(loss, model(**batch).loss)
    assert any(drop.any() for drop in drops)


@pytest.mark.parametrize(("p", "size", "rows"), [(0.3, 3, 1), (0.2, 20, 1), (0.4, 3, 2)])
@pytest.mark.parametrize("n", [1, 4, 12])
def test_each_position_is_dropped_as_often_as_blocks_cover_it(p: float, size: int, rows: int, n: int) -> None:
    valid = torch.arange(14) < n
    drop = dropped(DropBlock(p=p, block_size=size, block_rows=rows), (40, 10, 50, 14), valid[None, None, None])
    exact = expected(p, size, rows, n)
    found = drop.double().mean((0, 1, 2))
    assert found[:n].tolist() == pytest.approx(exact, abs=0.02)  # 20,000 rows
    assert not drop[..., n:].any()
    # The whole share is about p: below it by what blocks overlap.
    assert p * (1 - p) < sum(exact) / n <= p + 1e-9


def test_rows_of_causal_attention_have_as_many_blocks_as_keys() -> None:
    valid = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    drop = dropped(DropBlock(p=0.3, block_size=3), (200, 50, 9, 9), valid)
    for row in range(9):
        found = drop[:, :, row, : row + 1].double().mean((0, 1)).tolist()
        assert found == pytest.approx(expected(0.3, 3, 1, row + 1), abs=0.025)
    assert not (drop & ~valid).any()


@pytest.mark.parametrize("rows", [1, 3])
def test_each_dropped_position_is_in_a_block(rows: int) -> None:
    drop = dropped(DropBlock(p=0.15, block_size=4, block_rows=rows), (10, 4, 30, 30), None)
    # Blocks of several rows are cut off above the first row and below the last.
    drop = functional.pad(drop, (0, 0, rows - 1, rows - 1), value=True)
    covered = torch.zeros_like(drop)
    whole = drop.unfold(2, rows, 1).unfold(3, 4, 1).all(-1).all(-1)
    for i, j in torch.cartesian_prod(torch.arange(rows), torch.arange(4)).tolist():
        covered[:, :, i : i + whole.shape[2], j : j + whole.shape[3]] |= whole
    assert not (drop & ~covered)[:, :, rows - 1 : rows + 29].any()
    assert 0.1 < drop.double().mean() < 0.3


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 15))
def test_blocks_reach_to_the_right(seeds: list[bool], size: int) -> None:
    covered = [any(seeds[max(0, j - size + 1) : j + 1]) for j in range(len(seeds))]
    assert spread(torch.tensor(seeds), size).tolist() == covered


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_almost_everything_dropped_is_finite(dtype: torch.dtype) -> None:
    model, batch = zoo.build("bert", dtype=dtype), zoo.batch_of("bert", (8, 2, 1))
    with regularize(model, DropBlock(p=0.99999, block_size=50)) as reg:
        loss = reg.loss(batch)
        assert reg.logs()["dropblock/dropped"] == 1
        loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value).all() for value in zoo.gradients(model).values())
