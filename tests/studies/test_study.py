"""`attendrop study`: a grid of runs from a file, each run once, failures listed, and tables."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import tiny
from helpers.command_line import Captured, assert_refused

from attendrop import cli
from attendrop.cli.console import MessageConsole
from attendrop.cli.progress import StudyProgress
from attendrop.errors import AttendropError
from attendrop.methods.core.options import option_types
from attendrop.methods.core.registry import build_method, get_method, method_names
from attendrop.runs.config import RunConfig, checked, declared
from attendrop.runs.model_source import Source
from attendrop.runs.run_file import read_run_file
from attendrop.runs.train import train
from attendrop.studies import units
from attendrop.studies.comparison import Comparison
from attendrop.studies.executor import InProcess, run_units
from attendrop.studies.study import check_study_folder, make_report, overall_rows
from attendrop.studies.study_file import Setting, Study, read_study
from attendrop.studies.units import BASELINES, Event, Job, Result, Unit, data_sha256, duration


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


def takes_numbers(kind: Any, name: str) -> bool:
    return bool(option_types(kind)[name] & {int, float})


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_grid(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = content(folder, baselines=["majority"], seeds=[3, 5])
    own = {"task": "rte", "methods": [{"name": "mixout", "options": {"p": [0.5, 0.9]}}], "baselines": "tfidf"}
    without = {"task": "cola", "baselines": []}
    found["data"] = [without, own, found["data"][0] | {"train_file": "train.csv", "shots": [5, 10]}]
    found["run"]["learning_rate"] = ["1e-3", 1e-4]
    found["methods"].append("finetune")
    study = read_study(write(tmp_path / "study.yaml", found))
    assert [setting.name for setting in study.settings] == [
        *("cola, learning_rate=0.001", "cola, learning_rate=0.0001"),
        *("rte, learning_rate=0.001", "rte, learning_rate=0.0001"),
        *(f"pairs, learning_rate={rate}, shots={shots}" for rate in (0.001, 0.0001) for shots in (5, 10)),
    ]
    last = study.settings[-1].units
    assert [(unit.config.seed, unit.method, unit.options.get("alpha")) for unit in last] == [
        (seed, *method)
        for seed in (3, 5)
        for method in (("finetune", None), ("r-drop", 0.5), ("r-drop", 1.0), ("majority", None))
    ]
    assert last[0].config.train_file == str(folder / "train.csv")
    assert last[0].config.text_columns == ("sentence1", "sentence2")
    assert [(unit.method, unit.options.get("p")) for unit in study.settings[2].units] == 2 * [
        ("mixout", 0.5),
        ("mixout", 0.9),
        ("tfidf", None),
    ]
    assert len(study.units) == 4 * 8 + 4 * 6
    assert [unit.config.seed for unit in study.units] == [3] * 28 + [5] * 28


def test_paths_may_name_environment_variables_and_the_home_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    found = content(folder)
    found["data"][0] |= {"train_file": "$PLACE_OF_DATA/train.csv", "label_map": None}
    found["models"] = "$PLACE_OF_DATA/model"
    file = write(tmp_path / "study.yaml", found)
    monkeypatch.setenv("PLACE_OF_DATA", str(folder))
    config = read_study(file).units[0].config
    assert (config.train_file, config.model) == (str(folder / "train.csv"), str(folder / "model"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PLACE_OF_DATA", "~")  # as a file of variables gives it
    found["data"][0]["eval_file"] = "~/dev.csv"
    config = read_study(write(tmp_path / "study.yaml", found)).units[0].config
    assert (config.train_file, config.eval_file) == (str(folder / "train.csv"), str(folder / "dev.csv"))
    assert config.model == str(folder / "model")
    monkeypatch.delenv("PLACE_OF_DATA")
    message = "'$PLACE_OF_DATA/model', but PLACE_OF_DATA is not set"
    assert_refused(["study", file, "--output-dir", str(tmp_path / "out")], tmp_path / "out", message, capsys)


def test_options_that_are_written_otherwise_are_the_same_method(folder: Path, tmp_path: Path) -> None:
    """Whose runs have the same seed, so that no answer could be made of both."""
    written = {"name": "r-drop", "options": {"alpha": [2, 2.0], "reduction": "mean"}}
    methods = [{"name": "finetune", "label": "plain"}, "r-drop", {"name": "r-drop", "options": {"alpha": 1}}, written]
    study = read_study(write(tmp_path / "study.yaml", content(folder, methods=methods, seeds=1)))
    assert [(unit.method, unit.options.get("alpha")) for unit in study.units] == [
        *(("finetune", None), ("r-drop", 1.0), ("r-drop", 2)),
    ]
    assert study.reference == "plain"


def test_names_and_labels_are_on_one_line(folder: Path, tmp_path: Path) -> None:
    found = content(folder, methods=["finetune", {"name": "r-drop", "label": "R-Drop\nof two lines\n"}], seeds=1)
    found["data"][0]["name"] = "pairs\nof texts"
    (setting,) = read_study(write(tmp_path / "study.yaml", found)).settings
    assert (setting.name, [*setting.labels.values()]) == ("pairs of texts", ["R-Drop of two lines"])


def test_settings_of_a_grid_of_data_are_named_by_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(folder / "train.csv"), str(folder / "dev.csv")]
    data = [
        *({"task": ["cola", "rte"], "max_train_samples": 16}, {"name": 2024, "task": "cola", "shots": [2, 4]}),
        {"name": " ", "train_file": files, "text_columns": "sentence1,sentence2", "label_column": "label"},
    ]
    study = read_study(write(tmp_path / "study.yaml", content(folder, data=data)))
    assert [each.name for each in study.settings] == ["cola", "rte", "2024, shots=2", "2024, shots=4", "train", "dev"]
    monkeypatch.chdir(folder)
    models = ["model", str(tmp_path)]
    study = read_study(write(tmp_path / "study.yaml", content(folder, models=models)))
    assert [each.name for each in study.settings] == [f"pairs, model={model}" for model in models]
    assert study.units[0].config.model == str(folder / "model")


def test_a_file_alone_is_scored_on_a_part_of_it(folder: Path, tmp_path: Path) -> None:
    found = content(folder, baselines=["majority"])
    del found["data"][0]["eval_file"]
    units = read_study(write(tmp_path / "study.yaml", found)).units
    assert {unit.method for unit in units} == {"finetune", "r-drop", "majority"}
    assert {unit.config.test_fraction for unit in units} == {0.25}
    found["run"] |= {"test_fraction": 0}
    with pytest.raises(AttendropError, match="test-fraction 0 sets no rows aside"):
        read_study(write(tmp_path / "study.yaml", found))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "finetune"}, "has an unknown key 'method'. Did you mean 'methods'?"),
    ({"run": {"epoch": 3}}, "has an unknown key 'epoch' in run. Did you mean 'epochs'?"),
    ({"data": ["cola", "cola"]}, "has two data named 'cola'; give each a 'name'."),
    ({"methods": [{"name": "r-drop", "options": {"alpa": 1}}]}, "alpa"),
    ({"data": [{"task": "cola", "methods": []}]}, "has no methods."),
    ({"methods": ["finetune", {"name": "r-drop", "label": 5}]}, "a label that is not text: 5; quote it."),
    ({"methods": ["finetune", {"name": "r-drop", "label": "finetune"}]}, "two methods with the label 'finetune'"),
    ({"reference": ["finetune"]}, "a reference that is not one of its methods, ['finetune']."),
    ({"methods": [{"name": ["finetune", "r-drop"]}]}, "a method whose name is not text: ['finetune', 'r-drop']"),
    ({"models": [["minilm"]]}, "a model that is not a name: ['minilm']."),
    ({"data": [{"train_file": "a.csv", "text_columns": [["a"]]}]}, "must be names, comma-separated"),
    ({"reference": "finetun"}, "a reference that is not one of its methods, 'finetun'. Did you mean 'finetune'?"),
    (
        {"data": ["cola", {"task": "rte", "methods": "finetune"}], "methods": [{"name": "finetune", "label": "Plain"}]},
        "calls finetune 'Plain' and 'finetune'; give it one label, as the reference.",
    ),
    ({"baselines": "frozen", "reference": "frozen"}, "not one of its methods, 'frozen'. Choose from: finetune, r-drop"),
    (
        {"baselines": "frozen", "methods": [{"name": "r-drop", "label": "frozen"}]},
        "two methods with the label 'frozen'",
    ),
    ({"methods": [{"name": "r-drop", "label": label} for label in "AB"]}, "has r-drop twice with the same options"),
    ({"data": [{"task": "cola", "max_train_samples": []}]}, "has no max_train_samples."),
    ({"seeds": -2}, "has -2 seeds; give at least one, or a list."),
    ({"seeds": "3"}, "has the text '3' as seeds: a number of them is without quotation marks."),
    ({"seeds": True}, "study.yaml' has seeds=True; give their number, or a list."),
    ({"seeds": [True]}, "study.yaml': seed=True is not a whole number."),
    ({"run": {"epochs": True}}, "study.yaml': epochs=True is not a whole number."),
    ({"seeds": 10**12}, "has 1,000,000,000,000 runs, above the 10,000 that are allowed; divide it."),
    ({"seeds": 4000}, "has 12,000 runs, above the 10,000 that are allowed; divide it."),
    ({"run": {name: list(range(1, 99)) for name in ("epochs", "batch_size", "patience")}}, "has 941,192 runs, above"),
    (
        {"methods": [{"name": "r-drop", "options": ["p"]}]},
        "has ['p'] as options; write names with values, such as {p: ",
    ),
    ({"data": [3]}, "has 3 as data; write names with values, such as {task: rte}."),
    ({"methods": [3]}, "has 3 as methods; write names with values, such as {name: "),
    ({"run": ["epochs"]}, "has ['epochs'] as run; write names with values, such as {epochs: 4}."),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_a_mistake_in_the_file_is_one_sentence(
    folder: Path, tmp_path: Path, capsys: Captured, changed: dict[str, Any], message: str
) -> None:
    file = write(tmp_path / "study.yaml", content(folder, **changed))
    assert_refused(["study", file, "--output-dir", str(tmp_path / "out")], tmp_path / "out", message, capsys)


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("seeds: 2\nmethods: finetune\nrun: {max_steps: 1}\nseeds: 5\n")
    with pytest.raises(AttendropError, match=r"study.yaml' cannot be read, line 4: the key 'seeds' is given twice"):
        read_study(str(tmp_path / "study.yaml"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x: &x [a]\ny: [*x, *x]", r"line 2: aliases, \*name, are not read; write the value out\."),
        ("x: " + "[" * 3000 + "]" * 3000, r"\(maximum recursion depth exceeded.*\)\."),
        ("x: 2024-13-45", r"\(month must be in 1..12\)\."),
        ("x: " + "9" * 5000, r"\(Exceeds the limit .*\)\."),
    ],
    ids=["aliases", "deep", "no date", "long number"],
)
def test_yaml_that_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    for read, what in ((read_study, "study"), (read_run_file, "config")):
        with pytest.raises(AttendropError, match=f"^The {what} file '.*study.yaml' cannot be read.* ?{told}$"):
            read(str(tmp_path / "study.yaml"))


NUMBERS = [
    (kind, name) for kind in (RunConfig, Comparison, Source) for name in declared(kind) if takes_numbers(kind, name)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=[f"{kind.__name__}-{name}" for kind, name in NUMBERS])
def test_true_is_no_number(kind: Any, name: str) -> None:
    for value in (True, False):
        with pytest.raises(AttendropError, match=f"{name}={value} is not a .*number"):
            checked(kind, name, value)


def test_true_is_no_number_among_options_of_methods() -> None:
    for name in method_names():
        kind = get_method(name)
        for option in (each.name for each in fields(kind) if takes_numbers(kind, each.name)):
            with pytest.raises(AttendropError, match=f"{option}=True (is not a .*number|must name some)"):
                build_method(name, {option: True})


@pytest.mark.parametrize(
    ("count", "told"),
    [(-2, "workers=-2 must be a whole number, and at least 0."), (True, "workers=True must be a whole number"),
     (10**6, "workers=1000000 are too many for 3 cores: each loads PyTorch and a model; give at most 16, or omit it.")],
)  # fmt: skip
def test_a_number_of_workers_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, count: int, told: str
) -> None:
    monkeypatch.setattr(units, "available_cores", lambda: 3)
    with pytest.raises(AttendropError, match=told):
        run_units([], tmp_path / "study", workers=count)
    if count is not True:
        for command in (["study", "missing.yaml"], ["compare", "missing.csv"]):
            assert_refused([*command, "--workers", str(count)], tmp_path / "out", told, capsys)


def test_a_unit_is_named_by_its_options_and_its_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = Unit(tiny.config(folder, method="finetune"))
    data = data_sha256(unit.config)
    key = Unit(tiny.config(folder, "other", method="finetune")).key(data)
    assert unit.key(data) == key
    with monkeypatch.context() as patch:  # an option that older versions did not have
        patch.setattr(RunConfig, "as_dict", lambda self, known=RunConfig.as_dict: known(self) | {"new": None})
        assert unit.key(data) == Unit(tiny.config(folder, method="finetune")).key(data) == key
    for options in ({"seed": 1}, {"epochs": 3}, {"method": "r-drop"}, {"shots": 5}):
        assert unit.key(data) != Unit(tiny.config(folder, **({"method": "finetune"} | options))).key(data)
    assert unit.key(data) != Unit(unit.config, "majority").key(data)
    tiny.write_data(tmp_path)
    changed = tiny.config(tmp_path, method="finetune")
    assert data_sha256(changed) == data
    (tmp_path / "model").mkdir()
    assert Unit(changed).key(data) == key  # wherever the data are
    assert Unit(changed).key() != unit.key()
    long = Unit(replace(unit.config, train_file=f"{'long' * 60}.csv")).folder_name(data)
    assert long.endswith("long-finetune-seed0" + long[-9:]) and len(long) < 240  # a file system allows 255
    tiny.write_csv(tmp_path / "dev.csv", ["no", "yes"] * 5)
    assert data_sha256(changed) != data


# Runs ----------------------------------------------------------------------------------------------------------------


def test_a_study_runs_all_once_lists_failures_and_retries_only_these(
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    start = InProcess.start
    monkeypatch.setattr(InProcess, "start", lambda self, job: (ran.append(job.folder.name), start(self, job))[1])
    found = content(folder, methods="finetune", baselines="majority", seeds=1)
    found["run"]["learning_rate"] = [1e-3, 1e25]
    command = ["study", write(tmp_path / "study.yaml", found), "--output-dir", str(tmp_path / "out")]
    command += ["--workers", "0"]
    assert cli.main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 runs"
    assert not (tmp_path / "out").exists()
    assert cli.main([*command, "--json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert len(ran) == 4
    assert list(report["settings"]) == ["pairs, learning_rate=0.001", "pairs, learning_rate=1e+25"]
    assert [(run["method"], run["seed"]) for run in report["failed"]] == [("finetune", 0)]
    assert "Training diverged" in report["failed"][0]["error"]
    assert "failed: Training diverged" in err
    assert json.loads((tmp_path / "out" / "answer.json").read_text()) == report
    assert "## Failed runs" in (tmp_path / "out" / "answer.md").read_text()
    rows = list(csv.DictReader((tmp_path / "out" / "answer.csv").open()))
    assert [(row["setting"], row["method"], row["n"]) for row in rows] == [
        ("pairs, learning_rate=0.001", "finetune", "1"),
        ("pairs, learning_rate=0.001", "majority", "1"),
        ("pairs, learning_rate=1e+25", "majority", "1"),
    ]
    assert cli.main(command) == 1
    assert ran[4:] == [Path(report["failed"][0]["folder"]).name]
    assert "Failed runs:" in capsys.readouterr().out
    failed = json.loads((Path(report["failed"][0]["folder"]) / "failed.json").read_text())
    assert failed["attempts"] == 2
    assert cli.main([*command[:2], "--output-dir", str(folder / "model")]) == 2
    assert "holds other files" in capsys.readouterr().err


def test_data_and_models_that_change_meanwhile_end_a_study(folder: Path, tmp_path: Path) -> None:
    """Otherwise runs of two data sets were compared, and kept when the first was restored."""
    for changed in ("train.csv", "model/config.json"):
        own = shutil.copytree(folder, tmp_path / Path(changed).stem)
        units = [Unit(tiny.config(own, seed=seed), "majority") for seed in (0, 1)]

        def edit(event: Event, file: Path = own / changed) -> None:
            if event.kind == "finished":
                file.write_text(file.read_text() + "\n")

        with pytest.raises(AttendropError, match=r"or the model '.*', changed meanwhile"):
            run_units(units, own / "study", workers=0, on_event=edit)
        again = run_units(units, own / "study", workers=0)
        assert len({result.folder for result in again}) == 2
        assert len(list((own / "study" / "runs").iterdir())) == 3  # that of the former data is another


def test_a_study_goes_on_with_data_and_a_model_that_were_moved(folder: Path, tmp_path: Path) -> None:
    def units(place: Path) -> list[Unit]:
        config = tiny.config(place, method="finetune", max_steps=2, head_start="random")
        return [Unit(config), Unit(config, "majority")]

    here = shutil.copytree(folder, tmp_path / "here")
    begun = run_units(units(here), tmp_path / "study", workers=0)
    for result in begun:
        (result.folder / "metrics.json").unlink()
    there = here.rename(tmp_path / "there")
    assert [each.error for each in run_units(units(there), tmp_path / "study", workers=0)] == [None, None]
    edits = [
        ("train.csv", ",no\n", ",yes\n", "training data"),
        ("model/config.json", "{", '{"new": 1,', "files of the model"),
    ]
    for file, old, new, what in edits:
        content = (there / file).read_text()
        (there / file).write_text(content.replace(old, new, 1))
        with pytest.raises(AttendropError, match=f"The {what} .*changed since"):
            train(replace(units(there)[0].config, output_dir=str(begun[0].folder)), resume=True)
        (there / file).write_text(content)


def test_what_a_crash_left_does_not_end_a_study(folder: Path, tmp_path: Path) -> None:
    units = [Unit(tiny.config(folder, seed=seed), "majority") for seed in (0, 1)]
    first, second = run_units(units, tmp_path, workers=0)
    written = (first.folder / "metrics.json").read_text()
    (first.folder / "metrics.json").write_text("")
    again = run_units(units, tmp_path, workers=0)
    assert again[1].metrics == second.metrics
    assert "Or delete it, and start again." in str(again[0].error)
    (first.folder / "metrics.json").unlink()
    assert run_units(units, tmp_path, workers=0)[0].error is None
    (first.folder / "metrics.json").write_text("")
    run_units(units, tmp_path, workers=0)
    (first.folder / "metrics.json").write_text(written)
    shutil.rmtree(second.folder)
    second.folder.mkdir()
    write(second.folder / ".failed.json.0a1b2c3d.partial", {})  # of a unit that failed at once
    assert run_units(units, tmp_path, workers=0)[1].error is None
    assert [path.name for path in tmp_path.glob("runs/[!.]*/*failed.json*")] == []


def test_the_answer_of_another_file_of_the_same_name_is_not_replaced(
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the default folder `runs/study`, unless another is named."""

    def run(study: Study, folder: Path, **_: Any) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        return make_report(Study(()), {})

    monkeypatch.setattr("attendrop.studies.study.run_study", run)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        write(Path(name) / "study.yaml", content(folder, methods="finetune"))
    assert [cli.main(["study", "a/study.yaml"]) for _ in range(2)] == [0, 0]
    capsys.readouterr()
    assert cli.main(["study", "b/study.yaml"]) == 2
    told = f"'runs/study' holds the answer of '{tmp_path / 'a/study.yaml'}', which would be replaced; name another"
    assert told in capsys.readouterr().err
    assert cli.main(["study", "b/study.yaml", "--output-dir", "runs/b"]) == 0
    shutil.move("a", "c")
    assert cli.main(["study", "c/study.yaml"]) == 0
    own = write(Path("study.json"), content(folder, methods="finetune"))  # in a project with its folder of runs
    before = Path(own).read_bytes()
    assert cli.main(["study", own, "--output-dir", "."]) == 2
    assert Path(own).read_bytes() == before
    assert (
        "'study.json' has the name of the record of a study in '.', which would replace it" in capsys.readouterr().err
    )
    assert cli.main(["study", "c/study.yaml", "--output-dir", "."]) == 2
    assert "'study.json' is not valid JSON: it was damaged, or attendrop did not" in capsys.readouterr().err


