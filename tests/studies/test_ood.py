"""Comparisons on an out-of-distribution split, beside the usual ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop.reports.report import methods_table
from attendrop.reports.results import ReportedSetting, Results, read_results
from attendrop.runs.resolved_run import resolve_run
from attendrop.studies.answer import OOD_COLUMNS, answer

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


def test_both_scores_stand_side_by_side_in_all_files_and_on_the_page(outcome: Any, folder: Path) -> None:
    text = "\n".join(outcome.lines())
    assert all(column in text for column in OOD_COLUMNS)
    assert "On the OOD split (" in text and "scores 0." in text
    found = json.loads((folder / "answer/answer.json").read_text(encoding="utf-8"))
    usual, shifted = found["methods"], found["ood"]["methods"]
    assert {row["label"] for row in usual} == {row["label"] for row in shifted} == {"finetune", "mixout", "tfidf"}
    assert shifted[1]["components"] is not None  # an interval on new rows
    with (folder / "answer/answer.csv").open(encoding="utf-8") as file:
        records = {row["label"]: row for row in csv.DictReader(file)}
    assert {name: float(row["ood_mean"]) for name, row in records.items()} == {
        row["label"]: row["mean"] for row in shifted
    }
    assert "held out" in (folder / "answer/answer.md").read_text(encoding="utf-8")
    read = read_results(folder / "answer")
    assert [each.answer for each in read.settings] == [outcome.answer]
    header, rows, caption = methods_table(read)
    assert header[-2:] == list(OOD_COLUMNS)
    assert caption.endswith("; the same on the out-of-distribution split.")
    assert {row[0]: row[-2].split("\xa0")[0] for row in rows} == {row["label"]: f"{row['mean']:.3f}" for row in shifted}
    assert f" on {outcome.answer.ood.scored_on}. These are" in (outcome.best / "README.md").read_text("utf-8")
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
    errors = [run(method, seed, 0.0, -100.0 - seed / 10) for method in ("finetune", "mixout") for seed in range(5)]
    errors[-1]["ood"]["score"] += 1e-3
    of_errors = answer([each | {"metric": "neg_mse"} for each in errors]).ood
    assert of_errors is not None and of_errors.margin == pytest.approx(1.002)  # 1 % of the reference's error there
    small = [run(each["method"], each["seed"], -0.9, -each["score"] / 1000) for each in runs]
    of_small = answer([each | {"metric": "neg_mse"} for each in small])  # with more decimals than usual there
    _, rows, _ = methods_table(Results(Path(), (ReportedSetting("files", of_small, ()),), (), ()))
    cells = " ".join(cell for row in rows for cell in row).replace("\xa0", " ")
    texts = ("\n".join(of_small.lines()), of_small.markdown(), cells)
    assert all("-0.000902 ± 0.000002" in text for text in texts)
    assert "Plain fine-tuning scores -0.000902 there, and -0.900 on the usual rows." in texts[0]
