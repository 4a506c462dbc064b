"""Candidate regions and draws: pure tensor functions against loops."""

import itertools
import math

import pytest
import torch
from helpers import oracles
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attendrop import sampling
from attendrop.attention.edits import AttentionCall
from attendrop.attention.layers import AttentionLayer
from attendrop.masks import candidate_region, floor_fraction
from attendrop.sampling import SampleKey, sample_mask, sample_parameter_mask, sample_row_mask

SITE = AttentionLayer("layer", "encoder", 0)
CPU = torch.device("cpu")
PINNED = [0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [
        (10, 1 - 0.9, 1),
        (10, 1 - 0.3, 7),
        (3, 1 - 0.7, 0),
        (1, 0.9, 0),
        (100, 1 - 0.99, 1),
        (20, 1 - 0.95, 1),
        (0, 0.5, 0),
    ],
)
def test_share_rounds_as_the_specification_says(count: int, fraction: float, expected: int) -> None:
    assert floor_fraction(torch.tensor(count), fraction) == expected


@pytest.mark.parametrize(
    ("row", "p", "direction", "expected"),
    [
        ([1, 2, 3, 4], 0.5, "high", [0, 0, 1, 1]),
        ([4, 3, 2, 1], 0.25, "high", [1, 0, 0, 0]),
        ([1, 2, 3, 4], 0.9, "high", [0, 1, 1, 1]),  # never the whole row: t is at least 1
        ([1, 2, 3, 4], 0.1, "high", [0, 0, 0, 1]),
        ([0, 0, 0, 1], 0.5, "high", [0, 0, 0, 1]),  # ties take in the whole row: above instead of at least
        ([0, 1, 1, 1], 0.5, "high", [0, 1, 1, 1]),
        ([0, 0, 0, 0], 0.5, "high", [0, 0, 0, 0]),  # no signal
        ([7], 0.5, "high", [0]),
        ([1, 2], 0.5, "high", [0, 1]),
        ([-3, -2, -1], 0.4, "high", [0, 1, 1]),
        ([1, 2, 3, 4], 0.5, "low", [1, 1, 0, 0]),
        ([1, 1, 1, 2], 0.5, "low", [0, 0, 0, 0]),
        ([1, 1, 2, 2], 0.5, "low", [1, 1, 0, 0]),
        ([3, 3, 3, 3], 0.5, "low", [0, 0, 0, 0]),
        ([7], 0.5, "low", [0]),
        ([1, 2, 3], 0.1, "low", [0, 0, 0]),
    ],
)
def test_candidates_of_one_row(row: list[float], p: float, direction: str, expected: list[int]) -> None:
    region = candidate_region(torch.tensor([[[row]]], dtype=torch.float32), None, p, direction)
    assert region.mask.flatten().int().tolist() == expected
    assert oracles.candidates_of_row([float(x) for x in row], p, direction) == [bool(x) for x in expected]
    assert bool(region.signal) == (len(set(row)) > 1)


@st.composite
def scored_rows(draw_: st.DrawFn) -> tuple[Tensor, Tensor]:
    batch, heads, queries, keys = (draw_(st.integers(1, n)) for n in (2, 2, 4, 6))
    value = draw_(st.sampled_from([st.integers(-2, 2).map(float), st.floats(-1e3, 1e3, width=32)]))
    count = batch * heads * queries * keys
    values = draw_(st.lists(value, min_size=count, max_size=count))
    valid = draw_(st.lists(st.booleans(), min_size=batch * queries * keys, max_size=batch * queries * keys))
    shape = (batch, heads, queries, keys)
    return torch.tensor(values).reshape(shape), torch.tensor(valid).reshape(batch, 1, queries, keys)


@given(scored_rows(), st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.sampled_from(["high", "low"]))
def test_candidates_equal_those_of_the_loops(rows: tuple[Tensor, Tensor], p: float, direction: str) -> None:
    attribution, valid = rows
    region = candidate_region(attribution, valid, p, direction)
    assert torch.equal(region.mask, oracles.candidates(attribution, valid, p, direction))
    assert not (region.mask & ~valid).any()
    assert not (region.mask & ~region.signal).any()


