"""Statistics of a few paired scores, against scipy, values worked by hand, and simulations."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from scipy import stats

from attendrop.studies.statistics import CrossedMean, Estimate, crossed_test, holm, paired_difference
from attendrop.tasks.base import Task
from attendrop.tasks.metrics import row_scores
from attendrop.tasks.types.classification import Classification

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import new_rows

FIRST = [0.769, 0.779, 0.766, 0.787, 0.775]
SECOND = [0.762, 0.756, 0.754, 0.781, 0.758]
# Interval and p value of the mean ------------------------------------------------------------------------------------


def test_on_these_rows_the_interval_is_that_of_the_paired_t_test() -> None:
    found, expected = paired_difference(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    interval = expected.confidence_interval()
    assert (found.n, found.seeds_only.value) == (5, pytest.approx(0.013))
    assert (found.seeds_only.low, found.seeds_only.high) == pytest.approx((interval.low, interval.high))


def test_one_seed_says_nothing_of_chance_and_ties_count_half() -> None:
    found = paired_difference([0.8], [0.7], np.full((1, 10), 0.1), 10)
    assert (found.mean.low, found.seeds_only.high, found.p_value) == (-math.inf, math.inf, None)
    assert paired_difference([2, 1, -1, 0], [0] * 4).ahead == 0.625


# Seeds and rows ------------------------------------------------------------------------------------------------------


def crossed(seeds: int, rows: int, *, of_seeds: float, of_rows: float, of_both: float, key: int = 0) -> np.ndarray:
    """Draw differences of the model of two crossed factors with these standard deviations."""
    generator = np.random.default_rng(key)
    by_seed, by_row = generator.normal(0, of_seeds, (seeds, 1)), generator.normal(0, of_rows, rows)
    return by_seed + by_row + generator.normal(0, of_both, (seeds, rows))


def test_components_are_those_of_the_analysis_of_variance() -> None:
    values = crossed(5, 40, of_seeds=0.3, of_rows=0.5, of_both=1.0)
    mean, by_seed, by_row = values.mean(), values.mean(axis=1), values.mean(axis=0)
    of_seeds, of_rows = 40 * np.var(by_seed, ddof=1), 5 * np.var(by_row, ddof=1)
    rest = sum((values[s, r] - by_seed[s] - by_row[r] + mean) ** 2 for s in range(5) for r in range(40)) / (4 * 39)
    found = CrossedMean.of(values, mean, 40)
    expected = ((of_seeds - rest) / 40, (of_rows - rest) / 5, rest)
    assert (found.of_seeds, found.of_rows, found.of_both) == pytest.approx(expected)
    assert found.variance == pytest.approx((of_seeds + of_rows - rest) / 200)
    assert 4 <= found.freedom <= 4 * 39


def test_rows_that_add_no_noise_leave_the_t_test_of_seeds_and_the_reverse() -> None:
    values = crossed(6, 50, of_seeds=1.0, of_rows=0.0, of_both=0.0)
    by_seed = paired_difference(values.mean(axis=1).tolist(), [0] * 6, values, 50)
    assert by_seed.p_value == pytest.approx(stats.ttest_1samp(values[:, 0], 0).pvalue)
    assert (by_seed.mean.low, by_seed.mean.high) == pytest.approx((by_seed.seeds_only.low, by_seed.seeds_only.high))
    values = crossed(6, 50, of_seeds=0.0, of_rows=1.0, of_both=0.0)
    by_row = paired_difference(values.mean(axis=1).tolist(), [0] * 6, values, 50)
    assert by_row.p_value == pytest.approx(stats.ttest_1samp(values[0], 0).pvalue)


def test_few_blocks_are_no_more_certain_than_few_seeds() -> None:
    """Three texts that differ decide, however many seeds there are."""
    drawn = (crossed(10, 3, of_seeds=0, of_rows=1, of_both=0.3, key=key) for key in range(300))
    assert np.mean([crossed_test([CrossedMean.of(each, each.mean(), 30)])[1] <= 0.05 for each in drawn]) < 0.08


def test_several_means_are_added_by_weight() -> None:
    means = [
        CrossedMean.of(each, each.mean(), 50)
        for each in (crossed(5, 50, of_seeds=1, of_rows=1, of_both=1, key=key) for key in (1, 2))
    ]
    (one, _), (other, _) = (crossed_test([each]) for each in means)
    half, p = crossed_test(means, [0.5, 0.5])
    assert half.value == pytest.approx((one.value + other.value) / 2) and 0 < p < 1
    mean, variance, freedom = means[0], means[0].variance, means[0].freedom
    twice, _ = crossed_test([mean, mean], [0.5, 0.5])  # half the variance, with twice the degrees of freedom
    assert twice.high - twice.value == pytest.approx(stats.t.ppf(0.975, 2 * freedom) * (variance / 2) ** 0.5)


# Correction and planning ---------------------------------------------------------------------------------------------


def test_a_difference_without_any_spread_is_no_chance() -> None:
    """A perfect model against one that is never right: all rows of all seeds are on one side."""
    found = CrossedMean.of(np.ones((5, 100)), 1.0, 3000)
    unseen = 2 * (1 - 0.05 ** (1 / 3000))  # rows on which it is the other way round
    assert crossed_test([found]) == (Estimate(1.0, 1.0 - unseen, 1.0 + unseen), pytest.approx(2.0**-99))
    assert crossed_test([CrossedMean.of(np.zeros((5, 100)), 0.0, 3000)])[1] == 1.0
    assert crossed_test([CrossedMean.of(np.ones((5, 3)), 1.0, 3)])[1] == 0.25


@pytest.mark.parametrize("rows", [5, 37, 73, 600])
@pytest.mark.parametrize("differing", [0, 1, 2])
def test_no_interval_claims_what_so_few_rows_cannot_show(rows: int, differing: int) -> None:
    """What is true of 2.9 / n of all rows is seen in none of n in one sample of twenty."""
    values = np.zeros((5, rows))
    values[:, :differing] = 1.0
    found, p_value = crossed_test([CrossedMean.of(values, float(values.mean()), rows)])
    rare = 1 - 0.05 ** (1 / rows)
    assert found.low <= found.value - rare + 1e-12 and found.high >= found.value + rare - 1e-12
    assert (p_value <= 0.05) == (found.low > 0)


@pytest.mark.parametrize(("groups", "scale", "least"), [(0, 1.0, 0.00998), (30, 1.0, 0.095), (0, 7.0, 0.0699)])
def test_equal_scores_of_blocks_are_as_uncertain_as_their_rows_or_groups(
    groups: int, scale: float, least: float
) -> None:
    """Of errors, which have no limit, it is a share of the error."""
    equal = CrossedMean.of(np.zeros((5, 100)), 0.0, 300, groups, scale)
    assert crossed_test([equal])[0].high == pytest.approx(least, rel=0.01)


def test_rare_differences_are_covered() -> None:
    """One row in a hundred is right by one method only; a third of the samples have only differences by chance."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(400):
        values = generator.choice([-1, 0, 1], p=[0.03, 0.94, 0.03], size=(5, 100))
        values[:, generator.random(100) < 0.01] = 1
        found = crossed_test([CrossedMean.of(values, values.mean(), 100)])[0]
        covered += found.low <= 0.01 <= found.high
    assert covered >= 0.94 * 400


