"""Comparisons: what is run within a budget, and whole ones on tiny models."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop import ADDrop, AttendropError
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_file import partial_of
from attendrop.studies import compare as compare_module
from attendrop.studies.best_model import best_model
from attendrop.studies.compare import Steps, run_comparison
from attendrop.studies.comparison import Comparison, MethodSetting, check_record, write_record
from attendrop.studies.setting_search import MOST_FACTOR
from attendrop.studies.study import check_study_folder
from attendrop.studies.units import Result, Unit

RUN_OPTIONS = ("model", "train_file", "eval_file", "shots", "max_steps")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    return tmp_path


def comparison(folder: Path, **options: Any) -> Comparison:
    run = {name: options.pop(name) for name in RUN_OPTIONS if name in options}
    config = tiny.config(folder, **({"method": "finetune", "max_steps": 4, "head_start": "random"} | run))
    chosen: dict[str, Any] = {"methods": [MethodSetting("mixout")], "baselines": ("majority",), "seeds": 2}
    return Comparison(config=config, output_dir=str(folder / "answer"), **(chosen | options))


# What is run ----------------------------------------------------------------------------------------------------------


class Runner:
    """Units that take ten seconds each, on two workers, and are scored by a function of theirs."""

    workers = 2

    def __init__(self, score: Any = lambda unit: 0.5) -> None:
        self.score = score
        self.asked: list[Unit] = []

    def run(self, units: Iterable[Unit], on_event: Any = None) -> list[Result]:
        results = []
        for unit in units:
            self.asked.append(unit)
            found = self.score(unit)
            metrics = unit.described() | {"selection_score": found, "score": found, "total_seconds": 10.0}
            metrics |= {"task": "files", "model": "m", "metric": "accuracy", "train_seconds": 1.0}
            metrics |= {"training": {"learning_rate": unit.config.learning_rate}, "data": {"rows": {"dev": 12}}}
            result = Result(unit, Path(repr(unit)), metrics)
            results.append(result if found is not None else replace(result, metrics=None, error="luck", seconds=10.0))
        return results

    def release(self) -> None: ...


@pytest.fixture
def run_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a runner run comparisons."""
    (folder / "answer").mkdir()
    return lambda runner: monkeypatch.setattr(compare_module, "open_runner", lambda *_, **__: nullcontext(runner))