def test_an_answer_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    """`attendrop train` makes a folder of runs in a project, too."""
    (tmp_path / "runs").mkdir()
    check_study_folder(tmp_path)
    (tmp_path / "answer.csv").write_text("my,data")
    with pytest.raises(AttendropError, match=r"answer\.csv' was not written by attendrop, and would be replaced"):
        check_study_folder(tmp_path)
    (tmp_path / "compared.json").write_text('{"settings": {}}')
    check_study_folder(tmp_path)


# Tables --------------------------------------------------------------------------------------------------------------


def result(unit: Unit, score: float, by_row: np.ndarray | None = None, data: str = "") -> Result:
    blocks = np.full(100, score) if by_row is None else by_row
    known = {"task": "files", "model": "m", "metric": "accuracy", "train_seconds": 1.0, "data": {"rows": {}}}
    of_unit = {"method": unit.method, "options": unit.options, "seed": unit.config.seed, "score": score}
    row_scores = {"rows": 1000, "data": data, "blocks": blocks.tolist()}
    return Result(unit, Path("run"), known | of_unit | {"row_scores": row_scores})


def report_of(folder: Path, scored: dict[str, Any]) -> Any:
    """Report of settings in which plain fine-tuning scores 0.5, and R-Drop as its function of the unit says."""
    settings, results = [], {}
    for name, score in scored.items():
        plain, other = (
            [Unit(tiny.config(folder, method=method, seed=seed)) for seed in range(4)]
            for method in ("finetune", "r-drop")
        )
        settings.append(Setting(name, (*plain, *other)))
        results[name] = [*(result(unit, 0.5, data=name[0]) for unit in plain), *map(score, other)]
    return make_report(Study(tuple(settings)), results)


