"""Random masks that depend on nothing but seed, step, layer and position."""

import itertools
import math

import pytest
import torch
from helpers import oracles
from helpers.device import DEVICE
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attendrop.randomness import keyed_random
from attendrop.randomness.candidates import candidate_region, floor_fraction
from attendrop.randomness.device_path import few_kernels
from attendrop.randomness.keyed_random import SampleKey, sample_mask, sample_parameter_mask, sample_row_mask, uniform

CPU = torch.device("cpu")
PINNED = [0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]


def keyed(seed: int = 0, step: int = 0, first: int = 0, rows: int = 2) -> SampleKey:
    return SampleKey(seed, step, first, rows)


def sample(
    p: float, shape: tuple[int, int, int, int], *origins: tuple[int, int], name: str = "encoder.0", **key: int
) -> Tensor:
    starts = torch.tensor(origins or [(0, 0)] * shape[0])
    return sample_mask(p, keyed(**{"rows": shape[0], **key}), name, shape, starts, CPU)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.999])
def test_draws_have_their_probability_and_are_independent(p: float) -> None:
    mask = sample(p, (4, 8, 50, 50)).double()
    deviation = math.sqrt(p * (1 - p))
    assert abs(mask.mean() - p) < 4 * deviation / math.sqrt(mask.numel())
    for shift, axis in itertools.product([1, 2, 3, 4, 5, 8], [-1, -2, 1, 0]):
        neighbour = mask.roll(shift, axis)
        if torch.equal(neighbour, mask) or shift >= mask.shape[axis]:
            continue
        correlation = ((mask - p) * (neighbour - p)).mean() / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(mask.numel()), (shift, axis)


def test_draws_of_steps_seeds_sequences_and_sites_are_independent() -> None:
    shape = (1, 4, 40, 40)
    first = sample(0.5, shape).double()
    others = [sample(0.5, shape, **{change: n}) for change in ("seed", "step", "first") for n in (1, 2, 3)]
    for other in [*others, sample(0.5, shape, name="encoder.1"), sample(0.5, shape, name="decoder.0")]:
        assert abs(((first - 0.5) * (other.double() - 0.5)).mean() * 4) < 5 / math.sqrt(first.numel())


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0001, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 2, 8, 8)])
def test_draws_are_the_same_on_every_device(shape: tuple[int, int, int, int], p: float) -> None:
    seeds = keyed(rows=shape[0]).seeds("encoder.0", shape[0])
    origins = torch.tensor([[0, 0], [2, 2], [0, 1]])[: shape[0]]
    bound = round(p * 65536) - 32768
    there = keyed_random._lanes(seeds, shape, origins, DEVICE).cpu()
    below = sample_mask(p, keyed(rows=shape[0]), "encoder.0", shape, origins, DEVICE).cpu()
    numbers = uniform(keyed(rows=shape[0]), "encoder.0", shape, origins, DEVICE).cpu()
    for place, lanes in keyed_random._lanes_on_cpu(seeds, shape, origins):
        assert (there.numpy()[place] == lanes).all()
        assert (below.numpy()[place] == (lanes < bound)).all()
        assert (numbers.numpy()[place] == (lanes + 32768.5) / 65536).all()


@pytest.mark.parametrize("columns", [1, 6, 8, 385])
def test_rows_of_a_matrix_are_drawn_alike_elsewhere_and_each_by_itself(columns: int) -> None:
    rows = torch.tensor([0, 3, 30521, 2**31 - 1])
    mask = sample_row_mask(0.3, 1, 2, "words", rows, columns)
    with few_kernels():
        assert torch.equal(sample_row_mask(0.3, 1, 2, "words", rows, columns), mask)
    for i, row in enumerate(rows):
        assert (sample_row_mask(0.3, 1, 2, "words", row[None], columns)[0] == mask[i]).all()


def test_a_large_parameter_is_drawn_in_pieces_that_differ() -> None:
    size = keyed_random._CHUNK
    mask = sample_parameter_mask(0.25, 1, 2, "weight", (2, size + 50), torch.device("cpu")).flatten()
    pieces = mask[:size].float(), mask[size : 2 * size].float()
    for piece in pieces:
        assert float(piece.mean()) == pytest.approx(0.25, abs=0.01)
    assert float((pieces[0] * pieces[1]).mean()) == pytest.approx(1 / 16, abs=0.005)
    rest = mask[2 * size :]
    assert 0 < int(rest.sum()) < 60
    assert not (rest == mask[:100]).all()
    assert (mask[:size] == sample_parameter_mask(0.25, 1, 2, "weight", (size,), torch.device("cpu"))).all()


def test_draws_are_pinned() -> None:
    """A checkpoint of an older version must go on with the same draws."""
    assert sample(0.5, (1, 1, 2, 8)).int().flatten().tolist() == PINNED


@pytest.mark.parametrize(("p", "expected"), [(1.0, True), (0.0, False), (1e-9, False)])
def test_draws_at_the_ends(p: float, expected: bool) -> None:
    assert (sample(p, (2, 2, 9, 9)) == expected).all()


@pytest.mark.parametrize(("right", "left"), list(itertools.product([0, 3, 9], [0, 1, 4])))
def test_draws_do_not_depend_on_padding(right: int, left: int) -> None:
    length = 7
    tight = sample(0.5, (1, 3, length, length))
    padded = length + left + right
    loose = sample(0.5, (1, 3, padded, padded), (left, left))
    assert torch.equal(loose[:, :, left : left + length, left : left + length], tight)


def test_draws_do_not_depend_on_how_the_batch_is_cut() -> None:
    whole = sample(0.5, (4, 2, 6, 6), (0, 0), (2, 2), (1, 1), (0, 0))
    for i, start in enumerate((0, 2, 1, 0)):
        cut = sample(0.5, (1, 2, 6 - start, 6 - start), first=i)
        assert torch.equal(whole[i, :, start:, start:], cut[0])


def test_several_choices_count_as_several_sequences() -> None:
    whole = sample(0.5, (8, 2, 5, 5), rows=2)
    assert torch.equal(whole[4:], sample(0.5, (4, 2, 5, 5), first=1, rows=1))


def test_copies_of_rows_are_numbered_over_micro_batches() -> None:
    assert SampleKey(0, 0, 1, 1, copies=2).seeds("", 2) == SampleKey(0, 0, 0, 2, copies=2).seeds("", 4)[2:]


# Candidate regions ----------------------------------------------------------------------------------------------------


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
    ten = torch.arange(10.0).view(1, 1, 1, 10)
    for valid in (None, torch.ones(1, 1, 1, 10, dtype=torch.bool)):  # 10 * (1 - 0.8) is 2
        assert candidate_region(ten, valid, 0.8).mask.sum() == 8


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
