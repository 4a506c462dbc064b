"""Comparisons: what is run, and whole ones on tiny models."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop import ADDrop, AttendropError
from attendrop.runs.config import partial_of
from attendrop.runs.resolved_run import resolve_run
from attendrop.studies import compare as compare_module
from attendrop.studies.compare import MOST_FACTOR, best_model, final_units, run_comparison
from attendrop.studies.comparison import Comparison, MethodSetting, check_record, record_of
from attendrop.studies.units import Result, Unit
from attendrop.studies.workers import Workers

RUN_OPTIONS = ("model", "train_file", "eval_file", "shots", "max_steps")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    return tmp_path


def comparison(folder: Path, **options: Any) -> Comparison:
    run = {name: options.pop(name) for name in RUN_OPTIONS if name in options}
    config = tiny.config(folder, **({"method": "finetune", "max_steps": 4, "head_init": "random"} | run))
    chosen: dict[str, Any] = {"methods": [MethodSetting("mixout")], "baselines": ("majority",), "seeds": 2}
    return Comparison(config=config, output_dir=str(folder / "answer"), **(chosen | options))


# What is run ----------------------------------------------------------------------------------------------------------


class Runner:
    """Units that are scored by a function of theirs."""

    def __init__(self, score: Any = lambda unit: 0.5) -> None:
        self.score = score
        self.asked: list[Unit] = []
        self.workers = Workers()

    def run(self, units: list[Unit], on_event: Any = None) -> list[Result]:
        results = []
        for unit in units:
            self.asked.append(unit)
            found = self.score(unit)
            metrics = unit.described() | {"selection_score": found, "score": found}
            metrics |= {"task": "files", "model": "m", "metric": "accuracy", "train_seconds": 1.0}
            metrics |= {"training": {"learning_rate": unit.config.learning_rate}, "data": {"rows": {"dev": 12}}}
            result = Result(unit, Path(repr(unit)), metrics)
            results.append(result if found is not None else replace(result, metrics=None, error="luck"))
        return results


@pytest.fixture
def run_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a runner run comparisons."""
    (folder / "answer").mkdir()
    return lambda runner: monkeypatch.setattr(compare_module, "open_runner", lambda *_, **__: nullcontext(runner))


def test_settings_with_learning_rates_are_rows_of_their_own(folder: Path, run_by: Any) -> None:
    pytest.importorskip("optuna")
    rates = {4e-3: 0.9, 2e-3: 0.7}
    runner, planned = (
        Runner(lambda unit: rates.get(unit.config.learning_rate, 0.5) if unit.method == "mixout" else 0.6),
        [],
    )
    run_by(runner)
    given = ["mixout", MethodSetting("mixout", {"p": 0.9}, 4e-3), MethodSetting("mixout", {"p": "0.7"}, 2e-3)]
    of = comparison(folder, methods=given, keep_best=False, trials=6, folds=1)
    outcome = run_comparison(of, on_plan=planned.append)
    means = {row.label: row.mean for row in outcome.answer.rows if row.method == "mixout"}
    assert means == {"mixout": 0.5, "mixout p=0.9 learning_rate=0.004": 0.9, "mixout learning_rate=0.002": 0.7}
    assert {trial.setting.learning_rate for trial in outcome.trials["mixout"]} == {None}  # each stays what it is
    searched = [trial.setting.learning_rate for trial in outcome.trials["finetune"]]
    usual = of.config.learning_rate
    assert usual is not None and None in searched
    assert all(usual / MOST_FACTOR <= rate <= usual * MOST_FACTOR for rate in searched if rate is not None)
    assert planned[0] == 4 * 6 + 2 * 5 and planned[1] == len(runner.asked)  # one that is proposed twice is tried once
    units, labels = final_units(of, {each.label: each for each in of.methods})
    results = [replace(each, label=label) for each, label in zip(Runner().run(units), labels, strict=True)]
    recommended: Any = SimpleNamespace(use="mixout p=0.9 learning_rate=0.004")
    kept = best_model(recommended, results, of.config, resolve_run(of.config).task.type, folder)
    assert (kept.config.learning_rate, kept.options["p"]) == (4e-3, 0.9)


