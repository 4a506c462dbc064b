"""Comparisons: what is run within a budget, and whole ones on tiny models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop import ADDrop, AttendropError
from attendrop.runs.run_folder import foreign, read_run
from attendrop.studies import compare as compare_module
from attendrop.studies.compare import Outcome, Steps, run_comparison
from attendrop.studies.comparison import Comparison, check_record, write_record
from attendrop.studies.setting_search import MethodSetting
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
            metrics: dict[str, Any] | None = None
            if found is not None:
                metrics = {"method": unit.method, "seed": unit.config.seed, "selection_score": found}
                metrics |= {"total_seconds": 10.0, "training": {"learning_rate": 1e-4}}
            results.append(Result(unit, Path(repr(unit)), metrics, None if metrics else "out of luck"))
        return results


def steps(of: Comparison, runner: Runner) -> Steps:
    return Steps(of, runner, lambda event: None, lambda units: None)  # type: ignore[arg-type]


def test_without_a_budget_all_seeds_of_all_methods_are_run_and_nothing_is_searched(folder: Path) -> None:
    runner = Runner()
    running = steps(comparison(folder, seeds=3), runner)
    assert running.search() == {}
    found = running.final_runs(running.defaults)
    assert [(each.unit.method, each.unit.config.seed) for each in found] == [
        (method, seed) for seed in range(3) for method in ("finetune", "mixout", "majority")
    ]


@pytest.mark.parametrize(("budget", "seeds"), [(15.0, 1), (29.0, 1), (30.0, 2), (46.0, 3), (1000.0, 4)])
def test_only_whole_seeds_that_fit_into_the_budget_are_run(folder: Path, budget: float, seeds: int) -> None:
    runner = Runner()  # a seed takes 3 runs x 10 s / 2 workers
    running = steps(comparison(folder, seeds=4, budget=budget), runner)
    found = running.final_runs(running.defaults)
    assert {each.unit.config.seed for each in found} == set(range(seeds))
    assert len(found) == 3 * seeds


@pytest.mark.parametrize(
    ("budget", "trials"), [(50.0, None), (110.0, None), (112.0, 2), (123.0, 2), (124.0, 3), (600.0, 12)]
)
def test_what_time_is_left_goes_into_the_search(folder: Path, budget: float, trials: int | None) -> None:
    """A trial of both methods takes 10 s, and two seeds of them 26 s; of two trials there are 6, of three 7."""
    running = steps(comparison(folder, seeds=2, budget=budget), Runner())
    found = {name: len(each) for name, each in running.search().items()}
    assert found == ({} if trials is None else dict.fromkeys(("finetune", "mixout"), trials))
    assert running.spent < budget


def test_runs_that_are_asked_for_twice_count_once(folder: Path) -> None:
    running = steps(comparison(folder), Runner())
    for _ in range(2):
        running.final_runs(running.defaults)
    assert running.spent == 2 * 3 * 10 / 2


def test_one_setting_is_no_search(folder: Path) -> None:
    runner = Runner()
    assert steps(comparison(folder, trials=1), runner).search() == {}
    assert runner.asked == []


def test_the_chosen_settings_are_those_of_the_final_runs(folder: Path) -> None:
    runner = Runner(lambda unit: float(dict(unit.config.options).get("p", 0.0)))  # mixout's p of 0.9 is the best
    running = steps(comparison(folder, trials=12, folds=1), runner)
    outcome = Outcome(answer=None, trials=running.search())  # type: ignore[arg-type]
    final = running.final_runs(running.defaults | outcome.chosen)
    options = {each.unit.method: each.unit.config.options for each in final}
    assert options["mixout"]["p"] == 0.9


def test_the_comparison_ends_if_plain_fine_tuning_fails(folder: Path) -> None:
    running = steps(comparison(folder), Runner(lambda unit: None if unit.method == "finetune" else 0.5))
    with pytest.raises(AttendropError, match="No run of plain fine-tuning succeeded; the first error: out of luck"):
        running.final_runs(running.defaults)


def test_a_failed_method_does_not_end_it(folder: Path) -> None:
    running = steps(comparison(folder), Runner(lambda unit: None if unit.method == "mixout" else 0.5))
    assert sum(each.metrics is None for each in running.final_runs(running.defaults)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds"),
        ({"trials": 0}, "trials"),
        ({"budget": 0.0}, "budget must be above 0 seconds"),
        ({"methods": [MethodSetting("mixup")]}, "There is no method 'mixup'"),
        ({"methods": [MethodSetting("mixout", {"p": 2})]}, "p=2 must be above 0"),
        ({"methods": [MethodSetting("mixout", {"p": 0.7}), MethodSetting("mixout")]}, "mixout is to be compared twice"),
        ({"baselines": ("tf-idf",)}, "There is no baseline 'tf-idf'; known are majority"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        comparison(folder, **options)


def test_without_evaluation_data_a_part_is_set_aside(folder: Path) -> None:
    assert comparison(folder, eval_file=None).config.test_fraction == 0.25
    assert comparison(folder).config.test_fraction == 0.0


# Whole comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_answers_keeps_the_model_and_goes_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "attendrop")
    asked = comparison(folder, eval_file=None)
    outcome = run_comparison(asked, workers=0)
    assert caplog.text.count("Data: classification, 2 classes") == 1  # of the model that is kept
    assert outcome.answer.rows[0].label == "finetune"
    assert {row.label: row.n for row in outcome.answer.rows} == {"finetune": 2, "mixout": 2, "majority": 2}
    written = {name: (folder / "answer" / name).read_text(encoding="utf-8") for name in ("answer.json", "answer.md")}
    found = json.loads(written["answer.json"])
    assert (found["best"], found["kept"]) == (str(folder / "answer" / "best"), "finetune")
    best = tiny.read_metrics(folder / "answer" / "best")
    assert best["data"]["rows"]["train"] == 40  # all rows, those of the evaluation among them
    assert (folder / "answer" / "best" / "model.safetensors").exists()
    assert not list((folder / "answer" / "runs").glob("*/*.safetensors"))
    assert scores_in_card(folder / "answer" / "best", found) == "2 seeds"

    finished = (folder / "answer" / "best" / "metrics.json").stat().st_mtime_ns
    run_comparison(asked, workers=0)
    assert (folder / "answer" / "best" / "metrics.json").stat().st_mtime_ns == finished

    events: list[Any] = []
    again = run_comparison(dataclasses.replace(asked, seeds=3), workers=0, on_event=events.append)
    started = [event.job.unit for event in events if event.kind == "started"]
    assert {unit.config.seed for unit in started} == {2} and len(started) == 3
    assert {row.n for row in again.answer.rows} == {3}
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert scores_in_card(folder / "answer" / "best", found) == "3 seeds"

    card = folder / "answer" / "best" / "README.md"
    card.write_text("my own")
    run_comparison(dataclasses.replace(asked, seeds=3), workers=0)
    assert card.read_text() == "my own"


def scores_in_card(best: Path, found: dict[str, Any]) -> str:
    """Check that the card has the comparison's score of the method that is kept; return of how many seeds it is."""
    assert not foreign(best / "README.md", read_run(best) or {})
    card = (best / "README.md").read_text(encoding="utf-8")
    compared = card.split("## In the comparison\n\n")[1].split("\n\n## ")[0]
    row = next(row for row in found["methods"] if row["label"] == found["kept"])
    assert f"`{row['label']}`: accuracy {row['mean']:.4f} ± {row['std']:.4f}" in compared
    assert f"on {found['scored_on']}" in compared and "(10 rows)" in found["scored_on"]
    return compared.split("standard deviation of ")[1].split(",")[0]


