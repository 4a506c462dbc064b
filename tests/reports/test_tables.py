"""The table of methods and tasks, as papers print it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.finished_runs import AHEAD, BEHIND, PLAIN, write_runs

from attendrop.reports.results import ResultTable, make_result_table, read_results

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
    assert found.cells.sort_values("column")["marks"].tolist() == ["*", "", "*"]
    assert r"**51.5 ± 1.3**\*" in found.markdown() and "optimistic" in found.caption


def test_latex_uses_booktabs_names_are_escaped_and_csv_has_full_precision(tmp_path: Path) -> None:
    made = table(tmp_path, {"finetune": (1 / 3,) * 4, "r-drop": AHEAD})
    found = made.latex()
    assert r"\toprule" in found and r"method & task\_0 \\" in found
    assert r"r-drop & \textbf{61.5 $\pm$ 1.3}$^{\dagger}$ \\" in found
    first = next(csv.DictReader(io.StringIO(made.csv())))
    assert float(first["mean"]) == pytest.approx(1 / 3, abs=1e-15)
    empty = pd.DataFrame(columns=["method", "column", "text", "best", "marks"])
    hostile = ResultTable(empty, (r"\input{x}_%#~<", "<script>\n*x*"), ("a&b", "a|b", "$x^2$"), "c")
    assert r"method & a\&b & a\textbar{}b & \$x\textasciicircum{}2\$ \\" in hostile.latex()
    assert r"\textbackslash{}input\{x\}\_\%\#\textasciitilde{}\textless{} & - & - & - \\" in hostile.latex()
    assert "| a\\|b |" in hostile.markdown() and "| &lt;script> \\*x\\* | - |" in hostile.markdown()
