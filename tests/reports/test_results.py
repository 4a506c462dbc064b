"""The results of a folder: computed from its runs, those that it lists or all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from helpers import tiny
from helpers.finished_runs import AHEAD, PLAIN, write_run, write_runs

from attendrop.errors import AttendropError
from attendrop.reports.results import read_results
from attendrop.support.files import write_json, write_text


def test_without_a_list_runs_that_differ_in_method_and_seed_are_compared(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN)
    write_runs(tmp_path, "r-drop", AHEAD, options={"alpha": 0.5})
    write_runs(tmp_path, "majority", PLAIN)
    write_run(tmp_path / "best", "finetune", 0.9, seed=9)  # the model beside the runs, and a file of another program
    (tmp_path / "runs" / "other").mkdir()
    write_text(tmp_path / "runs" / "other" / "metrics.json", "{}")
    write_json(tmp_path / "failed.json", {"one": {"error": "No space left.", "details": ""}})
    results = read_results(tmp_path)
    (setting,) = results.settings
    assert setting.name == "cola"
    assert setting.answer.use == "r-drop alpha=0.5"
    assert {label: [run.metrics["seed"] for run in runs] for label, runs in setting.by_label.items()} == {
        label: [0, 1, 2, 3] for label in ("finetune", "r-drop alpha=0.5", "majority")
    }
    assert results.notes[0].startswith("Computed from the 12 finished runs in the folder, which has no list")
    assert results.notes[1] == "Without a result: one (No space left.)."


def test_settings_are_named_by_what_they_differ_in(tmp_path: Path) -> None:
    for count in (16, 32):
        write_runs(tmp_path, "finetune", PLAIN, config={"max_train_samples": count})
        write_runs(tmp_path, "r-drop", AHEAD, config={"max_train_samples": count})
    for place in ("a", "b"):  # data of the same name
        files = {"task": None, "train_file": f"/{place}/train.csv", "eval_file": f"/{place}/test.csv"}
        write_runs(tmp_path, "finetune", PLAIN, config=files)
    results = read_results(tmp_path)
    assert [each.name for each in results.settings] == [
        "cola, max_train_samples=16",
        "cola, max_train_samples=32",
        "test.csv, trained on train.csv (3: /a/train.csv)",
        "test.csv, trained on train.csv (4: /b/train.csv)",
    ]
    assert [row.label for row in results.overall] == ["r-drop"] and len(results.overall[0].p_values) == 2


def write_list(folder: Path, settings: Mapping[str, Sequence[Path]], **labels: str) -> None:
    """List runs as compared, by setting, with the ``labels`` of their methods; the reference is that of plain ones."""
    runs: dict[str, dict[str, object]] = {name: {} for name in settings}
    for name, paths in settings.items():
        for path in paths:
            found = tiny.read_metrics(path)
            label = labels.get(found["method"].replace("-", "_"), found["method"])
            runs[name][path.name] = {"label": label, "seed": found["seed"]}
    write_json(folder / "compared.json", {"reference": labels.get("finetune", "finetune"), "settings": runs})


def test_runs_that_are_missing_or_not_listed_are_told(tmp_path: Path) -> None:
    own = write_runs(tmp_path, "finetune", PLAIN) + write_runs(tmp_path, "r-drop", AHEAD)
    write_list(tmp_path, {"mine": own})
    write_run(tmp_path, "r-drop", 0.1, seed=4)
    shutil.rmtree(own[0])
    results = read_results(tmp_path)
    assert [(each.name, [row.n for row in each.answer.rows]) for each in results.settings] == [("mine", [3, 4])]
    missing, more = results.notes
    assert missing == "1 of 8 runs of the answer are missing or damaged, and left out."
    assert more.startswith("1 other finished runs are not part of the answer: ")
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(AttendropError, match="holds no finished run"):
        read_results(tmp_path)


def test_failed_runs_and_another_reference(tmp_path: Path) -> None:
    own = write_runs(tmp_path, "finetune", PLAIN) + write_runs(tmp_path, "r-drop", AHEAD)
    write_list(tmp_path, {"": [*own, write_run(tmp_path, "mixout", 0.5)]})
    failed = tmp_path / "runs" / "8-seed0"
    (failed / "metrics.json").unlink()
    write_json(tmp_path / "failed.json", {failed.name: {"error": "No space left.", "details": ""}})
    for reference in (None, "r-drop"):
        results = read_results(tmp_path, reference)
        assert results.settings[0].answer.rows[0].label == (reference or "finetune")
        assert results.settings[0].answer.notes[0] == "Without a result: mixout with seed 0 (No space left.)."
        assert results.notes == ()
    with pytest.raises(AttendropError, match="holds no run of 'rdrop', but of finetune, r-drop"):
        read_results(tmp_path, "rdrop")


def test_only_the_listed_runs_are_compared_by_their_labels(tmp_path: Path) -> None:
    """Not those of a search, or of data that were changed since; nor does it matter which answer was written."""
    own = write_runs(tmp_path, "finetune", PLAIN) + write_runs(tmp_path, "r-drop", AHEAD)
    write_list(tmp_path, {"mine": own}, finetune="FINETUNE", r_drop="R-DROP")
    write_run(tmp_path, "r-drop", 0.1, seed=0)
    write_run(tmp_path, "r-drop", 0.1, seed=1000, config={"selection_fraction": 0.2})
    write_json(tmp_path / "answer.json", {"sentences": ["Own words."], "use": "finetune", "methods": []})
    for reference, order in (("R-DROP", ["R-DROP", "FINETUNE"]), (None, ["FINETUNE", "R-DROP"])):
        (setting,) = read_results(tmp_path, reference).settings
        assert (setting.name, [row.label for row in setting.answer.rows]) == ("mine", order)
        assert [row.n for row in setting.answer.rows] == [4, 4]
