"""`attendrop report`: its files, its page, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.command_line import Captured, assert_refused
from helpers.finished_runs import history, write_run, write_runs

from attendrop import cli
from attendrop.reports.figures import Figure
from attendrop.reports.report import write_report

PLAIN, AHEAD = (0.50, 0.52, 0.51, 0.53), (0.60, 0.63, 0.61, 0.62)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&`${1}\u2028|$\\frac{"


@pytest.fixture(autouse=True)
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of figures be empty, for they take time."""
    monkeypatch.setattr(Figure, "files", lambda self: dict.fromkeys(("pdf", "png", "svg"), b""))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    write_runs(folder, "finetune", PLAIN)
    write_runs(folder, "r-drop", AHEAD)
    return folder


def text(page: str) -> str:
    """The words of a page, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", page)).split())


def test_tables_figures_and_a_page_are_made(study: Path, capsys: Captured) -> None:
    assert cli.main(["report", str(study)]) == 0
    out = capsys.readouterr().out
    decision = "Use r-drop. It is significantly ahead of plain fine-tuning: accuracy +0.100 ["
    assert out.startswith(decision)
    assert "Not made: Heat map of a grid: no method was run on a grid of two numeric options." in out
    names = {path.name for path in (study / "report").iterdir()}
    kinds = ("scores", "cost_gain", "learning_curves", "convergence")
    figures = {f"{kind}.{end}" for kind in kinds for end in ("pdf", "png", "svg")}
    assert names == figures | {"report.html", "report.json", "table.md", "table.tex", "table.csv"}
    first = {name: (study / "report" / name).read_bytes() for name in names}
    assert cli.main(["report", str(study), "--json"]) == 0  # the same runs make the same files
    found = json.loads(capsys.readouterr().out)
    assert {name: (study / "report" / name).read_bytes() for name in names} == first
    assert found["page"] == str(study / "report" / "report.html")
    assert sorted([*found["files"], "report.json"]) == sorted(names)
    assert found["answers"]["cola"][0].startswith(decision)
    html = (study / "report" / "report.html").read_text()
    page = text(html)
    assert decision in page
    assert "Compared: 2 fine-tuning methods (finetune, r-drop), with 4 seeds each, by their accuracy on cola" in page
    assert "0.615 accuracy of r-drop ± 0.013 over 4 seeds +0.100 r-drop minus finetune 95 % CI (seeds" in page
    assert "1.8x time of training of r-drop relative to plain fine-tuning" in page
    assert "r-drop 4 0.615 ± 0.013 +0.100" in page
    spec = re.search(r'<script type="application/json" id="figure-1">(.*?)</script>', html, re.DOTALL)
    assert json.loads(spec[1])["description"].startswith("Scores. Points: mean scores.")
    assert 'data-chart="figure-1"' in html and '<th scope="col">method</th>' in html


def test_the_page_says_what_the_recommended_model_gets_wrong(tmp_path: Path) -> None:
    error = {"row": 3, "text": HOSTILE, "class": "no", "predicted": "yes", "probability": 0.97}
    scores = {"rows": 4, "predicted": 5, "precision": 0.6, "recall": 0.75, "f1": 2 / 3}
    report = {
        "classes": [
            *({"class": name, **scores, "f1": f1} for name, f1 in (("good", 0.9), (HOSTILE, 2 / 3), ("poor", 0.1))),
            {"class": "none of it", **scores, "rows": 0},
        ],
        "confusions": [{"class": "no", "predicted": "yes", "rows": 7}],
        "calibration": {
            "error": 0.123,
            "temperature": 2.0,
            "bins": [{"rows": 5, "probability": 0.95, "accuracy": 0.8}],
        },
        "errors": [error | {"nearest": {"text": HOSTILE, "class": "yes", "likeness": 1.0}}],
    }
    folder = tmp_path / "study"
    write_runs(folder, "finetune", PLAIN)
    write_runs(folder, "r-drop", AHEAD, report=report)
    write_report(str(folder))
    html = (folder / "report" / "report.html").read_text()
    assert HOSTILE not in html
    page = text(html)
    assert "What goes wrong r-drop, seed 0 Most frequent confusions is predicted rows no yes 7" in page
    assert "Probabilities are off by 0.123 on average" in page
    assert "Of 5 predictions with a probability above 0.9, 4 are right." in page
    assert "The text of 1 error is that of a training row with another label" in page
    assert "none of it" not in page
    assert page.index(" poor 4 5") < page.index("&lt;script") < page.index(" good 4 5")  # the worst classes first


def test_scores_on_the_reported_rows_are_not_called_held_out(tmp_path: Path) -> None:
    write_run(tmp_path, "finetune", 0.5, selection_score=0.5, protocol="paper")
    write_run(tmp_path, "r-drop", 0.4, selection_score=0.7)
    write_run(tmp_path, "majority", 0.3, selection_score=0.3, protocol="paper")
    assert cli.main(["report", str(tmp_path), "--reference", "r-drop", "--quiet"]) == 0
    page = text((tmp_path / "report" / "report.html").read_text())
    assert "run seed score held-out score steps seconds folder r-drop 0 0.400 0.700 12 35" in page
    assert "finetune 0 0.500 - 12 20" in page
    assert "majority 0 0.300 - - 0.5" in page
    assert "difference from r-drop, seed by seed" in page


def test_settings_have_files_of_their_own_and_three_seeds_are_too_few_to_count_them(tmp_path: Path) -> None:
    for count in (16, 32):
        write_runs(tmp_path, "finetune", PLAIN[:3], config={"max_train_samples": count})
        write_runs(tmp_path, "r-drop", AHEAD[:3], config={"max_train_samples": count})
    write_run(tmp_path, "mixout", None, config={"max_train_samples": 16})
    curves = {f"learning_curves-cola_max_train_samples_{count}.svg" for count in (16, 32)}
    assert {*curves, "data_size-cola.svg"} <= set(write_report(tmp_path).files)
    page = text((tmp_path / "report" / "report.html").read_text())
    assert "too few seeds" in page.partition("Over all settings")[2].partition("Methods")[0]
    assert "Without a result: mixout with seed 0 (no score)." in page


def test_files_are_named_by_what_distinguishes_them(tmp_path: Path) -> None:
    steps = [{"step": step, "drop_probability": {"encoder.0": 0.1}} for step in (1, 2)]
    for options in ({}, {"n": -1}, {"n": 1}, {"name": "很"}, {"name": "x" * 300}):
        write_run(tmp_path, "adhoc", 0.5, options=options, dropout_steps=steps)
    stems = [Path(name).stem for name in write_report(tmp_path).files if name.endswith(".png")]
    found = [name.removeprefix("drop_probability-") for name in stems if name.startswith("drop_probability")]
    assert found[0] == "adhoc"
    assert sorted(re.sub("[0-9a-f]{8}", "DIGEST", name) for name in found[1:]) == [
        "adhoc_n_1",
        "adhoc_n_1-DIGEST",
        "adhoc_name_DIGEST",
        f"adhoc_name_{'x' * 49}_DIGEST",
    ]


def test_a_report_replaces_the_one_before_and_nothing_else(study: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    write_report(study, out)
    (out / "notes.txt").write_text("mine")
    for run in (study / "runs").iterdir():  # without held-out rows there are fewer figures
        metrics = json.loads((run / "metrics.json").read_text())
        metrics["history"] = history(0.5, held_out=False)
        (run / "metrics.json").write_text(json.dumps(metrics))
    write_report(study, out)
    assert not (out / "convergence.png").exists()
    assert (out / "notes.txt").read_text() == "mine"
    for name in ("table.tex", "scores.svg"):
        (out / name).write_text("edited")
    assert cli.main(["report", str(study), "--output-dir", str(out)]) == 2
    assert "changed since: scores.svg, table.tex" in capsys.readouterr().err
    assert (out / "table.tex").read_text() == "edited"
    (out / "report.json").write_text("{}")  # a report that wrote none of them
    assert cli.main(["report", str(study), "--output-dir", str(out)]) == 2
    assert "no report wrote" in capsys.readouterr().err
    write_report(study, out, overwrite=True)
    assert r"\toprule" in (out / "table.tex").read_text()
    shutil.rmtree(study / "runs")  # without the reference there are no scores beside it
    write_runs(study, "r-drop", AHEAD)
    (out / "scores.svg").write_text("edited")
    assert "scores.svg" not in write_report(study, out, overwrite=True).files
    assert (out / "scores.svg").read_text() == "edited" and not (out / "scores.png").exists()
    page = text((out / "report.html").read_text())
    assert "difference from the reference, which has no score here" in page
    assert "r-drop 4 0.615 ± 0.013 - - - -" in page


def test_mistakes_are_one_sentence(study: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    missing = ["report", str(tmp_path / "nothing"), "--output-dir", str(out)]
    assert_refused(missing, out, "There is no folder", capsys)
    (tmp_path / "empty").mkdir()
    assert_refused(["report", str(tmp_path / "empty"), "--output-dir", str(out)], out, "no finished run", capsys)
    (tmp_path / "file").write_text("")
    assert cli.main(["report", str(study), "--output-dir", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder." in capsys.readouterr().err


def test_markup_in_data_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    for method in ("finetune", HOSTILE):
        write_run(
            tmp_path, method, 0.5, options={HOSTILE: HOSTILE}, config={"task": HOSTILE, HOSTILE: HOSTILE},
            model=HOSTILE, metric=HOSTILE, all_scores={HOSTILE: {HOSTILE: 0.5}},
            history=[entry | {"selection": {HOSTILE: 0.5}} for entry in history(0.5)],
            dropout_steps=[{"step": 1, "drop_probability": {HOSTILE: 0.1}}],
        )  # fmt: skip
    write_report(tmp_path, reference=f"finetune {HOSTILE}={HOSTILE}")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    own = re.findall(r"(?s)<script>.*?</script>", page)
    assert len(own) == 2  # the library, and the lines that call it
    for script in own:
        page = page.replace(script, "")
    assert "<script>" not in page and "<img" not in page
    assert r"\textless{}script\textgreater{}" in (tmp_path / "report" / "table.tex").read_text()


def test_runs_without_evaluation_rows_have_curves_and_no_table(tmp_path: Path, capsys: Captured) -> None:
    for seed in (0, 1):
        write_run(
            tmp_path, "finetune", None, seed=seed, selection_score=0.7, all_scores={"selection": {"accuracy": 0.7}}
        )
        write_run(tmp_path, "r-drop", None, seed=seed, selection_score=0.8, all_scores={"selection": {"accuracy": 0.8}})
    assert cli.main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No recommendation: no run has a score on evaluation rows.\n")
    assert "cola: no run has a score on evaluation rows" in out
    assert "Not made: Tables: no run has a score on evaluation rows." in out
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"convergence.png", "learning_curves.png"} <= files
    assert not files & {"table.md", "table.tex", "table.csv", "cost_gain.png"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert "of minilm on cola; 4 runs" in page
    assert 'id="methods"' not in page
    assert "r-drop 1 - 0.800 12 35" in text(page)


@pytest.mark.parametrize("below", ["", "mine"], ids=["its folder", "a folder above"])
@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ({"dev": {"accuracy": 0.5}}, "accuracy 0.5000 on dev (0.2500 for a constant answer)."),
        (
            {"dev": {"accuracy": 0.5}, "ood": {"accuracy": 0.25}},
            "accuracy 0.5000 on dev (0.2500 for a constant answer); accuracy 0.2500 on ood.",
        ),
        ({}, "no score, since no rows were held out for one."),
    ],
)  # fmt: skip
def test_the_report_of_a_run_is_about_this_run(
    tmp_path: Path, capsys: Captured, scores: dict[str, dict[str, float]], told: str, below: str
) -> None:
    baseline = {"dev": {"answer": "yes", "scores": {"accuracy": 0.25}}}
    score = scores["dev"]["accuracy"] if scores else None
    run = write_run(tmp_path / below, "r-drop", score, seed=3, all_scores=scores, baseline=baseline if scores else {})
    assert cli.main(["report", str(tmp_path if below else run), "--no-viewer"]) == 0
    out, told = capsys.readouterr().out, f"A run of r-drop with seed 3: {told}"
    assert out.startswith(f"{told}\n")
    page = text(next(tmp_path.rglob("report.html")).read_text())
    for wrong in (
        "ecommend",
        "Not made",
        "could not be made",
        "Compared",
        "Computed from",
        "which has no score",
        "1 runs",
    ):
        assert wrong not in out and wrong not in page
    assert told in page