@given(scored_rows(), st.sampled_from(["high", "low"]))
def test_more_padding_changes_no_candidate(rows: tuple[Tensor, Tensor], direction: str) -> None:
    attribution, valid = rows
    before = candidate_region(attribution, valid, 0.4, direction).mask
    wider = torch.nn.functional.pad(attribution, (0, 3), value=99.0)
    after = candidate_region(wider, torch.nn.functional.pad(valid, (0, 3)), 0.4, direction).mask
    assert torch.equal(after, torch.nn.functional.pad(before, (0, 3)))


def test_causal_rows_count_their_own_keys() -> None:
    attribution = torch.arange(5.0).expand(1, 1, 5, 5)
    valid = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    counts = candidate_region(attribution, valid, 0.4).mask.sum(-1).flatten().tolist()
    assert counts == [i - max(1, math.floor(i * 0.6 + 1e-6)) for i in range(1, 6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_candidates_of_every_dtype(dtype: torch.dtype) -> None:
    attribution = torch.randn(2, 2, 5, 6).to(dtype)
    valid = torch.arange(6) < torch.tensor([6, 4])[:, None, None, None]
    expected = oracles.candidates(attribution, valid, 0.3)
    assert torch.equal(candidate_region(attribution, valid, 0.3).mask, expected)
    assert expected.any()


@pytest.mark.parametrize("padded", [False, True])
def test_low_with_p_just_below_one_still_spares_the_highest(padded: bool) -> None:
    attribution = torch.tensor([[[[1.0, 2.0, 3.0, 0.0]]]])[..., : 4 if padded else 3]
    valid = torch.tensor([True, True, True, False])[: attribution.shape[-1]].reshape(1, 1, 1, -1)
    assert candidate_region(attribution, valid, 1 - 1e-9, "low").mask.flatten()[:3].tolist() == [True, True, False]


def keyed(seed: int = 0, step: int = 0, first: int = 0, rows: int = 2) -> SampleKey:
    return SampleKey(seed, step, first, rows)


def sample(
    p: float, shape: tuple[int, int, int, int], *origins: tuple[int, int], name: str = "encoder.0", **key: int
) -> Tensor:
    starts = torch.tensor(origins or [(0, 0)] * shape[0])
    return sample_mask(p, keyed(**{"rows": shape[0], **key}), name, shape, starts, CPU)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
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


@pytest.mark.parametrize("p", [0.0001, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 2, 8, 8)])
def test_draws_are_the_same_on_every_device(shape: tuple[int, int, int, int], p: float) -> None:
    seeds = keyed(rows=shape[0]).seeds("encoder.0", shape[0])
    origins = torch.tensor([[0, 0], [2, 2], [0, 1]])[: shape[0]]
    bound = round(p * 65536) - 32768
    there = sampling._lanes(seeds, shape, origins)
    below = sample_mask(p, keyed(rows=shape[0]), "encoder.0", shape, origins, torch.device("cpu"))
    for i, place, lanes in sampling._lanes_on_cpu(seeds, shape, origins):
        assert (there[i].numpy()[place] == lanes).all()
        assert (below[i].numpy()[place] == (lanes < bound)).all()


@pytest.mark.parametrize("columns", [1, 6, 8, 385])
def test_rows_of_a_matrix_are_drawn_alike_elsewhere_and_each_by_itself(columns: int) -> None:
    rows = torch.tensor([0, 3, 30521, 2**31 - 1])
    mask = sample_row_mask(0.3, 1, 2, "words", rows, columns)
    column = torch.arange(columns)
    lanes = sampling._lane((rows[:, None] << 32) + (column >> 2), sampling._signed(sampling._hash("1/2/words")), column)
    assert (mask == (lanes < round(0.3 * 65536) - 32768)).all()
    for i, row in enumerate(rows):
        assert (sample_row_mask(0.3, 1, 2, "words", row[None], columns)[0] == mask[i]).all()


def test_rows_of_a_matrix_are_independent_draws() -> None:
    first, second = (sample_row_mask(0.3, 1, step, "words", torch.arange(500), 400).float() for step in (0, 1))
    for mask in (first, second):
        # 200,000 draws: a standard error of 0.001; of a row's or a column's mean 0.023 and 0.02.
        assert float(mask.mean()) == pytest.approx(0.3, abs=0.005)
        assert float((mask.mean(0) - 0.3).abs().max()) < 0.1 > float((mask.mean(1) - 0.3).abs().max())
    assert float((first * second).mean()) == pytest.approx(0.09, abs=0.004)


def test_a_large_parameter_is_drawn_in_pieces_that_differ() -> None:
    size = sampling._CHUNK
    mask = sample_parameter_mask(0.25, 1, 2, "weight", (2, size + 50), torch.device("cpu")).flatten()
    pieces = mask[:size].float(), mask[size : 2 * size].float()
    for piece in pieces:
        assert float(piece.mean()) == pytest.approx(0.25, abs=0.01)
    assert float((pieces[0] * pieces[1]).mean()) == pytest.approx(1 / 16, abs=0.005)
    rest = mask[2 * size :]
    assert 0 < int(rest.sum()) < 60
    assert not (rest == mask[:100]).all()
    assert (mask[:size] == sample_parameter_mask(0.25, 1, 2, "weight", (size,), torch.device("cpu"))).all()


def test_nothing_is_drawn_of_an_empty_parameter() -> None:
    assert sample_parameter_mask(0.25, 1, 2, "weight", (0, 4), torch.device("cpu")).shape == (0, 4)


def test_draws_are_pinned() -> None:
    """A checkpoint of an older version must go on with the same draws."""
    assert sample(0.5, (1, 1, 2, 8)).int().flatten().tolist() == PINNED


@pytest.mark.parametrize(("p", "expected"), [(1.0, True), (0.0, False), (1e-9, False)])
def test_draws_at_the_ends(p: float, expected: bool) -> None:
    assert (sample(p, (2, 2, 9, 9)) == expected).all()


@pytest.mark.parametrize(("right", "left"), list(itertools.product([0, 1, 2, 3, 5, 9], [0, 1, 4])))
def test_draws_do_not_depend_on_padding(right: int, left: int) -> None:
    length = 7
    tight = sample(0.5, (1, 3, length, length))
    padded = length + left + right
    loose = sample(0.5, (1, 3, padded, padded), (left, left))
    assert torch.equal(loose[:, :, left : left + length, left : left + length], tight)


@pytest.mark.parametrize("columns", [1, 4, 5, 11])
def test_draws_of_cross_attention_do_not_depend_on_padding(columns: int) -> None:
    tight = sample(0.5, (1, 3, 4, columns))
    assert torch.equal(sample(0.5, (1, 3, 9, columns + 5), (0, 2))[:, :, :4, 2 : columns + 2], tight)


def test_draws_do_not_depend_on_how_the_batch_is_cut() -> None:
    whole = sample(0.5, (4, 2, 6, 6), (0, 0), (2, 2), (1, 1), (0, 0))
    for i, start in enumerate((0, 2, 1, 0)):
        cut = sample(0.5, (1, 2, 6 - start, 6 - start), first=i)
        assert torch.equal(whole[i, :, start:, start:], cut[0])


def test_several_choices_count_as_several_sequences() -> None:
    whole = sample(0.5, (8, 2, 5, 5), rows=2)
    assert torch.equal(whole[4:], sample(0.5, (4, 2, 5, 5), first=1, rows=1))


def test_draws_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    sample(0.5, (2, 2, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)


def call_of(valid: Tensor | None, kind: str = "encoder", size: int = 5) -> AttentionCall:
    return AttentionCall(AttentionLayer("layer", kind, 0), (2, 1, size, size), valid, CPU)


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


def test_valid_queries_are_those_that_someone_may_attend_to() -> None:
    assert call_of(None).valid_queries() is None
    assert call_of(RIGHT, "cross").valid_queries() is None
    for valid in (RIGHT, RIGHT & CAUSAL):
        found = call_of(valid).valid_queries()
        assert found is not None
        assert found.squeeze().tolist() == [[True] * 5, [True] * 3 + [False] * 2]
