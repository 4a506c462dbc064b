"""Comparisons: what is asked for, the search of settings, the model that is kept, and whole ones on tiny models."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

import attendrop
from attendrop import ADDrop, AttendropError, cli
from attendrop.extend import Method, MethodInfo
from attendrop.runs.config import RunConfig, partial_of
from attendrop.runs.data import resolve_run
from attendrop.studies import BASELINES
from attendrop.studies import compare as compare_module
from attendrop.studies.answer import answer
from attendrop.studies.compare import (
    MOST_FACTOR,
    SELECTION_FRACTION,
    Trial,
    best_model,
    choose,
    final_runs,
    run_comparison,
    search_settings,
)
from attendrop.studies.comparison import Comparison, MethodSetting
from attendrop.studies.executor import Event, RunSpec

RUN_OPTIONS = (
    "model", "train_file", "eval_file", "test_fraction", "shots", "max_steps", "unlabelled", "text_columns",
    "head_init",
)  # fmt: skip
DEFAULT = MethodSetting("ad-drop")
OTHER = MethodSetting("ad-drop", {"p": 0.5})


class Unregistered(Method):
    info = MethodInfo("unregistered", "does nothing")


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


# What is asked for ----------------------------------------------------------------------------------------------------


class Runner:
    """Scores runs by a function, instead of performing them; the data decide some options of the default."""

    def __init__(self, score: Any = lambda spec: 0.5, decided: Any = None) -> None:
        self.score, self.decided = score, decided or {}
        self.asked: list[RunSpec] = []

    def run(self, specs: list[RunSpec], on_event: Any = None) -> list[Event]:
        results = []
        for spec in specs:
            self.asked.append(spec)
            found = self.score(spec)
            on_evaluation_rows = found if spec.config.seed < 1000 else 0.0  # which no search may look at
            metrics = spec.described() | {"selection_score": found, "score": on_evaluation_rows, "train_seconds": 1.0}
            metrics |= {"task": "files", "model": "m", "metric": "accuracy", "data": {"rows": {"dev": 12}}}
            metrics["training"] = {"learning_rate": spec.config.learning_rate or 0.01}
            metrics["options"] = {} if spec.baseline else spec.config.regularizer.options() | self.decided
            done: Any = ("finished", metrics) if found is not None else ("failed", None, "luck")
            results.append(Event(done[0], spec, Path(repr(spec)), *done[1:]))
        return results

    def release(self) -> None: ...

    def folder_of(self, spec: RunSpec) -> None: ...


@pytest.fixture
def run_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a runner run comparisons."""
    (folder / "answer").mkdir()
    return lambda runner: monkeypatch.setattr(compare_module, "open_runner", lambda *_, **__: nullcontext(runner))


