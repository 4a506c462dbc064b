"""Candidate regions: pure tensor functions against loops."""

import pytest
import torch
from helpers import oracles
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attendrop.randomness.candidates import candidate_region, floor_fraction


@pytest.mark.parametrize(
    ("row", "p", "direction", "expected"),
    [
        ([1, 2, 3, 4], 0.5, "high", [0, 0, 1, 1]),
        ([1, 2, 3, 4], 0.9, "high", [0, 1, 1, 1]),  # never the whole row: t is at least 1
        ([0, 0, 0, 1], 0.5, "high", [0, 0, 0, 1]),  # ties take in the whole row: above instead of at least
        ([0, 0, 0, 0], 0.5, "high", [0, 0, 0, 0]),  # no signal
        ([7], 0.5, "high", [0]),
        ([1, 2, 3, 4], 0.5, "low", [1, 1, 0, 0]),
        ([1, 1, 1, 2], 0.5, "low", [0, 0, 0, 0]),
        ([1, 2, 3], 0.1, "low", [0, 0, 0]),
        ([-4, 1, 2, 3], 0.5, "magnitude", [1, 0, 0, 1]),
    ],
)
def test_candidates_of_one_row(row: list[float], p: float, direction: str, expected: list[int]) -> None:
    region = candidate_region(torch.tensor([[[row]]], dtype=torch.float32), None, p, direction)
    assert region.mask.flatten().int().tolist() == expected
    assert oracles.candidates_of_row([float(x) for x in row], p, direction) == [bool(x) for x in expected]
    assert bool(region.signal) == (len(set(row)) > 1)
    lowest = candidate_region(torch.tensor([[[[1.0, 2.0, 3.0]]]]), None, 1 - 1e-9, "low")
    assert lowest.mask.flatten().tolist() == [True, True, False]  # still spares the highest
    for count, fraction, share in ((10, 1 - 0.9, 1), (3, 1 - 0.7, 0), (100, 1 - 0.99, 1), (0, 0.5, 0)):
        assert floor_fraction(torch.tensor(count), fraction) == share


@st.composite
def scored_rows(draw_: st.DrawFn) -> tuple[Tensor, Tensor]:
    batch, heads, queries, keys = (draw_(st.integers(1, n)) for n in (2, 2, 4, 6))
    value = draw_(st.sampled_from([st.integers(-2, 2).map(float), st.floats(-1e3, 1e3, width=32)]))
    count = batch * heads * queries * keys
    values = draw_(st.lists(value, min_size=count, max_size=count))
    valid = draw_(st.lists(st.booleans(), min_size=batch * queries * keys, max_size=batch * queries * keys))
    shape = (batch, heads, queries, keys)
    return torch.tensor(values).reshape(shape), torch.tensor(valid).reshape(batch, 1, queries, keys)


@given(scored_rows(), st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.sampled_from(["high", "low", "magnitude"]))
def test_candidates_equal_those_of_the_loops(rows: tuple[Tensor, Tensor], p: float, direction: str) -> None:
    attribution, valid = rows
    region = candidate_region(attribution, valid, p, direction)
    assert torch.equal(region.mask, oracles.candidates(attribution, valid, p, direction))
    assert not (region.mask & ~valid).any()
    assert not (region.mask & ~region.signal).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_candidates_of_every_dtype(dtype: torch.dtype) -> None:
    attribution = torch.randn(2, 2, 5, 6).to(dtype)
    valid = torch.arange(6) < torch.tensor([6, 4])[:, None, None, None]
    expected = oracles.candidates(attribution, valid, 0.3)
    assert torch.equal(candidate_region(attribution, valid, 0.3).mask, expected)
    assert expected.any()


@pytest.mark.parametrize("mask", [None, (5, 1, 4, 6), (1, 1, 4, 6)])
def test_regions_do_not_depend_on_how_many_sequences_are_ranked_at_a_time(
    mask: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribution = torch.randn(5, 2, 4, 6)
    valid = None if mask is None else torch.rand(mask) < 0.7
    whole = candidate_region(attribution, valid, 0.4)
    monkeypatch.setattr("attendrop.randomness.candidates._AT_A_TIME", 2 * attribution[0].numel())
    parts = candidate_region(attribution, valid, 0.4)
    assert torch.equal(parts.mask, whole.mask)
    assert torch.equal(parts.signal, whole.signal)
