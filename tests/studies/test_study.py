"""`attendrop study`: a grid of runs from a file, each performed once, failures listed, and tables."""

from __future__ import annotations

import csv
import importlib
import json
import linecache
import logging
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import tiny
from helpers.command_line import Captured

from attendrop import RDrop, cli, register_method
from attendrop.cli.app import PlainConsole
from attendrop.cli.progress import StudyProgress
from attendrop.errors import AttendropError
from attendrop.methods.core import registry
from attendrop.methods.core.options import option_types
from attendrop.runs.config import RunConfig, Source, checked, declared
from attendrop.studies.answer import Answer, answer
from attendrop.studies.comparison import Comparison
from attendrop.studies.executor import Event, Runner, RunSpec, data_sha256, open_runner
from attendrop.studies.results import overall_rows
from attendrop.studies.study import (
    check_study_folder,
    default_folder,
    read_study,
    run_study,
    write_compared,
)


def content(folder: Path, **changed: Any) -> dict[str, Any]:
    data = {"name": "pairs", "train_file": str(folder / "train.csv"), "eval_file": str(folder / "dev.csv")}
    return {
        "data": [data | {"text-columns": "sentence1,sentence2", "label_column": "label"}],
        "models": str(folder / "model"),
        "methods": ["finetune", {"name": "r-drop", "options": {"alpha": [0.5, 1.0]}}],
        "seeds": 2,
        "run": {"epochs": 1, "learning_rate": "1e-3", "max_length": 24, "device": "cpu"},
    } | changed