def test_holm_as_worked_by_hand() -> None:
    # In order: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, and 0.04 * 1, which is not to be below 0.06.
    p_values = {"a": 0.01, "b": 0.04, "c": None, "d": 0.03, "e": 0.005}
    assert holm(p_values) == pytest.approx({"a": 0.03, "b": 0.06, "d": 0.06, "e": 0.02})
    assert holm({1: 0.6, 2: 0.7}) == {1: 1, 2: 1}
    assert holm({"a": 0.04}) == {"a": 0.04} and holm({}) == {}


# Simulated runs: how often intervals are wrong, and the jackknife below them ----------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("metric", new_rows.METRICS)
def test_level_and_coverage(metric: str) -> None:
    """With 1,000 simulations a fraction of 0.05 is known to 0.007, and one of 0.93 to 0.008 (a standard error).

    A part of the cells of docs/experiments.md, minutes instead of an hour.
    """
    found = {cell: new_rows.simulate(cell, 1000) for cell in new_rows.cells(metric, (100, 1000), (0.0, 0.022))}
    assert max(each.ahead for each in found.values()) <= 0.05
    assert min(each.covered for each in found.values()) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("structure", new_rows.STRUCTURES)
def test_level_and_coverage_of_groups(structure: str) -> None:
    """Also with five groups, and of unequal sizes; rows as units are wrong by far."""
    found = [new_rows.simulate(cell, 1000) for cell in new_rows.group_cells(structure, (100, 1000))]
    assert max(each.ahead for each in found) <= 0.06
    assert min(each.covered for each in found) >= 0.94
    assert max(each.other_ahead for each in found) > 0.1 and min(each.other_covered for each in found) < 0.85


def test_rows_or_seeds_alone_are_wrong_about_others() -> None:
    """More seeds make it worse; with rows and seeds the same comparison holds its level. So it is with groups."""
    found = new_rows.simulate(new_rows.Cell("20 rows of a group", 300, 10, 2, 0.04), 150)
    assert found.other_ahead > 0.1 and found.other_covered < 0.8
    assert found.ahead <= 0.06 and found.covered >= 0.94
    found = new_rows.simulate(new_rows.Cell("accuracy", 1000, 10, 2, 0.022), 150)
    assert found.other_ahead > 0.08 and found.other_covered < 0.9
    assert found.ahead <= 0.05 and found.covered >= 0.93


def test_simulated_blocks_are_those_of_a_run() -> None:
    generator = np.random.default_rng(0)
    labels, answers = (generator.random((2, 700)) < 0.4).astype(int)
    rows = Dataset.from_dict({"text": [str(row) for row in range(700)], "label": labels.tolist()})
    task = Task("files", Classification(("no", "yes")), ("text",), "matthews_correlation", "")
    found = row_scores(task, np.eye(2)[answers], labels, rows)
    blocks = np.random.default_rng(0).permutation(700) % 100
    right, label = (answers == labels)[None, None], labels.astype(bool)
    counts = [right & label, right & ~label, ~right & label, ~right & ~label]
    assert new_rows.pseudo_values(new_rows.matthews, counts, blocks)[0, 0] == pytest.approx(found.values)