def test_methods_are_compared_over_all_settings_with_holm_correction(folder: Path) -> None:
    """Differences of 0.02 and 0.04 with small spread: over both settings 0.03, and p values corrected for two tests."""
    gains = {"first": [0.01, 0.02, 0.03, 0.02], "second": [0.03, 0.04, 0.05, 0.04]}
    scored = {
        name: lambda unit, gain=gain, name=name: result(unit, 0.5 + gain[unit.config.seed], data=name[0])
        for name, gain in gains.items()
    }
    report = report_of(folder, scored)
    (row,) = report.overall
    assert row.mean.values == pytest.approx([0.02, 0.03, 0.04, 0.03])
    first, second = (report.answers[name].rows[1].difference.p_value for name in gains)
    assert row.p_values == pytest.approx({"first": first, "second": 2 * second})
    assert "| r-drop | +0.030 [" in report.markdown()
    second = replace(report.answers["second"], metric="neg_mean_squared_error")
    (of_errors,) = overall_rows(report.answers | {"second": second})  # which have no unit in common with accuracy
    assert of_errors.mean is None and of_errors.p_values == row.p_values
    errors = {name: replace(found, metric="neg_mse") for name, found in report.answers.items()}
    assert overall_rows(errors)[0].mean is not None
    errors["second"] = replace(errors["second"], data="other/train.csv")  # a file of the same name has its own unit
    assert overall_rows(errors)[0].mean is None
    assert report.markdown().count("## All settings") == 1
    assert report_of(folder, {"first": scored["first"]}).overall == ()


