"""Kept results: the intervals of an answer follow from the scores by row that are kept beside it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import alike_table
import quoted_figures

from attendrop import ADDrop
from attendrop.studies.statistics import paired_difference
from attendrop.tasks.row_scores import RowScores

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
# Comparisons whose runs kept their scores by row.
WITH_ROWS = sorted(
    file.parent
    for file in RESULTS.glob("*/runs.jsonl")
    if (file.parent / "answer.json").exists() and '"row_scores": {' in file.read_text(encoding="utf-8")
)


def test_the_comparisons_of_the_readme_are_kept_with_their_rows() -> None:
    assert {"demonstration", "banking77_p_0.3"} <= {folder.name for folder in WITH_ROWS}


def _key(run: dict[str, Any]) -> str:
    """Tell runs of other methods or options apart."""
    return json.dumps([run["method"], run["options"]], sort_keys=True)


@pytest.mark.parametrize("folder", WITH_ROWS, ids=lambda folder: folder.name)
def test_intervals_on_new_rows_follow_from_the_kept_scores(folder: Path) -> None:
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    runs: dict[str, dict[int, Any]] = {}
    for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs.setdefault(_key(run), {})[run["seed"]] = run
    reference = runs[_key(next(each for each in answer["methods"] if each["label"] == answer["reference"]))]
    checked = 0
    for record in answer["methods"]:
        if record["label"] == answer["reference"]:
            continue
        own = runs[_key(record)]
        seeds = sorted(own.keys() & reference.keys())
        scores = [[each[seed]["score"] for seed in seeds] for each in (own, reference)]
        by_row = [[RowScores.from_dict(each[seed]["row_scores"]) for seed in seeds] for each in (own, reference)]
        assert len({found.data for each in by_row for found in each}) == 1
        first, second = (np.stack([found.by_unit for found in each]) for each in by_row)
        found = paired_difference(*scores, first - second, by_row[0][0].rows, groups=by_row[0][0].groups)
        assert (record["difference_low"], record["difference_high"]) == pytest.approx((found.mean.low, found.mean.high))
        assert record["p"] == pytest.approx(found.p_value)
        checked += 1
    assert checked >= 2


def test_the_table_of_all_methods_follows_from_the_kept_runs() -> None:
    assert "\n".join(alike_table.lines()) in (ROOT / "docs" / "does-it-help.md").read_text(encoding="utf-8")


def _figures(text: str) -> str:
    """Normalise the signs, spaces and line ends of figures."""
    return re.sub(r"\s+|\+", " ", text).replace("  ", " ").replace("[ ", "[")


@pytest.mark.parametrize(
    ("title", "page"), [(title, page) for title, pages in quoted_figures.QUOTED_ON.items() for page in pages]
)
def test_figures_of_the_pages_follow_from_the_kept_runs(title: str, page: str) -> None:
    text = ADDrop.info.measured() if page == "ad-drop" else (ROOT / page).read_text(encoding="utf-8")
    assert _figures(quoted_figures.figures()[title]) in _figures(text)
