"""The results of a folder, computed from its runs, those that it lists or all; and tables for papers."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.finished_runs import AHEAD, BEHIND, PLAIN, write_run, write_runs

from attendrop.errors import AttendropError
from attendrop.reports.report import write_report
from attendrop.reports.tables import ResultTable, make_result_table
from attendrop.studies.results import read_results
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
    assert setting.name == "cola" and results.overall == ()
    assert setting.answer.use == "r-drop alpha=0.5"
    assert {label: [run["seed"] for run in runs] for label, runs in setting.by_label.items()} == {
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
        *(f"test.csv, trained on train.csv, train_file=/{at}/train.csv, eval_file=/{at}/test.csv" for at in "ab"),
    ]
    assert [row.label for row in results.overall] == ["r-drop"] and len(results.overall[0].p_values) == 2


def test_runs_from_before_an_option_are_of_the_same_setting_or_of_another_with_its_name(tmp_path: Path) -> None:
    """An option that is None counts as one that is missing; any other value makes a setting, and no run is lost."""
    write_runs(tmp_path, "finetune", PLAIN)
    write_runs(tmp_path, "r-drop", AHEAD, config={"accept": None})
    (setting,) = read_results(tmp_path).settings
    assert setting.name == "cola" and len(setting.runs) == 8 and setting.answer.use == "r-drop"
    write_runs(tmp_path, "r-drop", BEHIND, config={"accept": 0.9})
    found = {each.name: len(each.runs) for each in read_results(tmp_path).settings}
    assert found == {"cola, accept=None": 8, "cola, accept=0.9": 4}


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
    assert missing == "1 of 8 runs of the answer are missing or damaged, and left out." and results.missing == 1
    assert missing in results.markdown() and missing in results.lines() and missing in results.as_dict()["notes"]
    assert more.startswith("1 other finished runs are not part of the answer: ")
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(AttendropError, match="holds no finished run"):
        write_report(tmp_path)


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


def test_of_what_the_table_of_all_settings_is_and_which_setting_has_no_result(tmp_path: Path) -> None:
    """A method may have failed on hard data, and seeds that not all settings have do not count."""
    settings = {}
    for task, others in {"rte": {"mixout": AHEAD, "r-drop": AHEAD}, "cola": {"mixout": AHEAD[:2]}, "mrpc": {}}.items():
        of_task = {"finetune": PLAIN} | others
        settings[task] = [
            path
            for method, scores in of_task.items()
            for path in write_runs(tmp_path, method, scores, config={"task": task})
        ]
    write_list(tmp_path, settings)
    write_json(tmp_path / "failed.json", {path.name: {"error": "The disk is full."} for path in settings["mrpc"]})
    for path in settings["mrpc"]:
        (path / "metrics.json").unlink()
    results = read_results(tmp_path)
    assert [line.split(" | ")[:3] for line in results.overall_table()[0].splitlines()[4:6]] == [
        ["| mixout", "2", "2"],
        ["| r-drop", "1", "4"],
    ]
    assert results.notes[0] == "mrpc: no run has a result; the first error: The disk is full."
    assert results.notes[1].startswith("Each setting's decision is corrected over its own methods")


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


FILES = {place: {"config": {"task": None, "train_file": f"/{place}/train.csv"}} for place in "ab"}
ON_REPORTED = {"selected_on": "dev", "rows": {"train": 40, "dev": 2000}}


def table(folder: Path, *settings: dict[str, tuple[float, ...]]) -> ResultTable:
    for number, methods in enumerate(settings):
        for method, scores in methods.items():
            write_runs(folder, method, scores, config={"task": f"task_{number}"})
    return make_result_table(read_results(folder))


def test_methods_are_rows_and_tasks_are_columns_with_an_average(tmp_path: Path) -> None:
    found = table(tmp_path, {"finetune": PLAIN, "r-drop": AHEAD}, {"finetune": PLAIN, "r-drop": BEHIND, "tfidf": PLAIN})
    lines = found.markdown().splitlines()
    assert lines[0] == "| method | task_0 | task_1 | average |"
    assert lines[2] == "| finetune | 51.5 ± 1.3 | **51.5 ± 1.3** | 51.5 |"
    assert lines[3] == "| r-drop | **61.5 ± 1.3**† | 41.8 ± 1.7‡ | **51.6** |"
    assert lines[4] == "| tfidf | - | **51.5 ± 1.3** | - |"
    caption = lines[-1].replace("\\", "")
    assert "accuracy times 100 of minilm, mean ± standard deviation of 4 seeds" in caption
    assert "† ahead of and ‡ behind finetune, p ≤ 0.05, Holm's correction over all methods and tasks" in caption


def test_three_seeds_are_too_few_for_marks(tmp_path: Path) -> None:
    found = table(tmp_path, {"finetune": PLAIN[:3], "r-drop": AHEAD[:3], "mixout": AHEAD[:1]})
    assert "| r-drop | **61.3 ± 1.5** |" in found.markdown()
    assert "†" not in found.caption
    assert "| mixout | 60.0 (1) |" in found.markdown()  # of fewer seeds


def test_errors_are_not_percentages_and_are_not_averaged_with_scores(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", (-1.5, -1.25), config={"task": "prices"}, metric="neg_mse")
    write_runs(tmp_path, "finetune", PLAIN, config={"task": "cola"})
    found = make_result_table(read_results(tmp_path))
    assert found.headers == ("prices, neg_mse", "cola, accuracy")
    assert "| finetune | **-1.375 ± 0.177** | **51.5 ± 1.3** |" in found.markdown()
    write_runs(tmp_path / "small", "finetune", (-1.5e-4, -1.2e-4), metric="neg_mse")
    assert "-0.000135 ± 0.000021" in make_result_table(read_results(tmp_path / "small")).markdown()


@pytest.mark.parametrize(
    ("one", "other", "averages"),
    [
        ({"config": {"max_train_samples": 16}}, {"config": {"max_train_samples": 32}}, 0),
        ({"model": "small"}, {"model": "large", "config": {"task": "rte"}}, 0),
        (FILES["a"], FILES["b"], 1),
    ],
    ids=["sizes", "models", "files of the same name"],
)
def test_only_other_tasks_of_the_same_model_are_averaged(tmp_path: Path, one: Any, other: Any, averages: int) -> None:
    for more in (one, other):
        write_runs(tmp_path, "finetune", PLAIN, **more)
    assert len(make_result_table(read_results(tmp_path)).headers) == 2 + averages


def test_scores_chosen_on_the_reported_rows_are_marked_and_their_average(tmp_path: Path) -> None:
    write_runs(tmp_path, "finetune", PLAIN, config={"task": "rte"}, data=ON_REPORTED, metric="f1")
    write_runs(tmp_path, "finetune", PLAIN, config={"task": "cola"})
    found = make_result_table(read_results(tmp_path))
    assert found.headers == ("rte, f1", "cola, accuracy", "average")  # where metrics differ
    assert [each["marks"] for each in sorted(found.cells, key=lambda each: each["column"])] == ["*", "", "*"]
    assert r"**51.5 ± 1.3**\*" in found.markdown() and "optimistic" in found.caption


def test_latex_uses_booktabs_names_are_escaped_and_csv_has_full_precision(tmp_path: Path) -> None:
    made = table(tmp_path, {"finetune": (1 / 3,) * 4, "r-drop": AHEAD})
    found = made.latex()
    assert r"\toprule" in found and r"method & task\_0 \\" in found
    assert r"r-drop & \textbf{61.5 $\pm$ 1.3}$^{\dagger}$ \\" in found
    first = next(csv.DictReader(io.StringIO(made.csv())))
    assert float(first["mean"]) == pytest.approx(1 / 3, abs=1e-15)
    hostile = ResultTable([], (r"\input{x}_%#~<", "<script>\n*x*"), ("a&b", "a|b", "$x^2$"), "c")
    assert r"method & a\&b & a\textbar{}b & \$x\textasciicircum{}2\$ \\" in hostile.latex()
    assert r"\textbackslash{}input\{x\}\_\%\#\textasciitilde{}\textless{} & - & - & - \\" in hostile.latex()
    assert "| a\\|b |" in hostile.markdown() and "| &lt;script> \\*x\\* | - |" in hostile.markdown()