def test_settings_with_the_same_evaluation_rows_are_not_independent(folder: Path) -> None:
    """What a row adds in one setting it adds in the other: two settings know of no more rows than one."""
    effects = np.random.default_rng(0).normal(0.02, 0.1, 100)

    def width(*names: str) -> float:
        scored = {
            name: lambda unit, name=name: result(unit, 0.5 + effects.mean(), 0.5 + effects, name[0]) for name in names
        }
        mean = overall_rows(report_of(folder, scored).answers)[0].mean
        return mean.mean.high - mean.mean.low

    assert width("a", "a again") == pytest.approx(width("a"))
    assert width("a", "b") == pytest.approx(width("a") / 2**0.5, rel=0.05)


def test_methods_with_the_same_label_are_one_row_over_all_settings(folder: Path, tmp_path: Path) -> None:
    found = content(folder, seeds=4)
    (pairs,) = found["data"]
    own = {"name": "r-drop", "label": "mine", "options": {"alpha": 3.0}}
    found["methods"] = ["finetune", own | {"options": {"alpha": [0.5, 1.0]}}]
    found["data"] = [pairs | {"name": "one"}, pairs | {"name": "two", "methods": ["finetune", own]}]
    study = read_study(write(tmp_path / "study.yaml", found))
    results = {
        each.name: [result(unit, 0.5).labelled(each.labels.get(unit.key())) for unit in each.units]
        for each in study.settings
    }
    report = make_report(study, results)
    assert [row.label for row in report.answers["one"].rows] == ["finetune", "mine alpha=0.5", "mine alpha=1.0"]
    assert [row.label for row in report.answers["two"].rows] == ["finetune", "mine"]
    assert report.answers["two"].rows[1].options["alpha"] == 3.0