def write(path: Path, found: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    return str(path)


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_grid(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = content(folder, baselines=["majority"], seeds=[3, 5, 3])
    own = {"task": "rte", "methods": [{"name": "mixout", "options": {"p": [0.5, 0.9]}}], "baselines": "tfidf"}
    without = {"task": "cola", "baselines": []}
    found["data"] = [without, own, found["data"][0] | {"train_file": "train.csv", "shots": [5, 10]}]
    found["run"]["learning_rate"] = ["1e-3", 1e-4]
    study = read_study(write(tmp_path / "study.yaml", found))
    assert [*study.settings] == [
        *("cola, learning_rate=0.001", "cola, learning_rate=0.0001"),
        *("rte, learning_rate=0.001", "rte, learning_rate=0.0001"),
        *(f"pairs, learning_rate={rate}, shots={shots}" for rate in (0.001, 0.0001) for shots in (5, 10)),
    ]
    _, _, second, *_, last = study.settings.values()
    methods = (("finetune", None), ("r-drop", 0.5), ("r-drop", 1.0), ("majority", None))
    asked = [(spec.config.seed, spec.method, spec.options.get("alpha")) for spec in last]
    assert asked == [(seed, *method) for seed in (3, 5) for method in methods]
    assert last[0].config.train_file == str(folder / "train.csv")
    own_methods = [(spec.method, spec.options.get("p")) for spec in second]
    assert own_methods == 2 * [("mixout", 0.5), ("mixout", 0.9), ("tfidf", None)]
    assert len(study.specs) == 4 * 8 + 4 * 6


def test_paths_may_name_environment_variables_and_the_home_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = content(folder, models="$PLACE_OF_DATA/model")
    found["data"][0] |= {"train_file": "$PLACE_OF_DATA/train.csv", "eval_file": "~/dev.csv", "label_map": None}
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PLACE_OF_DATA", "~")  # as a file of variables gives it
    config = read_study(write(tmp_path / "study.yaml", found)).specs[0].config
    assert (config.train_file, config.eval_file) == (str(folder / "train.csv"), str(folder / "dev.csv"))
    assert config.model == str(folder / "model")


def test_options_that_are_written_otherwise_are_the_same_method(folder: Path, tmp_path: Path) -> None:
    """Whose runs have the same seed, so that no answer could be made of both."""
    written = {"name": "r-drop", "options": {"alpha": [2, 2.0], "reduction": "mean"}}
    methods = [{"name": "finetune", "label": "plain"}, "r-drop", {"name": "r-drop", "options": {"alpha": 1}}, written]
    study = read_study(write(tmp_path / "study.yaml", content(folder, methods=methods, seeds=1)))
    assert [(spec.method, spec.options.get("alpha")) for spec in study.specs] == [
        *(("finetune", None), ("r-drop", 1.0), ("r-drop", 2))
    ]
    assert study.reference == "plain"
    (pairs,) = (found := content(folder, seeds=4))["data"]  # the same label on several data is one method
    own = {"name": "r-drop", "label": "mine", "options": {"alpha": 3.0}}
    found["methods"] = ["finetune", own | {"options": {"alpha": [0.5, 1.0]}}]
    found["data"] = [pairs | {"name": "one"}, pairs | {"name": "two", "methods": ["finetune", own]}]
    one, two = read_study(write(tmp_path / "study.yaml", found)).settings.values()
    assert {spec.label for spec in one} == {"", "mine alpha=0.5", "mine alpha=1.0"}
    assert {spec.label for spec in two} == {"", "mine"}


def test_settings_are_named_by_what_varies_and_hold_out_rows(folder: Path, tmp_path: Path) -> None:
    files = [str(folder / "train.csv"), str(folder / "dev.csv")]
    texts = {"text_columns": "sentence1,sentence2", "label_column": "label"}
    data = [{"task": "cola", "shots": [2, 4], "name": "pairs\nof 2024"}, {"name": " ", "train_file": files, **texts}]
    study = read_study(write(tmp_path / "study.yaml", content(folder, data=data, seeds=1)))
    names = ["pairs of 2024, shots=2", "pairs of 2024, shots=4", "train", "dev"]
    assert [*study.settings] == names
    assert [specs[0].config.test_fraction for specs in study.settings.values()] == [0.0, 0.0, 0.25, 0.25]


def test_options_of_data_are_in_place_of_what_they_exclude(folder: Path, tmp_path: Path) -> None:
    """Otherwise `max_steps` of all runs would have overridden the epochs of one entry without a word."""
    data = [{"task": "cola", "epochs": 2, "shots": 4}, {"task": "rte", "max_steps": 9}, "mrpc"]
    run = {"max_steps": 7, "max_train_samples": 50}
    study = read_study(write(tmp_path / "study.yaml", content(folder, data=data, run=run, seeds=1)))
    configs = [specs[0].config for specs in study.settings.values()]
    assert [(config.max_steps, config.epochs) for config in configs] == [(None, 2), (9, None), (7, None)]
    assert [(config.max_train_samples, config.shots) for config in configs] == [(None, 4), (50, None), (50, None)]


def test_a_study_without_its_reference_is_told_before_it_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("attendrop"), "propagate", True)
    data = ["cola", {"task": "rte", "methods": ["r-drop", "mixout"]}]
    monkeypatch.setattr(Runner, "run", lambda self, specs, on_event: sys.exit())
    for reference in ("finetune", "r-drop alpha=0.5"):
        study = read_study(write(tmp_path / "study.yaml", content(folder, data=data, reference=reference)))
        with pytest.raises(SystemExit):
            run_study(study, tmp_path / "out", workers=0)
    assert [record.getMessage() for record in caplog.records] == [
        f"{name!r} is not among the methods of rte, so none will be recommended there: add it, or name a reference."
        for name in ("finetune", "r-drop alpha=0.5")
    ]


def test_a_dry_run_refuses_what_the_run_would(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    found = content(folder)
    found["data"][0]["label_column"] = "labels"
    assert cli.main(["study", write(tmp_path / "study.yaml", found), "--dry-run"]) != 0
    assert "has no column 'labels'; did you mean 'label'?" in capsys.readouterr().err


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "finetune"}, "has an unknown key 'method' in study. Did you mean 'methods'?"),
    ({"run": {"epoch": 3}}, "has an unknown key 'epoch' in run. Did you mean 'epochs'?"),
    ({"data": ["cola", {"task": "cola", "shots": 2}]}, "has two data named 'cola'; give each a 'name'."),
    ({"models": ["minilm", "minilm"]}, "has two data named 'pairs, model=minilm'; omit one."),
    (
        {"run": {"epochs": [1, 5], "max_steps": 9}},
        "has epochs and max_steps in run, which exclude each other; omit one.",
    ),
    ({"methods": [{"name": "mixout", "options": {"p": 2}}]}, "has the method 'mixout', which cannot be used: p=2 must"),
    ({"methods": [{"name": ["finetune", "r-drop"]}]}, "a method whose name is not text: ['finetune', 'r-drop']"),
    (
        {"data": ["cola", {"task": "rte", "methods": "finetune"}], "methods": [{"name": "finetune", "label": "Plain"}]},
        "calls finetune 'Plain' and 'finetune'; give it one label",
    ),
    ({"baselines": "frozen", "reference": "frozen"}, "not one of its methods, 'frozen'. Choose from: finetune, r-drop"),
    ({"methods": [{"name": "r-drop", "label": label} for label in "AB"]}, "has r-drop twice with the same options"),
    ({"run": {"test_fraction": 0}, "data": [{"train_file": "a.csv", "text_columns": "a"}]}, "test-fraction 0 sets no"),
    ({"seeds": True}, "study.yaml' has seeds=True; give their number, or a list."),
    ({"run": {name: list(range(1, 99)) for name in ("epochs", "batch_size", "patience")}}, "has 941,192 runs, above"),
    ({"methods": [{"name": "r-drop", "options": ["p"]}]}, "has ['p'] as options; write names with values, such as"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_a_mistake_in_the_file_is_one_sentence(
    folder: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(AttendropError, match=re.escape(message)):
        read_study(write(tmp_path / "study.yaml", content(folder, **changed)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seeds: 2\nmethods: finetune\nseeds: 5\n", "line 3: the key 'seeds' is given twice"),
        ("x: " + "[" * 3000 + "]" * 3000, "maximum recursion depth exceeded"),
    ],
    ids=["twice", "deep"],
)
def test_yaml_that_cannot_be_read_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(AttendropError, match=told):
        read_study(str(tmp_path / "study.yaml"))


@pytest.mark.parametrize("kind", [RunConfig, Comparison, Source])
def test_true_is_no_number(kind: Any) -> None:
    for name in (each for each in declared(kind) if option_types(kind)[each] & {int, float}):
        with pytest.raises(AttendropError, match=f"{name}=True is not a .*number"):
            checked(kind, name, True)


def test_a_run_is_named_by_its_options_and_its_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(tiny.config(folder, method="finetune"))
    data = data_sha256(spec.config)
    key = RunSpec(tiny.config(folder, "other", method="finetune")).key(data)
    assert spec.key(data) == key
    with monkeypatch.context() as patch:  # an option that is new
        patch.setattr(RunConfig, "as_dict", lambda self, known=RunConfig.as_dict: known(self) | {"new": None})
        assert spec.key(data) == RunSpec(tiny.config(folder, method="finetune")).key(data) == key
    for options in ({"seed": 1}, {"epochs": 3}, {"method": "r-drop"}):
        assert spec.key(data) != RunSpec(tiny.config(folder, **({"method": "finetune"} | options))).key(data)
    tiny.write_data(tmp_path)
    changed = tiny.config(tmp_path, method="finetune")
    assert data_sha256(changed) == data
    (tmp_path / "model").mkdir()
    assert RunSpec(changed).key(data) == key  # wherever the data are
    assert RunSpec(changed).key() != spec.key()
    long = Runner(tmp_path).folder_of(RunSpec(replace(spec.config, train_file=f"{'long' * 60}.csv"))).name
    assert long.endswith("long-finetune-seed0" + long[-9:]) and len(long) < 240  # a file system allows 255
    tiny.write_csv(tmp_path / "dev.csv", ["no", "yes"] * 5)
    assert data_sha256(changed) != data


# Runs ----------------------------------------------------------------------------------------------------------------


def test_a_study_runs_all_once_lists_failures_and_retries_only_these(
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    submit = Runner.submit

    def noted(self: Runner, spec: RunSpec, folder: Path, steps: Path) -> Any:
        ran.append(folder.name)
        return submit(self, spec, folder, steps)

    monkeypatch.setattr(Runner, "submit", noted)
    found = content(folder, methods="finetune", baselines="majority", seeds=1)
    found["run"]["learning_rate"] = [1e-3, 1e25]
    command = ["study", write(tmp_path / "study.yaml", found), "--output-dir", str(tmp_path / "out")]
    command += ["--workers", "0"]
    assert cli.main([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert len(ran) == 4
    (failed,) = report["failed"]
    assert (failed["method"], failed["seed"]) == ("finetune", 0) and "Training diverged" in failed["error"]
    assert json.loads((tmp_path / "out" / "answer.json").read_text()) == report
    assert "## Failed runs" in (tmp_path / "out" / "answer.md").read_text()
    rows = list(csv.DictReader((tmp_path / "out" / "answer.csv").open()))
    assert [(row["setting"], row["method"], row["n"]) for row in rows] == [
        ("pairs, learning_rate=0.001", "finetune", "1"),
        ("pairs, learning_rate=0.001", "majority", "1"),
        ("pairs, learning_rate=1e+25", "majority", "1"),
    ]
    assert cli.main(command) == 1
    assert ran[4:] == [Path(failed["folder"]).name]
    assert list(json.loads((tmp_path / "out/failed.json").read_text())) == ran[4:]


def run(specs: list[RunSpec], folder: Path, on_event: Any = lambda event: None) -> list[Event]:
    with open_runner(folder, workers=0) as runner:
        return runner.run(specs, on_event)


@pytest.mark.parametrize("changed", ["train.csv", "model/config.json"])
def test_data_and_models_that_change_meanwhile_end_a_study(folder: Path, tmp_path: Path, changed: str) -> None:
    """Otherwise runs of two data sets were compared, and kept when the first was restored."""
    own = shutil.copytree(folder, tmp_path / "own")
    specs = [RunSpec(tiny.config(own, seed=seed), "majority") for seed in (0, 1)]

    def edit(event: Event) -> None:
        if event.kind == "finished":
            (own / changed).write_text((own / changed).read_text() + "\n")

    with pytest.raises(AttendropError, match=r"the model '.*', or the code .* changed meanwhile"):
        run(specs, own / "study", edit)
    again = run(specs, own / "study")
    assert len({result.folder for result in again}) == 2
    assert len(list((own / "study" / "runs").iterdir())) == 3  # that of the former data is another


OWN_METHOD = """
from attendrop.extend import Method, MethodInfo

class Mine(Method):
    info = MethodInfo("mine", "does nothing")
"""


def test_runs_of_an_own_method_are_those_of_its_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, runs of its former code would be kept, and averaged with new ones."""
    for name in ("_METHODS", "_OF_PROGRAM"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    file, places = tmp_path / "own_method.py", []
    monkeypatch.syspath_prepend(tmp_path)
    for code in (OWN_METHOD, OWN_METHOD + "# changed\n", OWN_METHOD):
        file.write_text(code)
        monkeypatch.delitem(sys.modules, "own_method", raising=False)
        register_method(importlib.import_module("own_method").Mine)
        spec, runner = RunSpec(tiny.config(folder, method="mine+r-drop")), Runner(tmp_path)
        places.append(runner.folder_of(spec))
    assert places[0] == places[2] != places[1]
    file.write_text("# edited\n" + OWN_METHOD)
    with pytest.raises(AttendropError, match=r"or the code of the method 'mine\+r-drop' changed meanwhile"):
        runner.folder_of(spec)
    monkeypatch.setitem(sys.modules, "__main__", module := ModuleType("__main__"))

    def sha256_of(cell: str, name: str) -> str:
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        exec(compile(cell, name, "exec"), module.__dict__)
        return registry.own_code_sha256(module.Mine())

    acts = OWN_METHOD + "    def active(self, epoch):\n        return True\n"
    cells = acts, acts + "1 + 1", acts.replace("True", "0")
    found = [sha256_of(cell, f"cell {number}") for number, cell in enumerate(cells)]
    assert found[0] == found[1] != found[2]
    exec(acts, module.__dict__)  # typed in: it has no code
    assert registry.own_code_sha256(module.Mine()) == registry.own_code_sha256(RDrop()) == ""


def test_what_a_crash_left_does_not_end_a_study(folder: Path, tmp_path: Path) -> None:
    specs = [RunSpec(tiny.config(folder, seed=seed), "majority") for seed in (0, 1)]
    first, second = run(specs, tmp_path)
    (first.folder / "metrics.json").write_text("")
    again = run(specs, tmp_path)
    assert again[1].metrics == second.metrics
    assert "Or delete it, and start again." in again[0].text
    assert list(json.loads((tmp_path / "failed.json").read_text())) == [first.folder.name]
    (tmp_path / "failed.json").write_text("[")  # nothing rests on it
    shutil.rmtree(first.folder)
    assert [each.kind for each in run(specs, tmp_path)] == ["finished", "kept"]


def test_answers_of_other_files_and_of_users_are_not_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two study files have the default folder `runs/study`; and `attendrop train` makes a folder of runs, too."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        write(Path(name) / "study.yaml", content(folder, methods="finetune"))
    place = default_folder("a/study.yaml")
    (place / "runs").mkdir(parents=True)
    write_compared(place, {"mine": []}, "finetune", file=str(tmp_path / "a/study.yaml"))
    check_study_folder(place, file="a/study.yaml")
    told = f"'runs/study' holds the answer of '{tmp_path / 'a/study.yaml'}', which would be replaced; name another"
    with pytest.raises(AttendropError, match=re.escape(told)):
        check_study_folder(place, file="b/study.yaml")
    with pytest.raises(AttendropError, match="holds the answer of a study; name another one"):
        check_study_folder(place, comparison=True)
    (tmp_path / "own" / "runs").mkdir(parents=True)
    check_study_folder(tmp_path / "own")
    (tmp_path / "own" / "answer.csv").write_text("my,data")
    with pytest.raises(AttendropError, match=r"answer\.csv' was not written by attendrop, and would be replaced"):
        check_study_folder(tmp_path / "own")


# Tables --------------------------------------------------------------------------------------------------------------


def scored(spec: RunSpec, score: float, by_row: np.ndarray | None = None, data: str = "") -> dict[str, Any]:
    blocks = np.full(100, score) if by_row is None else by_row
    known = {"task": "files", "model": "m", "metric": "accuracy", "train_seconds": 1.0, "data": {"rows": {}}}
    row_scores = {"rows": 1000, "data": data, "blocks": blocks.tolist()}
    return known | spec.described() | {"score": score, "row_scores": row_scores}


def answers_of(folder: Path, scores: dict[str, Any]) -> dict[str, Answer]:
    """Answers of settings in which plain fine-tuning scores 0.5, and R-Drop as its function of the run says."""
    answers = {}
    for name, score in scores.items():
        plain, other = (
            [RunSpec(tiny.config(folder, method=method, seed=seed)) for seed in range(4)]
            for method in ("finetune", "r-drop")
        )
        answers[name] = answer([*(scored(spec, 0.5, data=name[0]) for spec in plain), *map(score, other)])
    return answers


def test_methods_are_compared_over_all_settings_with_holm_correction(folder: Path) -> None:
    """Differences of 0.02 and 0.04 with small spread: over both settings 0.03, and p values corrected for two tests."""
    gains = {"first": [0.01, 0.02, 0.03, 0.02], "second": [0.03, 0.04, 0.05, 0.04]}
    scores = {
        name: lambda spec, gain=gain, name=name: scored(spec, 0.5 + gain[spec.config.seed], data=name[0])
        for name, gain in gains.items()
    }
    answers = answers_of(folder, scores)
    (row,) = overall_rows(answers)
    assert row.mean.values == pytest.approx([0.02, 0.03, 0.04, 0.03])
    first, second = (answers[name].rows[1].difference.p_value for name in gains)
    assert row.p_values == pytest.approx({"first": first, "second": 2 * second})
    errors = {name: replace(found, metric="neg_mse") for name, found in answers.items()}
    assert overall_rows(errors)[0].mean is not None
    assert overall_rows(answers | {"second": errors["second"]})[0].mean is None  # they share no scale
    errors["second"] = replace(errors["second"], data="other/train.csv")  # a file of the same name has its own scale
    (of_errors,) = overall_rows(errors)
    assert of_errors.mean is None and of_errors.p_values == row.p_values


def test_settings_with_the_same_evaluation_rows_are_not_independent(folder: Path) -> None:
    """What a row adds in one setting it adds in the other: two settings know of no more rows than one."""
    effects = np.random.default_rng(0).normal(0.02, 0.1, 100)

    def width(*names: str) -> float:
        scores = {
            name: lambda spec, name=name: scored(spec, 0.5 + effects.mean(), 0.5 + effects, name[0]) for name in names
        }
        mean = overall_rows(answers_of(folder, scores))[0].mean
        return mean.mean.high - mean.mean.low

    assert width("a", "a again") == pytest.approx(width("a"))
    assert width("a", "b") == pytest.approx(width("a") / 2**0.5, rel=0.05)


# Progress ------------------------------------------------------------------------------------------------------------


def test_progress_counts_finished_and_running_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("attendrop.cli.progress.time.monotonic", lambda: now)

    def happens(kind: Any, seed: int, **more: Any) -> None:
        progress(Event(kind, RunSpec(tiny.config(folder, seed=seed)), Path(f"run{seed}"), **more))

    progress = StudyProgress(PlainConsole(record=True, width=200), 5)
    happens("kept", 0)
    assert progress.state() == "1 of 5"
    now = 60.0
    happens("progress", 1, steps=5, planned_steps=10)
    assert progress.state() == "1 of 5, about 7 min left"  # half a run took a minute
    now = 120.0
    happens("finished", 1, metrics={"metric": "accuracy", "score": 0.5})
    for seed in (2, 3):
        happens("progress", seed, steps=6, planned_steps=12)
    assert progress.state() == "2 of 5, about 2 min left"  # two at a time
    happens("failed", 2, text="out of memory")
    progress.runs = 3
    assert progress.state() == "3 of 3, 1 failed"