def test_the_comparison_ends_if_plain_fine_tuning_fails_and_not_if_a_method_does(folder: Path, run_by: Any) -> None:
    runner, planned = Runner(lambda unit: None if unit.method == "mixout" else 0.5), list[int]()
    run_by(runner)
    outcome = run_comparison(comparison(folder, keep_best=False), on_plan=planned.append)
    assert [(unit.method, unit.config.seed) for unit in runner.asked] == [
        (method, seed) for seed in range(2) for method in ("finetune", "mixout", "majority")
    ]
    assert planned == [6]
    assert "mixout with seed 0 (luck); mixout with seed 1 (luck)" in outcome.answer.notes[0]
    run_by(Runner(lambda unit: None if unit.method == "finetune" else 0.5))
    with pytest.raises(AttendropError, match="No run of plain fine-tuning succeeded; the first error: luck"):
        run_comparison(comparison(folder, keep_best=False))


def test_the_chosen_settings_are_those_of_the_final_runs(folder: Path, run_by: Any) -> None:
    pytest.importorskip("optuna")
    scores = {0.5: None, 0.9: 0.9}  # of mixout's p; runs with 0.5 diverge
    runner = Runner(lambda unit: scores.get(unit.options.get("p"), 0.5))
    run_by(runner)
    outcome = run_comparison(comparison(folder, trials=12, folds=1, keep_best=False))
    final = [unit for unit in runner.asked if unit.method == "mixout" and unit.config.seed < 2]
    assert len(final) == 2 and {unit.options["p"] for unit in final} == {0.9}
    found = outcome.as_dict()
    assert found["chosen"]["mixout"].startswith("p=0.9")
    failed = [trial["scores"] for trial in found["trials"]["mixout"] if trial["setting"].startswith("p=0.5")]
    assert failed and all(scores == [None] for scores in failed)
    tried = len(found["trials"]["mixout"])
    told = f"mixout: {found['chosen']['mixout']}, of {tried} settings ({len(failed)} failed) on selection rows."
    assert told in outcome.lines() and told in (folder / "answer" / "answer.md").read_text(encoding="utf-8")


def test_the_answer_is_written_whatever_becomes_of_the_model(
    folder: Path, run_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise AttendropError("The disk is full.")

    monkeypatch.setattr(compare_module, "train", fails)
    run_by(Runner())
    with pytest.raises(AttendropError, match=r"answer is in .*answer\.md, but its model .*: The disk is full"):
        run_comparison(comparison(folder))
    assert json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))["best"] is None


def test_methods_that_cannot_act_on_the_model_are_refused_before_others_train(folder: Path) -> None:
    outside = [MethodSetting("ad-drop"), MethodSetting("ad-drop", {"layers": "7"}), MethodSetting("mixout")]
    with pytest.raises(AttendropError, match=r"^ad-drop layers=7 cannot act on .* by --methods\. layers="):
        run_comparison(comparison(folder, methods=outside))
    assert not (folder / "answer").exists()