# Progress ------------------------------------------------------------------------------------------------------------


def test_progress_counts_finished_and_running_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("attendrop.cli.progress.time.monotonic", lambda: now)
    jobs = [Job(Unit(tiny.config(folder, seed=seed)), Path(f"run{seed}")) for seed in range(5)]
    console = MessageConsole(record=True, width=200)
    progress = StudyProgress(console, [job.unit for job in jobs])
    assert progress.state() == "0 of 5"
    progress(Event("kept", jobs[0]))
    progress(Event("started", jobs[1]))
    assert progress.state() == "1 of 5"
    now = 60.0
    progress(Event("progress", jobs[1], steps=5, planned_steps=10))
    assert progress.state() == "1 of 5, step 5 of 10, 7 min to 14 min left"  # twice, if it trains again on all rows
    assert "1 of 5, step 5 of 10" in console.export_text()  # though no run has finished
    now = 120.0
    progress(Event("finished", jobs[1], metrics={"metric": "accuracy", "score": 0.5, "total_seconds": 90.0}))
    assert "2 of 5, about 4 min left: run1 accuracy 0.5000" in console.export_text()
    progress(Event("kept", jobs[1]))  # a search asks again for a run that it has
    assert progress.state() == "2 of 5, about 4 min left"
    progress(Event("started", jobs[2]))
    progress(Event("started", jobs[3]))
    for job in jobs[2:4]:
        progress(Event("progress", job, steps=6, planned_steps=12))
    assert progress.state() == "2 of 5, step 12 of 24 of 2 runs, about 2 min left"  # two at a time
    progress(Event("lost", jobs[2]))
    progress(Event("failed", jobs[2]))
    assert progress.state() == "3 of 5, 1 failed, step 6 of 12, about 1 min left"
    for kind in ("started", "failed"):  # and it runs one again that failed
        progress(Event(kind, jobs[2]))
    assert progress.state().startswith("3 of 5, 1 failed")
    assert [duration(seconds) for seconds in (5, 120, 7200)] == ["5 s", "2 min", "2.0 h"]