def test_the_comparison_ends_if_plain_fine_tuning_fails_and_not_if_a_method_does(
    folder: Path, run_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, planned = Runner(lambda spec: None if spec.method == "mixout" else 0.5), list[int]()
    run_by(runner)
    outcome = run_comparison(comparison(folder, keep_best=False), on_plan=planned.append)
    assert [(spec.method, spec.config.seed) for spec in runner.asked] == [
        (method, seed) for seed in range(2) for method in ("finetune", "mixout", "majority")
    ]
    assert planned == [6]
    assert "mixout with seed 0 (luck); mixout with seed 1 (luck)" in outcome.answer.notes[0] and outcome.failed == 2
    command = ["compare", str(folder / "train.csv"), "--text-columns=sentence1", "--label-column=label", "--seeds=2"]
    command += [f"--model={folder / 'model'}", f"--output-dir={folder / 'another'}"]
    (folder / "another").mkdir()
    for failing, code in (("mixout", 1), (None, 0)):
        run_by(Runner(lambda spec, failing=failing: None if spec.method == failing else 0.5))
        monkeypatch.setattr(compare_module, "train", lambda *_, **__: {})
        assert cli.main([*command, "--methods=mixout", "--baselines=none"]) == code
    assert cli.main([*command, "--models=a,b"]) == 2
    run_by(Runner(lambda spec: None if spec.method == "finetune" else 0.5))
    assert cli.main([*command, "--methods=mixout", "--baselines=none"]) == 1  # as if others fail
    with pytest.raises(AttendropError, match="No run of plain fine-tuning succeeded; the first error: luck"):
        run_comparison(comparison(folder, keep_best=False))


def test_other_columns_in_front_of_texts_are_compared_with_none(folder: Path, run_by: Any) -> None:
    runner, planned = Runner(), list[int]()
    run_by(runner)
    asked = comparison(folder, keep_best=False, baselines=())
    config = replace(asked.config, text_columns=["sentence1"], with_columns=["sentence2"])
    outcome = run_comparison(replace(asked, config=config), on_plan=planned.append)
    found = [(spec.method, spec.config.with_columns) for spec in runner.asked]
    assert found == [("finetune", ("sentence2",)), ("mixout", ("sentence2",)), ("finetune", None)] * 2
    assert planned == [6] and "finetune without sentence2" in [row.label for row in outcome.answer.rows]
    chosen = {"finetune": MethodSetting("finetune", learning_rate=3e-4), "mixout": MethodSetting("mixout")}
    final = final_runs(replace(asked, config=config), chosen)  # they differ in nothing else
    assert {spec.config.learning_rate for spec in final if spec.method == "finetune"} == {3e-4}
    run_by(Runner(lambda spec: None if spec.method == "finetune" and spec.config.with_columns else 0.5))
    with pytest.raises(AttendropError, match="No run of plain fine-tuning succeeded; the first error: luck"):
        run_comparison(replace(asked, config=config))


def test_the_chosen_settings_are_those_of_the_final_runs(folder: Path, run_by: Any) -> None:
    pytest.importorskip("optuna")
    scores = {0.5: None, 0.9: 0.9}  # of mixout's p; runs with 0.5 diverge
    runner = Runner(lambda spec: scores.get(spec.options.get("p"), 0.5))
    run_by(runner)
    planned: list[int] = []
    outcome = run_comparison(comparison(folder, trials=12, folds=1, keep_best=False), on_plan=planned.append)
    final = [spec for spec in runner.asked if spec.method == "mixout" and spec.config.seed < 2]
    assert len(final) == 2 and {spec.options["p"] for spec in final} == {0.9}
    found = outcome.as_dict()
    assert found["chosen"]["mixout"].startswith("p=0.9")
    assert planned == [2 * 12 + 2 * 3, len(runner.asked)]
    failed = [trial["scores"] for trial in found["trials"]["mixout"] if trial["setting"].startswith("p=0.5")]
    assert failed and all(scores == [None] for scores in failed)


def test_searches_that_end_in_the_same_setting_are_one_row(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = comparison(
        folder, methods=[MethodSetting("mixout"), MethodSetting("mixout", {"p": 0.5})], keep_best=False, baselines=()
    )
    found = [MethodSetting("finetune"), *(MethodSetting("mixout", {"p": 0.9}, rate) for rate in (None, 1e-3))]
    final = final_runs(asked, dict(zip([each.label for each in asked.methods], found, strict=True)))
    assert [spec.method for spec in final] == ["finetune", "mixout"] * asked.seeds
    assert "The search for mixout p=0.5 ended in a setting that is compared already." in caplog.text


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


def test_texts_that_the_kept_model_is_trained_on_are_refused_before_any_run(folder: Path, run_by: Any) -> None:
    (folder / "dev.csv").unlink()
    texts = [line.split(",")[0] for line in (folder / "train.csv").read_text(encoding="utf-8").splitlines()]
    (folder / "texts.csv").write_text("\n".join(texts) + "\n", encoding="utf-8")
    options = {"eval_file": None, "test_fraction": 0.25, "text_columns": (texts[0],), "head_init": "linear-probe"}
    asked = comparison(folder, unlabelled=str(folder / "texts.csv"), **options)
    runner = Runner()
    run_by(runner)
    with pytest.raises(AttendropError, match="no text that the training rows lack"):
        run_comparison(asked)
    assert not runner.asked


def test_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Comparison] = []
    monkeypatch.setattr(compare_module, "run_comparison", lambda comparison, **_: asked.append(comparison))
    data = {"train_file": folder / "train.csv", "text_columns": ("sentence1",), "label_column": "label"}
    methods = [ADDrop(p=0.2), ADDrop(p=0.4, q=0.2), "finetune"]
    attendrop.compare(output_dir=Path("answer"), methods=methods, baselines=("tfidf", "majority"), trials=3, **data)
    assert [each.label for each in asked[0].methods] == ["finetune", "ad-drop p=0.2", "ad-drop p=0.4 q=0.2"]
    assert (asked[0].trials, asked[0].config.test_fraction) == (3, 0.25)  # a part is set aside
    assert asked[0].config.train_file == str(folder / "train.csv")
    slower = MethodSetting("r-drop", learning_rate=1e-3)
    with pytest.raises(AttendropError, match="Plain fine-tuning has the learning rate of the comparison"):
        replace(asked[0], methods=[MethodSetting("finetune", learning_rate=1e-3)])
    for methods, expected in (
        ("r-drop, mixout", (MethodSetting("finetune"), MethodSetting("r-drop"), MethodSetting("mixout"))),
        (["r-drop", slower], (MethodSetting("finetune"), MethodSetting("r-drop"), slower)),
    ):
        assert replace(asked[0], methods=methods).methods == expected
    both = replace(asked[0], methods=MethodSetting("ad-drop+r-drop", {"ad_drop": {"p": 0.3}, "r-drop.alpha": 2.0}))
    assert both.methods[1].options == {"ad-drop.p": 0.3, "r-drop.alpha": 2.0}  # by any of their names
    for wrong, told in (({"method": "r-drop"}, "no option 'method'; did you mean 'methods'"),
                        ({"test_fraction": 0}, "test-fraction 0 sets no rows aside")):  # fmt: skip
        with pytest.raises(AttendropError, match=told):
            attendrop.compare(output_dir="answer", **data, **wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": [MethodSetting("mixout", {"p": 2})]}, "p=2 must be above 0"),
        ({"methods": [MethodSetting("mixout", {"p": 0.7}), MethodSetting("mixout")]}, "mixout is to be compared twice"),
        ({"methods": [ADDrop]}, r"A method is an object, such as ADDrop\(\), and not "),
        ({"methods": [Unregistered()]}, r"Unregistered is not registered; call attendrop.register_method\(Unreg"),
        ({"baselines": ("tf-idf",)}, "There is no baseline 'tf-idf'; known are majority"),
        (
            {"methods": [DEFAULT, MethodSetting("ad-drop", {"layers": "7"}), MethodSetting("mixout")]},
            r"^ad-drop layers=7 cannot act on .* by --methods\. layers=",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_others_train(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AttendropError, match=message):
        run_comparison(comparison(folder, **options))
    assert not (folder / "answer").exists()


# The search of settings ----------------------------------------------------------------------------------------------


def search(folder: Path, runner: Runner, *defaults: MethodSetting, seed: int = 0, **options: Any) -> Any:
    pytest.importorskip("optuna")
    config = tiny.config(folder, method="finetune", seed=seed, learning_rate=None, **options.pop("run", {}))
    chosen: dict[str, Any] = {"trials": 6, "folds": 2, "methods": defaults or [DEFAULT], "output_dir": ""} | options
    return search_settings(Comparison(config=config, **chosen), runner.run)


def near_one_rate(spec: RunSpec) -> float:
    return -abs(math.log(spec.config.learning_rate or 0.01) + 5)


def test_all_methods_have_the_same_number_of_settings_each_once_and_the_same_again(folder: Path) -> None:
    """So a search that was stopped goes on with its finished runs: the seed and the scores decide."""
    found = search(folder, Runner(near_one_rate), trials=9)
    for name in ("finetune", "ad-drop"):
        assert found[name][0].setting == MethodSetting(name)
        assert len({repr(trial.setting) for trial in found[name]}) == 9
    rates = [trial.setting.learning_rate for trial in found["finetune"][1:]]
    assert all(0.01 / MOST_FACTOR <= rate <= 0.01 * MOST_FACTOR for rate in rates)
    assert search(folder, Runner(near_one_rate), trials=9) == found
    assert search(folder, Runner(near_one_rate), trials=5)["ad-drop"] == found["ad-drop"][:5]
    assert search(folder, Runner(near_one_rate), trials=9, seed=1) != found
    assert search(folder, Runner(), trials=9) != found


def test_settings_are_around_what_the_data_decided_and_keep_what_they_differ_in(folder: Path) -> None:
    """What the data decided is not given, so that it is searched, too."""
    runner = Runner(decided={"p": 0.3, "attribution": "recorded", "layers": "all"})
    found = search(folder, runner, DEFAULT, trials=12)["ad-drop"]
    changed = [trial.setting.options for trial in found[1:] if trial.setting.options]
    assert found[0].setting.options == {} and {options["attribution"] for options in changed} == {"recorded"}
    assert len({options["p"] for options in changed}) > 1
    found = search(folder, Runner(), DEFAULT, OTHER, MethodSetting("ad-drop+r-drop"), trials=12)
    tried = {label: [trial.setting.options for trial in trials] for label, trials in found.items()}
    assert all("p" not in options or options["p"] == 0.1 for options in tried["ad-drop"])
    assert all(options["p"] == 0.5 for options in tried["ad-drop p=0.5"])
    assert {"ad-drop.p", "r-drop.alpha"} <= {name for options in tried["ad-drop+r-drop"] for name in options}


def test_settings_are_scored_on_held_out_rows_and_a_default_that_fails_is_not_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(lambda spec: None if spec.method == "ad-drop" else 0.5)
    found = search(folder, runner, run={"protocol": "paper"})
    assert [len(found[name]) for name in ("finetune", "ad-drop")] == [6, 1]
    assert {spec.config.seed for spec in runner.asked} == {1000, 1001}
    held_out = {(spec.config.selection_fraction, spec.config.protocol) for spec in runner.asked}
    assert held_out == {(SELECTION_FRACTION, "held-out")}
    with pytest.raises(AttendropError, match="No run succeeded; the first error: luck"):
        search(folder, Runner(lambda spec: None))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(AttendropError, match=r"--trials needs optuna; run `pip install 'attendrop\[search\]'`"):
        search_settings(comparison(folder, trials=2), Runner().run)


@pytest.mark.parametrize(
    ("default", "other", "chosen"),
    [
        ([0.5, 0.5, 0.5], [0.9, 0.3, 0.4], DEFAULT),  # better on average by less than its standard error
        ([0.5, 0.5, 0.5], [0.62, 0.48, 0.55], OTHER),  # by more than its standard error, less than its deviation
        ([0.5, 0.5, 0.5], [0.9, None, 0.9], DEFAULT),
        ([None, 0.8, 0.8], [0.1, 0.9, 0.9], OTHER),
        ([0.5], [0.6], OTHER),
    ],
)
def test_the_default_is_left_only_for_more_than_a_standard_error(
    default: list[float | None], other: list[float | None], chosen: MethodSetting
) -> None:
    assert choose([Trial(DEFAULT, default), Trial(OTHER, other)]) == chosen


# The model that is kept: whatever is recommended, its run can be made ---------------------------------------------


def kept(config: RunConfig, recommended: str, decided: dict[str, Any] | None = None) -> tuple[str | None, RunConfig]:
    """Choose the model of a comparison with a best method, and resolve its run as training would.

    Its data ``decided`` on these options of the methods, if any.
    """
    results = []
    for name, level in {"finetune": 0.7, recommended: 0.9}.items():
        baseline = name if name in BASELINES else None
        options = {"reward_data": "eval"} if name == "attendout" else {}
        own = dataclasses.replace(config, method="finetune" if baseline else name, options=options)
        for seed in range(5):
            score = level + seed / 1000
            metrics: dict[str, Any] = {"task": "files", "model": "m", "metric": "accuracy"}
            metrics |= {"method": name, "seed": seed}
            own_options = own.regularizer.options() | (decided or {} if name != "finetune" else {})
            metrics |= {"options": {} if baseline else own_options, "score": score, "train_seconds": 1.0}
            metrics |= {"row_scores": {"rows": 3000, "data": "", "blocks": [score] * 100}, "data": {"rows": {}}}
            spec = RunSpec(dataclasses.replace(own, seed=seed), baseline)
            results.append(Event("finished", spec, Path(f"{name}-{seed}"), metrics))
    found = answer([each.run for each in results])
    wanted = best_model(found, results, config, Path(config.output_dir))
    assert wanted.keep_model
    return wanted.baseline, resolve_run(wanted.config).config


ALL = {"test_fraction": 0.0}
FROZEN = ALL | {"max_steps": 0, "head_init": "linear-probe", "pooling": "mean", "lora": None, "patience": None}
HELD = {"test_fraction": 0.25}  # rows that a run needs stay held out


@pytest.mark.parametrize(
    ("options", "recommended", "baseline", "expected"),
    [
        ({}, "mixout", None, ALL | {"method": "mixout", "seed": 0, "selection_fraction": 0.0, "refit": False}),
        ({"calibrate": True}, "mixout", None, ALL | {"selection_fraction": 0.1, "refit": True}),
        ({"lora": {"r": 2}, "patience": 2}, "frozen", None, FROZEN),  # a linear model on the encoder
        ({"protocol": "paper"}, "tfidf", "tfidf", ALL | {"protocol": "held-out"}),  # no model of transformers
        ({"protocol": "paper"}, "mixout", None, HELD),  # chooses the epoch on the evaluation rows
        ({}, "attendout", None, HELD),  # is rewarded on them
    ],
)
def test_the_recommended_model_is_trained_on_all_rows(
    folder: Path, options: dict[str, Any], recommended: str, baseline: str | None, expected: dict[str, Any]
) -> None:
    given = {"method": "finetune", "selection_fraction": None, "refit": None, "eval_file": None, "test_fraction": 0.25}
    given |= options
    found = kept(tiny.config(folder, "answer", **given), recommended)
    assert found[0] == baseline and found[1].output_dir == f"{folder}/answer/best"
    assert {name: getattr(found[1], name) for name in expected} == expected


def test_what_the_data_decided_for_the_scores_holds_for_the_model(folder: Path) -> None:
    """On all rows, which may be too many for it, they would decide otherwise."""
    decided = {"p": 0.3, "attribution": "recorded", "layers": "all"}
    config = tiny.config(folder, "answer", method="finetune", eval_file=None, test_fraction=0.25)
    _, found = kept(config, "ad-drop", decided)
    assert {name: found.options[name] for name in decided} == decided


# Whole comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_answers_keeps_the_model_and_goes_on(folder: Path) -> None:
    asked = comparison(folder, eval_file=None, test_fraction=0.25, seeds=1, max_steps=1)
    best, events = folder / "answer" / "best", list[Any]()
    outcome = run_comparison(asked, workers=0, on_event=events.append)
    assert (events[-1].kind, events[-1].folder, events[-1].metrics) == ("finished", best, tiny.read_metrics(best))
    assert {row.label: row.n for row in outcome.answer.rows} == {"finetune": 1, "mixout": 1, "majority": 1}
    assert tiny.read_metrics(best)["data"]["rows"]["train"] == 40  # all rows, those of the evaluation among them
    assert (best / "model.safetensors").exists()

    events.clear()
    finished = (best / "metrics.json").stat().st_mtime_ns
    again = run_comparison(replace(asked, seeds=2), workers=0, on_event=events.append)
    assert [event.spec.config.seed for event in events if event.kind == "finished"] == [1] * 3
    assert (events[-1].kind, events[-1].folder) == ("kept", best)
    assert {row.n for row in again.answer.rows} == {2}
    assert (best / "metrics.json").stat().st_mtime_ns == finished
    found = json.loads((folder / "answer" / "answer.json").read_text(encoding="utf-8"))
    assert (found["best"], found["kept"]) == (str(best), "finetune")
    best.rename(partial_of(best))  # killed before this model was put in its place
    run_comparison(replace(asked, seeds=2), workers=0)
    assert (best / "metrics.json").stat().st_mtime_ns == finished and not partial_of(best).exists()
    (best / "model.safetensors").unlink()
    run_comparison(replace(asked, seeds=2), workers=0)  # one that lost its model is none
    assert (best / "model.safetensors").exists()

    def edit(event: Event) -> None:
        if event.spec.config.seed == 2:
            tiny.write_csv(folder / "train.csv", ["yes", "no"] * 10, first=5)

    with pytest.raises(AttendropError, match="changed meanwhile, so earlier runs used another"):
        run_comparison(replace(asked, seeds=3, methods=(), baselines=()), workers=0, on_event=edit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"changed": "train.csv"}, r"with other content of the data\. Only"),
        ({"changed": "model/config.json"}, r"with other files of the model\. Only"),
        ({"model": "moved/model"}, None),
        ({"max_steps": 5}, "with max_steps=4, not 5. Only methods, seeds"),
        ({"seeds": 3, "methods": [MethodSetting("r-drop")], "trials": 1}, None),
    ],
)
def test_an_answer_is_not_replaced_by_that_of_another_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str | None
) -> None:
    monkeypatch.chdir(folder)
    options, begun = dict(options), comparison(folder)
    (folder / "answer").mkdir()
    (folder / "answer" / "comparison.json").write_text(json.dumps(begun.record()), encoding="utf-8")
    comparison(folder, max_steps=5).check_record()  # there is no answer yet
    (folder / "answer" / "compared.json").write_text("{}", encoding="utf-8")
    tiny.write_data(folder / "moved")
    shutil.copytree(folder / "model", folder / "moved/model")
    if changed := options.pop("changed", None):
        (folder / changed).write_text((folder / changed).read_text() + "\n")
    now = comparison(folder, **options)
    if message is None:
        return now.check_record()
    with pytest.raises(AttendropError, match=message):
        now.check_record()