def test_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Comparison] = []
    monkeypatch.setattr(compare_module, "run_comparison", lambda comparison, **_: asked.append(comparison))
    data = {"train_file": str(folder / "train.csv"), "text_columns": ("sentence1",), "label_column": "label"}
    methods = [ADDrop(p=0.2), ADDrop(p=0.4, q=0.2), "finetune"]
    attendrop.compare(output_dir="answer", methods=methods, baselines=("tfidf", "majority"), trials=3, **data)
    assert [each.label for each in asked[0].methods] == ["finetune", "ad-drop p=0.2", "ad-drop p=0.4 q=0.2"]
    assert (asked[0].trials, asked[0].config.test_fraction) == (3, 0.25)  # a part is set aside
    named = replace(asked[0], methods="r-drop, mixout").methods
    assert [each.label for each in named] == ["finetune", "r-drop", "mixout"]
    single = replace(asked[0], methods=ADDrop(p=0.2), baselines=None)
    assert ([each.label for each in single.methods], single.baselines) == (["finetune", "ad-drop p=0.2"], ())
    attendrop.compare(output_dir=Path("answer"), methods="r-drop", **data | {"train_file": folder / "train.csv"})
    assert asked[1].config.train_file == data["train_file"]
    slower = MethodSetting("finetune", learning_rate=1e-3)
    assert replace(asked[0], methods=["r-drop", slower]).methods == (slower, MethodSetting("r-drop"))
    with pytest.raises(AttendropError, match="compare has no option 'method'; did you mean 'methods'"):
        attendrop.compare(output_dir="answer", method="r-drop", **data)
    both = replace(asked[0], methods=MethodSetting("ad-drop+r-drop", {"ad_drop": {"p": 0.3}, "r-drop.alpha": 2.0}))
    assert both.methods[1].options == {"ad-drop.p": 0.3, "r-drop.alpha": 2.0}  # by any of their names
    with pytest.raises(AttendropError, match="test-fraction 0 sets no rows aside"):
        attendrop.compare(output_dir="answer", **data, test_fraction=0)
    assert comparison(folder).config.test_fraction == 0.0  # there are evaluation data


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": [MethodSetting("mixout", {"p": 2})]}, "p=2 must be above 0"),
        ({"methods": [MethodSetting("mixout", {"p": 0.7}), MethodSetting("mixout")]}, "mixout is to be compared twice"),
        (
            {"methods": ["finetune", MethodSetting("finetune", {}, 1e-3)]},
            "finetune learning_rate=0.001 is to be compared",
        ),
        ({"methods": [ADDrop]}, r"A method is an object, such as ADDrop\(\), and not "),
        ({"baselines": ("tf-idf",)}, "There is no baseline 'tf-idf'; known are majority"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        comparison(folder, **options)


# Whole comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_answers_keeps_the_model_and_goes_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "attendrop")
    asked, best = comparison(folder, eval_file=None, seeds=1, max_steps=1), folder / "answer" / "best"
    events: list[Any] = []
    outcome = run_comparison(asked, workers=0, on_event=events.append)
    assert (events[-1].kind, events[-1].folder, events[-1].metrics) == ("finished", best, tiny.read_metrics(best))
    assert caplog.text.count("Data: classification, 2 classes") == 1  # of the model that is kept
    assert {row.label: row.n for row in outcome.answer.rows} == {"finetune": 1, "mixout": 1, "majority": 1}
    assert tiny.read_metrics(best)["data"]["rows"]["train"] == 40  # all rows, those of the evaluation among them
    assert (best / "model.safetensors").exists()
    assert not list((folder / "answer" / "runs").glob("*/*.safetensors"))

    events.clear()
    finished = (best / "metrics.json").stat().st_mtime_ns
    again = run_comparison(replace(asked, seeds=2), workers=0, on_event=events.append)
    assert [event.unit.config.seed for event in events if event.kind == "finished"] == [1] * 3
    assert (events[-1].kind, events[-1].folder) == ("kept", best)
    assert {row.n for row in again.answer.rows} == {2}
    assert (best / "metrics.json").stat().st_mtime_ns == finished
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert (found["best"], found["kept"]) == (str(best), "finetune")
    assert scores_in_card(best, found) == "2 seeds"
    best.rename(partial_of(best))  # killed before this model was put in its place
    run_comparison(replace(asked, seeds=2), workers=0)
    assert (best / "metrics.json").stat().st_mtime_ns == finished and not partial_of(best).exists()


def scores_in_card(best: Path, found: dict[str, Any]) -> str:
    """Check that the card has the comparison's score of the method that is kept; return of how many seeds it is."""
    card = (best / "README.md").read_text(encoding="utf-8")
    compared = card.split("## In the comparison\n\n")[1].split("\n\n## ")[0]
    row = next(row for row in found["methods"] if row["label"] == found["kept"])
    assert f"`{row['label']}`: accuracy {row['mean']:.4f} ± {row['std']:.4f}" in compared
    assert f"on {found['scored_on']}" in compared and "(10 rows)" in found["scored_on"]
    return compared.split("standard deviation of ")[1].split(",")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"changed": "train.csv"}, r"with other content of the data\. Only"),
        ({"changed": "model/config.json"}, r"with other files of the model\. Only"),
        ({"model": "moved/model"}, None),
        ({"max_steps": 5}, "with max_steps=4, not 5. Only methods, seeds"),
        ({"eval_file": None}, "with other content of the data; eval_file='dev.csv', not None; test_fraction=0.0, not"),
        ({"seeds": 3, "methods": [MethodSetting("r-drop")], "trials": 1}, None),
        ({"train_file": "moved/train.csv"}, None),
    ],
)
def test_an_answer_is_not_replaced_by_that_of_another_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str | None
) -> None:
    monkeypatch.chdir(folder)
    answer, options = folder / "answer", dict(options)
    begun = comparison(folder).config
    check_record(answer, begun)
    answer.mkdir()
    (answer / "comparison.json").write_text(json.dumps(record_of(begun)), encoding="utf-8")
    check_record(answer, replace(begun, max_steps=5))  # there is no answer yet
    (answer / "compared.json").write_text("{}", encoding="utf-8")
    tiny.write_data(folder / "moved")
    shutil.copytree(folder / "model", folder / "moved/model")
    if changed := options.pop("changed", None):
        (folder / changed).write_text((folder / changed).read_text() + "\n")
    if "train_file" in options:
        options = options | {"train_file": str(folder / options["train_file"])}
    config = comparison(folder, **options).config
    if message is None:
        return check_record(answer, config)
    with pytest.raises(AttendropError, match=message):
        check_record(answer, config)