def test_the_time_that_is_left_is_within_what_was_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("attendrop.cli.progress.time.monotonic", lambda: now)
    takes = {"finetune": 60.0, "r-drop": 200.0, "mixout": 90.0, "majority": 1.0, "tfidf": 2.0, "frozen": 20.0}
    tuned = {name: name for name in takes if name not in BASELINES}
    units = [
        Unit(tiny.config(folder, seed=seed, method=tuned.get(name, "finetune")), None if name in tuned else name)
        for seed in range(5)
        for name in takes
    ]
    whole = sum(takes[unit.method] for unit in units)
    progress = StudyProgress(MessageConsole(quiet=True), quiet=True)
    progress.plan(units)
    for number, unit in enumerate(units):
        job = Job(unit, Path(str(number)))
        progress(Event("started", job))
        for part in range(1, 5):
            now += takes[unit.method] / 4
            if unit.baseline is None:
                progress(Event("progress", job, steps=part, planned_steps=4))
            low, high = progress.left() or (0.0, whole)
            assert low - 20 <= whole - now <= high + 20  # the part of a baseline that is done is not known
            if number >= len(takes):  # each method was measured
                assert high - low <= 1e-6
        progress(
            Event("finished", job, metrics={"metric": "accuracy", "score": 0.5, "total_seconds": takes[unit.method]})
        )
    assert progress.left() == (0.0, 0.0) and progress.state() == "30 of 30"
