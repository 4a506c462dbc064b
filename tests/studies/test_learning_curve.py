"""What more rows would bring: the fit, what is said of it, the rows of fewer, and whole comparisons."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop.cli import main
from attendrop.runs.config import RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.studies.executor import Event, RunSpec
from attendrop.studies.learning_curve import LearningCurve, curve_of, learning_curves, predict_gains
from attendrop.studies.statistics import Estimate

SIZES = np.array([100.0, 200.0, 400.0])


def law(size: Any, exponent: float, top: float = 0.9, b: float = 3.0) -> Any:
    return top - b * size**-exponent


def measured(scores: Any, rows: int) -> tuple[Any, Any]:
    """The scores of three seeds, and whether each row is right: as many as the score says, the easiest ones."""
    right = np.arange(rows) < np.round(np.asarray(scores) * rows)[:, None]
    return np.tile(right.mean(axis=1), (3, 1)), np.tile(right.astype(float), (3, 1, 1))


@pytest.mark.parametrize("exponent", [0.4, 0.6, 0.9])
def test_a_power_law_that_is_seen_without_noise_is_found(exponent: float) -> None:
    found = predict_gains(SIZES, *measured(law(SIZES, exponent), 100_000), 100_000)
    for factor, gain in found.items():
        came = law(factor * 400, exponent) - law(400, exponent)
        assert gain.low < came < gain.high and gain.value == pytest.approx(came, abs=0.004)


def test_fewer_evaluation_rows_say_less_and_no_prediction_is_above_the_best_score() -> None:
    gains = [predict_gains(SIZES, *measured(law(SIZES, 0.5), rows), rows)[2] for rows in (100, 1_000, 10_000)]
    assert np.all(np.diff([gain.high - gain.low for gain in gains]) < 0)
    top = predict_gains(SIZES, *measured([0.8, 0.9, 0.99], 10_000), 10_000)
    assert top[4].high <= 0.0101 and top[2].value > 0
    seeds = np.array([[0.90, 0.93, 0.95], [0.92, 0.94, 0.99], [0.91, 0.96, 0.97]])  # whose rows are drawn anew
    varied = predict_gains(SIZES, seeds, np.repeat(seeds[:, :, None], 100, axis=2), 1_000)
    assert varied[4].high <= 1 - 0.97 + 1e-6
    still = predict_gains(SIZES, *measured([0.5, 0.5, 0.5], 200), 200)[2]
    assert still.low == pytest.approx(0, abs=0.001) and 0 < still.high < 0.03


@pytest.mark.parametrize(
    ("gain", "sentence"),
    [
        ((0.03, 0.01, 0.05), "Twice as many rows (800) would give plain fine-tuning about +0.030 [+0.010, +0.050] "
         "accuracy (90 % interval)."),
        ((0.01, -0.02, 0.05), "What twice as many rows would give plain fine-tuning is not known: accuracy -0.020 to "
         "+0.050 (90 % interval)."),
        ((0.002, -0.001, 0.006), "Twice as many rows (800) would give plain fine-tuning little: accuracy -0.001 to "
         "+0.006 (90 % interval)."),
    ],
)  # fmt: skip
def test_the_sentence_says_no_more_than_the_interval(gain: Any, sentence: str) -> None:
    curve = LearningCurve("finetune", "accuracy", (100, 200, 400), (0.5, 0.6, 0.65), {2: Estimate(*gain)})
    assert curve.sentence == sentence
    assert LearningCurve.from_dict(json.loads(json.dumps(asdict(curve)))) == curve


def run(rows: int, **changes: Any) -> dict[str, Any]:
    found = {
        "score": 0.5,
        "data": {"rows": {"train": rows}},
        "row_scores": {"rows": 4, "data": "", "blocks": [1.0, 0.0]},
    }
    return found | changes


def fallen(rows: int, score: float) -> dict[str, Any]:
    return run(rows, score=score, row_scores={"rows": 800, "data": "", "blocks": [score] * 100})


def test_what_is_said_of_errors_does_not_depend_on_their_unit() -> None:
    """Metres or kilometres: the same model has the same answer, with as many decimals as its errors need."""
    metric, generator = "neg_root_mean_squared_error", np.random.default_rng(0)
    errors = np.array([4.0, 3.0, 2.0]) * generator.normal(1, 0.01, (3, 3))
    blocks = errors[:, :, None] * generator.normal(1, 0.05, (3, 3, 100))

    def runs(unit: float, errors: Any) -> Any:
        by_row = [[{"rows": 600, "data": "", "blocks": (-unit * each).tolist()} for each in own] for own in blocks]
        return [
            [run(rows, score=-unit * error, row_scores=of) for rows, error, of in zip((10, 20, 40), *pair, strict=True)]
            for pair in zip(errors, by_row, strict=True)
        ]

    one, other = (curve_of("mixout", metric, runs(unit, errors)) for unit in (1.0, 1e-4))
    assert [1e4 * gain.high for gain in other.gains.values()] == pytest.approx([g.high for g in one.gains.values()])
    assert "would give mixout about +0.592 [+0.390, +0.893]" in one.sentence
    assert "would give mixout about +0.000059 [+0.000039, +0.000089]" in other.sentence


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "no seed has a score at each number of rows"),
        ([[run(10), run(20), run(40)]], "one seed does not tell how much chance there is"),
        ([[run(30), run(35), run(40)]] * 2, "there are too few rows to take a quarter of, with rows of"),
        ([[run(10), run(20), run(40)]] * 2, "a quarter and all are not told apart (accuracy 0.000 [-"),
        (
            [[fallen(10, 0.85), fallen(20, 0.8), fallen(40, 0.72)]] * 5,
            "all of the rows are behind a quarter of them (a",
        ),
        ([[run(10), run(20), run(40, row_scores=None)]] * 2, "there are no scores by row"),
    ],
)
def test_what_is_not_known_is_said(runs: Any, why: str) -> None:
    said = curve_of("mixout", "accuracy", runs).sentence
    assert said.startswith(f"What twice as many rows would give mixout is not known: {why}")


def test_the_recommended_model_and_the_best_baseline_are_run_on_fewer_rows(tmp_path: Path) -> None:
    """What the data decided for all rows holds for fewer; the runs on all rows are those of the comparison."""
    config = RunConfig(model="m", task="cola", output_dir="", method="ad-drop")
    specs = [
        RunSpec(config),
        RunSpec(config, baseline="tfidf"),
        RunSpec(replace(config, method="finetune", options={})),
    ]
    decided = {"task": "t", "model": "m", "metric": "accuracy", "options": {"p": 0.45}, "config": {"options": {}}}
    metrics = [decided | {"method": spec.method} for spec in specs]
    results = [Event("finished", spec, tmp_path, of) for spec, of in zip(specs, metrics, strict=True)]
    asked: list[RunSpec] = []

    def perform(runs: list[RunSpec]) -> list[Event]:
        asked.extend(runs)
        return [Event("failed", spec, tmp_path) for spec in runs]

    tfidf, ad_drop = (Namespace(label=label) for label in ("tfidf", "ad-drop"))
    verdict = Namespace(use=tfidf, base=tfidf, candidate=ad_drop)
    found: Any = Namespace(verdict=verdict, metric="accuracy")
    curves = learning_curves(found, results, perform)
    assert [curve.label for curve in curves] == ["tfidf", "ad-drop"]
    assert all("not known: no seed has a score" in curve.sentence for curve in curves)
    own = [spec.config for spec in asked if spec.baseline is None]
    assert [(each.seed, each.halvings) for each in own] == [(seed, some) for seed in range(3) for some in (2, 1, None)]
    assert all((each.options.get("p") == 0.45) is bool(each.halvings) for each in own)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save_tiny_bert(tmp_path / "model")
    rows = [f"{tiny.sentence(number)},{'no' if number % 3 else 'yes'},{number // 2}" for number in range(48)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label,customer", *rows]) + "\n", encoding="utf-8")
    return tmp_path


def test_fewer_rows_are_nested_stratified_and_of_whole_groups(folder: Path) -> None:
    data: dict[str, Any] = {
        "text_columns": ("text",),
        "group_column": "customer",
        "eval_file": None,
        "test_fraction": 0.25,
    }
    config = tiny.config(folder, method="finetune", **data)
    every, half, quarter = (
        divide(replace(config, halvings=halvings, selection_fraction=0.0), load_data(config)).train
        for halvings in (None, 1, 2)
    )
    rows = [set(part["index"]) for part in (every, half, quarter)]
    assert rows[0] > rows[1] > rows[2] and [len(part) for part in rows] == [36, 18, 8]
    assert all(len({row // 2 for row in part}) * 2 <= len(part) + 1 for part in rows)
    assert all(set(part["label"]) == {0, 1} for part in (half, quarter))


@pytest.mark.slow
def test_a_comparison_says_what_more_rows_would_bring(folder: Path, capsys: Captured) -> None:
    asked = ["compare", f"{folder}/train.csv", "--text-columns", "text", "--label-column", "label", "--curve"]
    asked += ["--model", f"{folder}/model", "--methods", "finetune", "--baselines", "majority", "--seeds", "1"]
    asked += ["--max-steps", "1", "--device", "cpu", "--workers", "0", "--quiet", "--output-dir", f"{folder}/answer"]
    assert main(asked) == 0
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert {each["label"] for each in found["curves"]} == {"finetune", "majority"}
    assert all(each["sizes"] == [9, 18, 36] for each in found["curves"])
    sentences = [each["sentence"] for each in found["curves"]]
    capsys.readouterr()
    assert main(["report", f"{folder}/answer"]) == 0
    page = (folder / "answer" / "report" / "report.html").read_text(encoding="utf-8")
    assert all(sentence in page for sentence in sentences) and (folder / "answer" / "report" / "more_rows.svg").exists()
    assert main([each for each in asked if each != "--curve"]) == 0  # an answer has what was asked for
    assert "curves" not in json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
