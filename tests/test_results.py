"""Kept results: the answer follows from the runs that are kept beside it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import alike_table
import label_names_linear
import make_paper_tables
import quoted_figures

from attendrop import ADDrop
from attendrop.studies.answer import answer
from attendrop.tasks.metrics import RowScores

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
# Comparisons whose runs kept their scores by row.
WITH_ROWS = sorted(
    file.parent
    for file in RESULTS.glob("**/runs.jsonl")
    if (file.parent / "answer.json").exists() and '"row_scores": {' in file.read_text(encoding="utf-8")
)


def _key(run: Mapping[str, Any]) -> str:
    """Tell runs of other methods or options apart."""
    return json.dumps([run["method"], run["options"]], sort_keys=True)


@pytest.mark.parametrize("folder", WITH_ROWS, ids=lambda folder: folder.name)
def test_decision_and_intervals_follow_from_the_kept_runs(folder: Path) -> None:
    """The answer is computed from the runs alone; of what was written, it has the labels and nothing else."""
    kept = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    (kept,) = kept.get("settings", {"": kept}).values()
    labels = {_key(record): record["label"] for record in kept["methods"]}
    runs = []
    for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = {name: value for name, value in json.loads(line).items() if value is not None}  # baselines have no steps
        runs.append(run | {"task": "", "data": {"rows": {}}, "label": labels[_key(run)]})
    found = answer(runs, kept["reference"]).as_dict()
    found |= {"challenger": found["lead"]["candidate"], "incumbent": found["lead"]["reference"]}  # as older files say
    for name in {"use", "why", "challenger", "incumbent"} & kept.keys():  # some have fewer
        assert found[name] == kept[name]
    methods = {record["label"]: record for record in found["methods"]}
    assert len(methods) == len(kept["methods"]) >= 3
    for record in kept["methods"]:
        figures = {name: record[name] for name in record if name.startswith(("difference_", "these_rows_", "p"))}
        assert {name: methods[record["label"]][name] for name in figures} == pytest.approx(figures)
    assert {"demonstration", "banking77_p_0.3"} <= {folder.name for folder in WITH_ROWS}


def test_the_table_of_all_methods_follows_from_the_kept_runs() -> None:
    assert "\n".join(alike_table.lines()) in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


def test_the_table_of_names_of_classes_follows_from_the_kept_scores() -> None:
    lines = (label_names_linear.RESULTS / "linear-minilm.jsonl").read_text(encoding="utf-8").splitlines()
    table = label_names_linear.table([json.loads(line) for line in lines])
    assert "\n".join(table) in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


def test_the_papers_claims_follow_from_the_kept_scores() -> None:
    assert make_paper_tables.at_full_size() in make_paper_tables.PAGE.read_text(encoding="utf-8")
    lines = (ROOT / "results" / "full" / "minilm" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    kept = make_paper_tables.named(map(json.loads, lines))
    methods = [row for row in kept if row["label"] not in make_paper_tables.CONTROLS]  # of which the page says it
    runs = {(row["run"]["task"], row["seed"], row["run"].get("bf16", False)) for row in methods}
    assert len(runs) == len({run[:2] for run in runs})  # all methods of a task and a seed had the same precision


def test_what_the_readme_says_of_the_papers_claims_is_in_their_table() -> None:
    (said,) = re.findall(r"\*\*The papers' claims.*?\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    table, figures = make_paper_tables.at_full_size(), re.findall(r"[+-][\d.]+ \[[^]]+\]", " ".join(said.split()))
    assert "none is shown" in said and "*holds*" not in table and "*contradicted*" not in table
    assert figures and all(f"{figure}, 3 seeds: *not shown*" in table for figure in figures)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(0.3, "*holds*"), (0.02, "*not shown*"), (-0.02, "*not shown*"), (-0.3, "*contradicted*"), (None, "not run")],
)
def test_a_claim_is_judged_by_its_interval_over_seeds_and_rows(gain: float | None, verdict: str) -> None:
    chance, runs = np.random.default_rng(0), []
    for seed in range(3):
        for method, rate in (("finetune", 0.5), ("r-drop", None if gain is None else 0.5 + gain)):
            if rate is not None:
                right = chance.random(400) < rate
                rows = RowScores(right, len(right), "data").as_dict()
                run = {"method": method, "options": {}, "seed": seed, "metric": "accuracy", "score": right.mean()}
                runs.append(run | {"row_scores": rows, "train_seconds": 1.0})
    by_epoch = [{"scores": {"accuracy": score}, "by_row": None} for score in (0.1, 0.9, 0.9, 0.2)]
    best = make_paper_tables.with_best_epoch({**runs[0], "by_epoch": by_epoch})
    assert best["score"] == 0.9 and make_paper_tables.with_best_epoch(runs[0]) == runs[0]
    found = make_paper_tables.verdict(runs, make_paper_tables.PLAIN, "R-Drop")
    assert found.endswith(verdict)
    if gain is not None:
        assert found.startswith(f"{100 * np.diff([run['score'] for run in runs]).reshape(-1)[::2].mean():+.1f} [")


def _figures(text: str) -> str:
    """Normalise the signs, spaces and line ends of figures."""
    return re.sub(r"\s+|\+", " ", text).replace("  ", " ").replace("[ ", "[")


@pytest.mark.parametrize(
    ("title", "page"), [(title, page) for title, pages in quoted_figures.QUOTED_ON.items() for page in pages]
)
def test_figures_of_the_pages_follow_from_the_kept_runs(title: str, page: str) -> None:
    text = ADDrop.info.measured() if page == "ad-drop" else (ROOT / page).read_text(encoding="utf-8")
    assert _figures(quoted_figures.figures()[title]) in _figures(text)