def test_failures_are_named_with_their_setting(folder: Path) -> None:
    settings = [MethodSetting("mixout", {"p": p}) for p in (0.5, 0.9)]
    running = steps(comparison(folder, methods=settings), Runner())
    found = running.final_runs(running.defaults)
    failed = [
        dataclasses.replace(each, metrics=None, error="out of luck") for each in found if "0.9" in repr(each.unit)
    ]
    assert len(failed) == 2
    metrics: dict[str, Any] = {"task": "files", "model": "m", "metric": "accuracy", "method": "finetune", "seed": 0}
    metrics |= {"options": {}, "score": 0.5, "train_seconds": 1.0}
    metrics |= {"data": {"selected_on": None, "rewarded_on": None, "rows": {"dev": 3000}}}
    scored = [Result(each.unit, each.folder, metrics, None) for each in found if each.unit.method == "finetune"]
    notes = " ".join(compare_module._answer([scored[0], *failed]).notes)
    assert "mixout p=0.9 with seed 0 (out of luck)" in notes


def test_the_answer_is_written_whatever_becomes_of_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise AttendropError("The disk is full.")

    monkeypatch.setattr(compare_module, "train", fails)
    asked = dataclasses.replace(comparison(folder), output_dir=str(folder / "without_model"))
    with pytest.raises(
        AttendropError, match=r"The answer is in .*answer\.md, but its model could not be .*: The disk is full"
    ):
        run_comparison(asked, workers=0)
    assert json.loads((folder / "without_model" / "answer.json").read_text(encoding="utf-8"))["best"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 5}, "with max_steps=4, not 5. Only methods, seeds"),
        ({"model": "other/model"}, "with model='.*model', not 'other/model'"),
        ({"train_file": "other.csv"}, "with the data train.csv, dev.csv, not other.csv, dev.csv"),
        ({"eval_file": None}, "with the data train.csv, dev.csv, not train.csv; test_fraction=0.0, not 0.25"),
        ({}, None),
        ({"seeds": 3, "methods": [MethodSetting("r-drop")], "budget": 60.0, "trials": 1}, None),
        ({"train_file": "moved/train.csv"}, None),
    ],
)
def test_an_answer_is_not_replaced_by_that_of_another_comparison(
    folder: Path, options: dict[str, Any], message: str | None
) -> None:
    answer = folder / "answer"
    begun = comparison(folder).config
    check_record(answer, begun)
    answer.mkdir()
    write_record(answer, begun)
    check_record(answer, dataclasses.replace(begun, max_steps=5))  # there is no answer yet
    (answer / "answer.json").write_text("{}", encoding="utf-8")
    tiny.write_data(folder / "moved")
    tiny.write_csv(folder / "other.csv", ["no", "yes"] * 10)
    if "train_file" in options:
        options = options | {"train_file": str(folder / options["train_file"])}
    config = comparison(folder, **options).config
    if message is None:
        return check_record(answer, config)
    with pytest.raises(AttendropError, match=message):
        check_record(answer, config)


