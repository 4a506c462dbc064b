"""Intervals over seeds and examples, on simulated runs: how often they are wrong, and the jackknife below them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from attendrop.tasks.base import Task
from attendrop.tasks.metrics import row_scores

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import new_rows


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
    task = Task("files", "classification", ("text",), ("no", "yes"), "matthews_correlation", "")
    found = row_scores(task, np.eye(2)[answers], labels, rows)
    blocks = np.random.default_rng(0).permutation(700) % 100
    right, label = (answers == labels)[None, None], labels.astype(bool)
    counts = [right & label, right & ~label, ~right & label, ~right & ~label]
    assert new_rows.pseudo_values(new_rows.matthews, counts, blocks)[0, 0] == pytest.approx(found.values)
