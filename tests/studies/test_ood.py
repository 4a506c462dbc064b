"""Comparisons on an out-of-distribution split, beside the usual ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop.runs.data import resolve_run
from attendrop.studies.answer import OOD_COLUMNS, answer
from attendrop.studies.results import read_results

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    lines = (folder / "train.csv").read_text(encoding="utf-8").splitlines()
    dated = [f"{line},{'month' if not number else f'2026-{number % 4 + 1:02}'}" for number, line in enumerate(lines)]
    (folder / "train.csv").write_text("\n".join(dated) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Any:
    return attendrop.compare(
        train_file=str(folder / "train.csv"), text_columns=["sentence1"], label_column="label",
        model=str(folder / "model"), methods=["mixout"], baselines=["tfidf"], seeds=2, max_steps=1, max_length=24,
        device="cpu", workers=0, ood=True, output_dir=str(folder / "answer"),
    )  # fmt: skip


def test_both_scores_stand_side_by_side(outcome: Any, folder: Path) -> None:
    found = json.loads((folder / "answer/answer.json").read_text(encoding="utf-8"))
    usual, shifted = found["methods"], found["ood"]["methods"]
    assert {row["label"] for row in usual} == {row["label"] for row in shifted} == {"finetune", "mixout", "tfidf"}
    assert shifted[1]["components"] is not None  # an interval on new rows
    read = read_results(folder / "answer")
    assert [each.answer for each in read.settings] == [outcome.answer]
    header, *rows = outcome.answer.table()
    assert header[-2:] == OOD_COLUMNS
    assert {row[0]: row[-2].split()[0] for row in rows} == {row["label"]: f"{row['mean']:.3f}" for row in shifted}
    kept = tiny.read_metrics(outcome.best)
    assert kept["data"]["rows"]["train"] == 40 and kept["ood"] is None  # the model that is kept has all rows


def test_the_rows_are_the_same_for_all_and_no_training_rows(folder: Path) -> None:
    options: dict[str, Any] = {"eval_file": None, "text_columns": ("sentence1",), "test_fraction": 0.25}
    for held in ({"ood": True}, {"ood_column": "month"}):
        parts = [resolve_run(tiny.config(folder, seed=seed, **options, **held)).parts for seed in (0, 1)]
        one, other = (found.report["ood"]["index"][:] for found in parts)
        assert one == other
        for found in parts:
            train, dev, shifted = (set(found.train["index"]), set(found.report["dev"]["index"]), set(one))
            assert not train & dev and not train & shifted and not dev & shifted
    assert one == list(range(2, 40, 4))  # the last month


def test_a_model_that_holds_on_unlike_rows_has_its_price_on_the_usual_ones() -> None:
    def run(method: str, seed: int, score: float, shifted: float) -> dict[str, Any]:
        blocks = [{"rows": 3000, "data": "", "blocks": [value] * 100} for value in (score, shifted)]
        return {
            "task": "files", "model": "m", "metric": "accuracy", "method": method, "seed": seed, "options": {},
            "score": score, "train_seconds": 1.0, "row_scores": blocks[0], "data": {"rows": {"dev": 1, "ood": 7}},
            "ood": {"score": shifted, "row_scores": blocks[1]}, "config": {"ood_column": "month"},
        }  # fmt: skip

    runs = [run("finetune", seed, 0.9 + seed / 1000, 0.6 + seed / 1000) for seed in range(5)]
    runs += [run("mixout", seed, 0.88 + seed / 900, 0.7 + seed / 900) for seed in range(5)]
    found = answer(runs)
    assert (found.use, found.ood and found.ood.use) == ("finetune", "mixout")
    first, *others = found.ood.sentences
    assert first.startswith("On the OOD split (7 rows, whole values of 'month', held out): Use mixout")
    assert "Plain fine-tuning scores 0.602 there, and 0.902 on the usual rows." in others
    assert others[-1].startswith("On the usual rows, mixout minus plain fine-tuning is -0.020 [")
    assert found.notes == () == found.ood.notes
    chosen = answer([run | {"data": run["data"] | {"selected_on": "dev"}} for run in runs])  # on the usual rows
    assert [("*" in cells[2], "*" in cells[-2]) for cells in chosen.table()[1:]] == [(True, False)] * 2
