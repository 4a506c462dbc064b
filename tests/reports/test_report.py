"""`attendrop report`: its files, its page, and what it refuses; pages are one file, in which all values are escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import Captured, assert_refused
from helpers.finished_runs import AHEAD, PLAIN, history, write_run, write_runs
from markupsafe import Markup

from attendrop import cli
from attendrop.reports import report
from attendrop.reports.figures import Figure
from attendrop.reports.report import Section, render_page, script_json, write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&`${1}\u2028\u2029|$\\frac{"


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


def page_of(folder: Path) -> str:
    return text((folder / "report" / "report.html").read_text(encoding="utf-8"))


def test_tables_figures_and_a_page_are_made(study: Path, capsys: Captured) -> None:
    assert cli.main(["report", str(study)]) == 0
    out = capsys.readouterr().out
    decision = "Use r-drop. It is significantly ahead of plain fine-tuning: accuracy +0.100 ["
    assert out.startswith(decision)
    names = {path.name for path in (study / "report").iterdir()}
    kinds = ("scores", "cost_gain", "learning_curves", "convergence")
    figures = {f"{kind}.{end}" for kind in kinds for end in ("pdf", "png", "svg")}
    assert names == figures | {"report.html", "report.json", "table.md", "table.tex", "table.csv"}
    first = {name: (study / "report" / name).read_bytes() for name in names}
    assert cli.main(["report", str(study), "--json"]) == 0  # the same runs make the same files
    found = json.loads(capsys.readouterr().out)
    assert {name: (study / "report" / name).read_bytes() for name in names} == first
    assert sorted([*found["files"], "report.json"]) == sorted(names)
    page = page_of(study)
    assert decision in page and "r-drop 4 0.615 ± 0.013 +0.100" in page
    assert "0.615 accuracy of r-drop ± 0.013 over 4 seeds +0.100 r-drop minus finetune 95 % CI (seeds" in page
    assert "1.8x time of training of r-drop relative to plain fine-tuning" in page


def test_the_page_says_what_the_recommended_model_gets_wrong(study: Path) -> None:
    error = {"row": 3, "text": HOSTILE, "class": "no", "predicted": "yes", "probability": 0.97}
    scores = {"rows": 4, "predicted": 5, "precision": 0.6, "recall": 0.75}
    f1s = {"good": 0.9, HOSTILE: 2 / 3, "poor": 0.1}
    report = {
        "classes": [scores | {"class": name, "f1": f1} for name, f1 in f1s.items()],
        "confusions": [{"class": "no", "predicted": "yes", "rows": 7}],
        "calibration": {"error": 0.1, "temperature": 2, "bins": [{"rows": 5, "probability": 0.95, "accuracy": 0.8}]},
        "errors": [error | {"nearest": {"text": HOSTILE, "class": "yes", "likeness": 1.0}}],
    }
    for run in (study / "runs").iterdir():
        metrics = json.loads((run / "metrics.json").read_text())
        if metrics["method"] == "r-drop":
            (run / "metrics.json").write_text(json.dumps(metrics | {"report": report}))
    write_report(str(study))
    assert HOSTILE not in (study / "report" / "report.html").read_text()
    page = page_of(study)
    assert "What goes wrong r-drop, seed 0 Most frequent confusions is predicted rows no yes 7" in page
    assert "Of 5 predictions with a probability above 0.9, 4 are right." in page
    assert "The text of 1 error is that of a training row with another label" in page
    assert page.index(" poor 4 5") < page.index("&lt;script") < page.index(" good 4 5")  # the worst classes first


def test_scores_on_the_reported_rows_are_not_called_held_out(tmp_path: Path) -> None:
    write_run(tmp_path, "finetune", 0.5, selection_score=0.5, protocol="paper")
    write_run(tmp_path, "r-drop", 0.4, selection_score=0.7)
    assert cli.main(["report", str(tmp_path), "--reference", "r-drop", "--quiet"]) == 0
    page = page_of(tmp_path)
    assert "run seed score held-out score folder r-drop 0 0.400 0.700" in page
    assert "finetune 0 0.500 -" in page
    assert "difference from r-drop, seed by seed" in page


def test_files_are_named_by_what_distinguishes_them(tmp_path: Path) -> None:
    steps = [{"step": step, "drop_probability": {"encoder.0": 0.1}} for step in (1, 2)]
    for options in ({"n": -1}, {"n": 1}, {"name": "x" * 300}):
        write_run(tmp_path, "adhoc", 0.5, options=options, dropout_steps=steps)
    names = write_report(tmp_path).files
    assert {f"drop_probability-adhoc_{end}.png" for end in ("n_1", "n_1-2", f"name_{'x' * 49}")} <= set(names)


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
    (out / "report.json").write_text("[1]")  # of another program
    assert cli.main(["report", str(study), "--output-dir", str(out)]) == 2
    assert "no report wrote" in capsys.readouterr().err
    write_report(study, out, overwrite=True)
    shutil.rmtree(study / "runs")  # without the reference there are no scores beside it
    write_runs(study, "r-drop", AHEAD)
    (out / "scores.svg").write_text("edited")
    assert "scores.svg" not in write_report(study, out, overwrite=True).files
    assert (out / "scores.svg").read_text() == "edited" and not (out / "scores.png").exists()
    assert "r-drop 4 0.615 ± 0.013 - - - -" in text((out / "report.html").read_text())


def test_an_interrupted_report_is_written_again(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(range(6))

    def write(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        path.write_bytes(content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(report, "write_bytes", write)
        write_report(study)
    # PDFs differ from process to process.
    monkeypatch.setattr(Figure, "files", lambda self: dict.fromkeys(("pdf", "png", "svg"), b"other"))
    assert cli.main(["report", str(study), "--quiet"]) == 0


def test_mistakes_are_one_sentence(study: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([str(tmp_path / "nothing")], "There is no folder"),
        ([str(tmp_path / "empty")], "no finished run"),
    ):
        assert_refused(["report", *arguments, "--quiet", "--output-dir", str(out)], out, message, capsys)
    out.write_text("")
    assert cli.main(["report", str(study), "--output-dir", str(out)]) == 2
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


# Pages ---------------------------------------------------------------------------------------------------------------


def test_values_are_escaped_wherever_they_stand_and_nothing_else_may_run_or_load() -> None:
    section = Section("first", HOSTILE, Markup("<p>{}</p>").format(HOSTILE))
    sections = [section, Section("second", "Second", Markup(""), {"d": {"title": HOSTILE}})]
    page = render_page(HOSTILE, sections, summary=HOSTILE)
    data, library, draw = re.findall(r"(?s)<script([^>]*)>(.*?)</script>", page)
    assert data[0] == ' type="application/json" id="d"' and json.loads(data[1]) == {"title": HOSTILE}
    assert library[0] == draw[0] == "" and "vegaEmbed(place, spec, {ast: true" in draw[1]
    expected = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in (library, draw)]
    assert re.findall(r"'sha256-([^']*)'", page) == expected  # no other script may run
    without = render_page("Page", [section])
    assert "script-src 'none'" in without and "<script" not in without
    for shown in (page.replace(library[1], ""), without):
        assert "<img" not in shown and "content=\"default-src 'none';" in shown
        places = re.findall(r'\b(?:src|href|action|data)="([^"]*)"', shown)
        assert places and all(place.startswith(("#", "data:")) for place in places)


def test_json_holds_no_markup_and_gives_the_values_back() -> None:
    text = script_json({HOSTILE: [1.5, None, True, HOSTILE], "a": (math.nan, [math.inf, 1.0])})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {HOSTILE: [1.5, None, True, HOSTILE], "a": [None, [None, 1.0]]}


@pytest.mark.slow
def test_what_pages_need_is_said_where_it_is_missing() -> None:
    code = "import sys; sys.modules['altair'] = None; import attendrop.reports.report"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "AttendropError: Figures and pages need Altair; run `pip install 'attendrop[plots]'`." in found.stderr
