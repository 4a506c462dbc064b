"""Statistics of a few paired scores, against scipy, values worked by hand, and simulations."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import stats

from attendrop.errors import AttendropError
from attendrop.studies.statistics import (
    holm,
    improvement_probability,
    mean_interval,
    paired_difference,
    paired_p,
    seeds_needed,
    sign_flip_p,
    smallest_sign_flip_p,
)

FIRST = [0.769, 0.779, 0.766, 0.787, 0.775]
SECOND = [0.762, 0.756, 0.754, 0.781, 0.758]
NORMAL, HEAVY, SKEWED = "normal", "heavy tails", "skewed"
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    NORMAL: lambda generator, size: generator.normal(size=size),
    HEAVY: lambda generator, size: generator.standard_t(3, size=size),
    SKEWED: lambda generator, size: generator.exponential(size=size) - 1,
}


def draws(kind: str, n: int, count: int = 1000) -> np.ndarray:
    return DRAWS[kind](np.random.default_rng(n), (count, n))


# Interval and p value of the mean ------------------------------------------------------------------------------------


def test_the_interval_and_the_p_value_are_those_of_the_paired_t_test() -> None:
    found, expected = paired_difference(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    interval = expected.confidence_interval()
    assert (found.n, found.mean.value) == (5, pytest.approx(0.013))
    assert (found.mean.low, found.mean.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(("kind", "least"), [(NORMAL, 0.93), (HEAVY, 0.93), (SKEWED, 0.86)])
def test_intervals_cover_the_truth_as_often_as_they_say(kind: str, least: float, n: int) -> None:
    intervals = [mean_interval(values) for values in draws(kind, n)]
    assert least < np.mean([each.low <= 0 <= each.high for each in intervals]) < 0.98


@pytest.mark.parametrize(("n", "covers"), [(3, 0.76), (5, 0.84), (10, 0.90)])
def test_a_percentile_bootstrap_of_few_seeds_is_too_short(n: int, covers: float) -> None:
    values = draws(NORMAL, n, 2000)
    means = values[:, np.random.default_rng(0).integers(n, size=(500, n))].mean(axis=2)
    low, high = np.percentile(means, [2.5, 97.5], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(covers, abs=0.03)


def test_one_seed_says_nothing_of_chance() -> None:
    found = paired_difference([0.8], [0.7])
    assert (found.mean.low, found.mean.high, found.p_value, found.sign_flip_p) == (-math.inf, math.inf, 1, 1)


@pytest.mark.parametrize(("differences", "p"), [([0.01] * 4, 0.125), ([0.1 + 0.2, 0.3, 0.3, 0.3], 0.125), ([0, 0], 1)])
def test_equal_differences_are_not_taken_for_certainty(differences: list[float], p: float) -> None:
    assert paired_p(differences) == p


@pytest.mark.parametrize("n", [4, 5, 10])
@pytest.mark.parametrize("values", [[-1, 0, 1], [-1, 1]])
def test_scores_on_few_rows_give_no_more_false_claims(values: list[int], n: int) -> None:
    p_values = [paired_p(row) for row in np.random.default_rng(n).choice(values, (400, n))]
    assert np.mean(np.array(p_values) <= 0.05) < 0.06


# Sign flips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 9, 14])
def test_sign_flips_are_counted_exactly(n: int) -> None:
    differences = draws(SKEWED, n, 1)[0]
    flipped = [abs(np.dot(signs, differences)) for signs in product([-1, 1], repeat=n)]
    assert sign_flip_p(differences) == np.mean(np.array(flipped) >= abs(differences.sum()) - 1e-9)


def test_sign_flips_agree_with_scipy() -> None:
    expected = stats.permutation_test(
        (FIRST, SECOND), lambda a, b: np.mean(a) - np.mean(b), permutation_type="samples", n_resamples=np.inf
    )
    assert paired_difference(FIRST, SECOND).sign_flip_p == expected.pvalue == 0.0625


def test_more_sign_flips_are_sampled() -> None:
    differences = draws(NORMAL, 20, 1)[0] + 0.4
    p = sign_flip_p(differences)
    assert p == sign_flip_p(differences)
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=0.3)
    assert 0 < sign_flip_p(np.ones(40)) <= 2 / 2**14


@pytest.mark.parametrize("n", [1, 5, 6, 14])
def test_the_smallest_p_of_sign_flips(n: int) -> None:
    assert sign_flip_p(draws(NORMAL, n, 1)[0] + 10) == smallest_sign_flip_p(n)
    assert (smallest_sign_flip_p(n) <= 0.05) == (n >= 6)


# Probability of improvement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("differences", "value"), [([1, 2, 3, 4, 5], 1), ([1, -1, 0, 0], 0.5), ([-2, -1], 0)])
def test_ties_count_half(differences: list[float], value: float) -> None:
    assert improvement_probability(differences).value == value


def test_the_interval_of_improvement_is_that_of_clopper_and_pearson() -> None:
    found, expected = improvement_probability([1, 1, 1, -1, 1]), stats.binomtest(4, 5).proportion_ci()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert improvement_probability([1] * 5).low == pytest.approx(0.478, abs=1e-3)


@pytest.mark.parametrize("ahead", [0.5, 0.8])
def test_the_interval_of_improvement_covers(ahead: float) -> None:
    signs = np.where(np.random.default_rng(0).random((1000, 5)) < ahead, 1, -1)
    found = [improvement_probability(row) for row in signs]
    assert np.mean([each.low <= ahead <= each.high for each in found]) >= 0.95


# Correction and planning ---------------------------------------------------------------------------------------------


def test_holm_as_worked_by_hand() -> None:
    # In order: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, and 0.04 * 1, which is not to be below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.04]) == [0.04] and holm([]) == []


@pytest.mark.parametrize(("effect", "alpha"), [(0.5, 0.05), (1.0, 0.05), (1.0, 0.0125), (3.0, 0.05)])
def test_so_many_seeds_show_the_effect_and_fewer_do_not(effect: float, alpha: float) -> None:
    pilot = [-1, 0, 1]  # standard deviation 1
    n = seeds_needed(pilot, effect, alpha=alpha)

    def power(seeds: int) -> float:
        values = np.random.default_rng(0).normal(effect, 1, (20000, seeds))
        return float(np.mean(stats.ttest_1samp(values, 0, axis=1).pvalue <= alpha))

    assert power(n) > 0.79 and power(n - 1) < 0.81


def test_seeds_follow_from_the_square_of_the_effect() -> None:
    assert seeds_needed([-1, 0, 1], 0.01) == pytest.approx(100 * seeds_needed([-1, 0, 1], 0.1), rel=0.01)
    assert seeds_needed([0.01, 0.01], 0.01) == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: paired_difference([1.0], [1.0, 2.0]), "1 scores cannot be paired with 2"),
        (lambda: paired_difference([], []), "no two scores with the same seed"),
        (lambda: paired_difference([math.nan], [1.0]), "NaN or infinite"),
        (lambda: seeds_needed([0.1], 0.1), "at least two seeds"),
        (lambda: seeds_needed([0.1, 0.2], 0.0), "must be above 0, not 0.0"),
    ],
)
def test_what_cannot_be_computed_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(AttendropError, match=says):
        call()