def test_changed_data_are_other_data(folder: Path) -> None:
    asked = comparison(folder, seeds=1, methods=(), baselines=(), keep_best=False)
    run_comparison(asked, workers=0)
    written = (folder / "answer" / "answer.json").read_bytes()
    tiny.write_csv(folder / "train.csv", ["yes", "no"] * 20)
    with pytest.raises(AttendropError, match=r"with other content of train\.csv, dev\.csv"):
        run_comparison(asked, workers=0)
    assert (folder / "answer" / "answer.json").read_bytes() == written


@pytest.mark.parametrize(("answer", "comparison"), [('{"settings": {}}', True), ('{"methods": []}', False)])
def test_studies_and_comparisons_do_not_replace_each_other(tmp_path: Path, answer: str, comparison: bool) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "answer.json").write_text(answer, encoding="utf-8")
    check_study_folder(tmp_path, comparison=not comparison)
    with pytest.raises(AttendropError, match=f"holds the answer of a {'study' if comparison else 'comparison'}"):
        check_study_folder(tmp_path, comparison=comparison)


def test_from_python(folder: Path) -> None:
    config = tiny.config(folder)
    outcome = attendrop.compare(
        output_dir=str(folder / "answer"),
        model=config.model,
        train_file=config.train_file,
        eval_file=config.eval_file,
        text_columns=config.text_columns,
        label_column="label",
        methods=[ADDrop(p=0.2), ADDrop(p=0.4, q=0.2), "finetune"],
        seeds=1,
        baselines=(),
        keep_best=False,
        workers=0,
        max_steps=3,
        max_length=16,
        device="cpu",
    )
    assert outcome.answer.rows[0].label == "finetune"
    assert {row.label for row in outcome.answer.rows[1:]} == {"ad-drop p=0.2", "ad-drop p=0.4 q=0.2"}
    assert outcome.best is None


def test_baselines_that_a_kind_of_task_does_not_have_are_left_out(folder: Path) -> None:
    asked = comparison(folder, baselines=("tfidf", "majority"))
    assert list(asked.of_baselines(["majority", "frozen"]).baselines) == ["majority"]