def steps(of: Comparison, runner: Runner) -> Steps:
    return Steps(of, runner, lambda event: None, lambda units, more: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget", "seeds"), [(29.0, 1), (30.0, 2), (None, 4)])
def test_only_whole_seeds_that_fit_into_the_budget_are_run(folder: Path, budget: float | None, seeds: int) -> None:
    planned: list[int] = []
    of = comparison(folder, seeds=4, budget=budget)
    running = Steps(of, Runner(), lambda event: None, lambda units, more: planned.append(len(units) + more))  # type: ignore[arg-type]
    # A seed takes 3 runs x 10 s / 2 workers.
    found = running.final_runs(running.defaults)
    assert [(each.unit.method, each.unit.config.seed) for each in found] == [
        (method, seed) for seed in range(seeds) for method in ("finetune", "mixout", "majority")
    ]
    running.run(each.unit for each in found)  # they are there, and count once
    assert running.spent == seeds * 3 * 10 / 2
    assert planned[-1] == seeds * 3 + 1  # and the model that is kept


@pytest.mark.parametrize(("budget", "trials"), [(None, 4), (85.0, 1), (86.0, 2), (115.0, 2), (116.0, 3), (600.0, 4)])
def test_settings_are_tried_while_the_final_runs_fit_into_the_budget(
    folder: Path, budget: float | None, trials: int
) -> None:
    """A setting of both methods takes 3 folds x 10 s, and two seeds of them 26 s."""
    pytest.importorskip("optuna")
    running = steps(comparison(folder, seeds=2, budget=budget, trials=4), Runner())
    found = {name: len(each) for name, each in running.search().items()}
    assert found == dict.fromkeys(("finetune", "mixout"), trials)
    assert budget is None or running.spent < budget
    assert steps(comparison(folder, budget=budget), Runner()).search() == {}


def test_learning_rates_that_are_given_are_not_searched(folder: Path) -> None:
    pytest.importorskip("optuna")
    given = [MethodSetting("finetune", learning_rate=2e-3), MethodSetting("mixout", learning_rate=5e-4), "r-drop"]
    of = comparison(folder, methods=given, trials=4, folds=1)
    found = steps(of, Runner()).search()
    rates = [{trial.setting.learning_rate for trial in trials} for trials in found.values()]
    assert rates[:2] == [{2e-3}, {5e-4}]
    assert 1 < len(found["mixout learning_rate=0.0005"]) <= 4  # of four values, one proposed twice is tried once
    usual = of.config.learning_rate
    assert usual is not None and len(rates[2]) == 4 and None in rates[2]
    assert all(usual / MOST_FACTOR <= rate <= usual * MOST_FACTOR for rate in rates[2] - {None})


def test_settings_with_learning_rates_are_rows_of_their_own(folder: Path, run_by: Any) -> None:
    rates = {4e-3: 0.9, 2e-3: 0.7}
    run_by(Runner(lambda unit: rates.get(unit.config.learning_rate, 0.5) if unit.method == "mixout" else 0.6))
    given = ["mixout", MethodSetting("mixout", {"p": 0.9}, 4e-3), MethodSetting("mixout", {"p": "0.7"}, 2e-3)]
    of = comparison(folder, methods=given, keep_best=False, trials=12, folds=1)
    outcome = run_comparison(of)
    means = {row.label: row.mean for row in outcome.answer.rows if row.method == "mixout"}
    assert means == {"mixout": 0.5, "mixout p=0.9 learning_rate=0.004": 0.9, "mixout learning_rate=0.002": 0.7}
    searched = {trial.setting.learning_rate for trial in outcome.trials["mixout"]}
    assert searched == {None}  # each setting stays what it is compared as
    running = steps(of, Runner(lambda unit: None if unit.config.learning_rate == 2e-3 else 0.5))
    results = running.final_runs(running.defaults)
    assert [each.failure()["label"] for each in results if each.metrics is None] == ["mixout learning_rate=0.002"] * 2
    recommended: Any = SimpleNamespace(use="mixout p=0.9 learning_rate=0.004")
    kept = best_model(recommended, results, of.config, resolve_run(of.config).task.head, folder)
    assert (kept.config.learning_rate, kept.options["p"]) == (4e-3, 0.9)


def test_the_comparison_ends_if_plain_fine_tuning_fails_and_not_if_a_method_does(folder: Path) -> None:
    running = steps(comparison(folder), Runner(lambda unit: None if unit.method == "mixout" else 0.5))
    assert sum(each.metrics is None for each in running.final_runs(running.defaults)) == 2
    assert running.spent == 2 * 3 * 10 / 2  # also of those that failed
    planned: list[int] = []
    runner = Runner(lambda unit: None if unit.method == "mixout" else 0.5)
    asked = comparison(folder, trials=2, folds=1, keep_best=False)
    running = Steps(asked, runner, lambda event: None, lambda units, more: planned.append(len(units) + more))  # type: ignore[arg-type]
    running.search()
    running.final_runs(running.defaults)
    assert planned[-1] == len({repr(unit) for unit in runner.asked})  # also those that failed in the search
    running = steps(comparison(folder), Runner(lambda unit: None if unit.method == "finetune" else 0.5))
    with pytest.raises(AttendropError, match="No run of plain fine-tuning succeeded; the first error: luck"):
        running.final_runs(running.defaults)


def test_the_chosen_settings_are_those_of_the_final_runs(folder: Path, run_by: Any) -> None:
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
    told = f"mixout: {found['chosen']['mixout']}, of 12 settings ({len(failed)} failed) on selection rows."
    assert told in outcome.lines() and told in (folder / "answer" / "answer.md").read_text(encoding="utf-8")


def test_the_answer_names_failures_and_is_written_whatever_becomes_of_the_model(
    folder: Path, run_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise AttendropError("The disk is full.")

    monkeypatch.setattr(compare_module, "train", fails)
    run_by(Runner(lambda unit: None if unit.options.get("p") == 0.9 else 0.5))
    settings = [MethodSetting("mixout", {"p": p}) for p in (0.5, 0.9)]
    with pytest.raises(AttendropError, match=r"answer is in .*answer\.md, but its model .*: The disk is full"):
        run_comparison(comparison(folder, methods=settings))
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert found["best"] is None and "mixout p=0.9 with seed 0 (luck)" in found["notes"][0]


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
    for wrong, hint in (
        ({"metod": "r-drop"}, "'metod'; did you mean"),
        ({"method": "r-drop"}, "'method'; did you mean"),
    ):
        with pytest.raises(AttendropError, match=f"compare has no option {hint} 'methods'"):
            attendrop.compare(output_dir="answer", **wrong, **data)
    with pytest.raises(AttendropError, match="test-fraction 0 sets no rows aside"):
        attendrop.compare(output_dir="answer", **data, test_fraction=0)
    assert comparison(folder).config.test_fraction == 0.0  # there are evaluation data
    assert list(asked[0].of_baselines(["majority", "frozen"]).baselines) == ["majority"]


def test_help_lists_all_options() -> None:
    listed = inspect.signature(attendrop.compare).parameters
    assert {"methods", "seeds", "train_file", "learning_rate", "output_dir", "workers"} <= set(listed)
    assert listed["seeds"].default == Comparison.seeds and listed["options"].default == {}
    assert listed["output_dir"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0.0}, "budget must be above 0 seconds"),
        ({"methods": [MethodSetting("mixout", {"p": 2})]}, "p=2 must be above 0"),
        ({"methods": [MethodSetting("mixout", {"p": 0.7}), MethodSetting("mixout")]}, "mixout is to be compared twice"),
        (
            {"methods": ["finetune", MethodSetting("finetune", {}, 1e-3)]},
            "finetune learning_rate=0.001 is to be compared",
        ),
        ({"methods": [ADDrop]}, r"A method is an object, such as ADDrop\(\), and not "),
        ({"methods": [("ad-drop", {"p": 0.2})]}, "A method is an object"),
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
    told = dict.fromkeys(event.kind for event in events if event.job.folder == best)
    assert [*told] == ["started", "progress", "finished"] and events[-1].metrics == tiny.read_metrics(best)
    assert caplog.text.count("Data: classification, 2 classes") == 1  # of the model that is kept
    assert {row.label: row.n for row in outcome.answer.rows} == {"finetune": 1, "mixout": 1, "majority": 1}
    assert tiny.read_metrics(best)["data"]["rows"]["train"] == 40  # all rows, those of the evaluation among them
    assert (best / "model.safetensors").exists()
    assert not list((folder / "answer" / "runs").glob("*/*.safetensors"))

    events.clear()
    finished = (best / "metrics.json").stat().st_mtime_ns
    again = run_comparison(replace(asked, seeds=2), workers=0, on_event=events.append)
    started = [event.job.unit.config.seed for event in events if event.kind == "started"]
    assert started == [1] * 3 and events[-1].kind == "kept" and events[-1].job.folder == best
    assert {row.n for row in again.answer.rows} == {2}
    assert (best / "metrics.json").stat().st_mtime_ns == finished
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert (found["best"], found["kept"]) == (str(best), "finetune")
    assert scores_in_card(best, found) == "2 seeds"

    # Meanwhile another model was recommended, and its training was interrupted.
    partial_of(best).mkdir()
    meanwhile = json.loads((best / "run.json").read_text()) | {"config": {"method": "mixout"}}
    (partial_of(best) / "run.json").write_text(json.dumps(meanwhile))
    (best / "README.md").write_text("my own")
    run_comparison(replace(asked, seeds=2), workers=0)
    assert (best / "README.md").read_text().startswith("my own")
    shutil.rmtree(partial_of(best))

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
        ({"changed": "train.csv"}, r"with other content of train\.csv, dev\.csv\. Only"),
        ({"changed": "model/config.json"}, r"with other files of the model '.*model'\. Only"),
        ({"model": "model"}, None),  # named from another folder
        ({"model": "moved/model"}, None),
        ({"max_steps": 5}, "with max_steps=4, not 5. Only methods, seeds"),
        ({"unknown": "protocol"}, "with protocol=None, not 'honest'. Only"),  # a record of another version
        ({"train_file": "other.csv"}, "with the data train.csv, dev.csv, not other.csv, dev.csv"),
        ({"eval_file": None}, "with the data train.csv, dev.csv, not train.csv; test_fraction=0.0, not 0.25"),
        ({"seeds": 3, "methods": [MethodSetting("r-drop")], "budget": 60.0, "trials": 1}, None),
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
    write_record(answer, begun)
    check_record(answer, replace(begun, max_steps=5))  # there is no answer yet
    (answer / "compared.json").write_text("{}", encoding="utf-8")
    tiny.write_data(folder / "moved")
    shutil.copytree(folder / "model", folder / "moved/model")
    tiny.write_csv(folder / "other.csv", ["no", "yes"] * 10)
    if unknown := options.pop("unknown", None):
        record = json.loads((answer / "comparison.json").read_text())
        del record["config"][unknown]
        (answer / "comparison.json").write_text(json.dumps(record))
    if changed := options.pop("changed", None):
        (folder / changed).write_text((folder / changed).read_text() + "\n")
    if "train_file" in options:
        options = options | {"train_file": str(folder / options["train_file"])}
    config = comparison(folder, **options).config
    if message is None:
        return check_record(answer, config)
    with pytest.raises(AttendropError, match=message):
        check_record(answer, config)


@pytest.mark.parametrize(
    ("answer", "comparison"), [('{"settings": {"mine": {}}}', True), ('{"settings": {"": {}}}', False)]
)
def test_studies_and_comparisons_do_not_replace_each_other(tmp_path: Path, answer: str, comparison: bool) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "compared.json").write_text(answer, encoding="utf-8")
    check_study_folder(tmp_path, comparison=not comparison)
    (tmp_path / "runs").rmdir()  # to save space
    check_study_folder(tmp_path, comparison=not comparison)
    with pytest.raises(AttendropError, match=f"holds the answer of a {'study' if comparison else 'comparison'}"):
        check_study_folder(tmp_path, comparison=comparison)
