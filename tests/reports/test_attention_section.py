"""The attention viewer of a report: of the kept model, on evaluation rows, or what it takes to get one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from datasets import Dataset
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from helpers.finished_runs import write_comparison, write_runs

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.reports import page as html_page
from attendrop.reports import report_page
from attendrop.reports.attention_section import (
    DEFAULT_VIEWER,
    AttentionPart,
    ViewerOptions,
    attention_part,
    typical_rows,
)
from attendrop.reports.page import Section
from attendrop.reports.results import read_results
from attendrop.support.files import write_json
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.heads.classification import Classification

HOSTILE = "</script><img src=x>the"  # 11 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison whose kept model was trained with AD-DROP, with a hostile evaluation row."""
    folder = write_comparison(tmp_path_factory.mktemp("comparison"), {"finetune": (0.5,)}, hostile=HOSTILE)
    for run in (folder / "runs").iterdir():  # without curves: figures take time
        metrics = tiny.read_metrics(run)
        write_json(run / "metrics.json", metrics | {"history": []})
    return folder


def part(folder: Path, viewer: ViewerOptions = DEFAULT_VIEWER) -> AttentionPart:
    return attention_part(read_results(folder), viewer)(10**7)


def data(section: Section) -> Any:
    (found,) = section.data.values()
    return found


def test_the_kept_model_is_shown_before_and_after_training_on_evaluation_rows(folder: Path, capsys: Captured) -> None:
    assert cli.main(["report", str(folder), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "Attention viewer" not in out
    assert "attention maps of 3 texts" in err
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert page.index('id="figures"') < page.index('id="attention"') < page.index('id="runs"')
    assert "ad-drop, seed 0, 40 training rows" in page
    assert "3 of the evaluation rows, those whose length is nearest to 16 tokens, of different labels.</p>" in page
    assert "Crossed out is" not in page  # said only where the method is not the run's own
    assert "<img src=x" not in page
    assert HOSTILE not in page
    assert "&lt;/script&gt;&lt;img src=x&gt;the ‖ the cat" in page
    json_text = re.search(r'<script type="application/json" id="attention-data">(.*?)</script>', page, re.DOTALL)
    found = json.loads(json_text.group(1))
    assert [stage["name"] for stage in found["stages"]] == ["Before training", "After training"]
    assert {text["label"] for text in found["texts"]} == {"no", "yes"}
    for text in found["texts"]:
        before, after = text["stages"]
        assert before["tokens"] == after["tokens"]
        assert [layer["key"] for layer in after["layers"]] == ["encoder.0", "encoder.1"]
        assert before["layers"][0]["attention"] != after["layers"][0]["attention"]
        assert "dropped" in after["layers"][1]


def test_rows_are_those_nearest_to_a_length_with_a_share_for_each_label(tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    words = [3, 14, 13, 15, 14, 30, 14]  # and two special tokens
    rows = Dataset.from_dict({"text": [" ".join(["cat"] * count) for count in words], "label": [0, 0, 0, 0, 0, 1, 0]})
    task = files_task(("text",), Classification(("no", "yes")))
    assert typical_rows(rows, task, tokenizer, 128) == [1, 4, 5]
    alone = rows.select([0, 1, 2, 3, 4, 6])
    assert typical_rows(alone, task, tokenizer, 128) == [1, 4, 5]
    assert typical_rows(rows.select([5]), task, tokenizer, 128) == [0]
    assert typical_rows(rows, task.with_long_texts("windows"), tokenizer, 20) == [1, 4, 5]
    windows_before = rows.select([5, 0, 1, 2, 3, 4, 6])
    assert typical_rows(windows_before, task.with_long_texts("windows"), tokenizer, 20) == [2, 5, 0]


def test_rows_that_were_set_aside_are_found_again_and_were_trained_on(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, {"finetune": (0.5,)}, test_fraction=0.25, method="finetune", options={})
    section = part(folder).section
    assert "The kept model was trained on all rows, including these." in section.content
    assert "Its own method drops nothing in attention. Crossed out is what ad-drop with" in section.content
    training = (tmp_path / "train.csv").read_text(encoding="utf-8")
    shown = re.findall(r'<option value="\d">(.*?) ‖', section.content)
    assert len(shown) == 3
    assert all(text in training for text in shown)


def test_a_kept_baseline_has_its_own_name(folder: Path, tmp_path: Path) -> None:
    """It is made by a run of plain fine-tuning that trains nothing."""
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    metrics = tiny.read_metrics(copied / "best")
    metrics["config"] |= {"max_steps": 0, "head_start": "frozen"}
    write_json(copied / "best" / "metrics.json", metrics)
    assert "kept: the linear model on the frozen encoder, seed 0, 40 training rows" in part(copied).section.content


def test_own_texts_take_the_place_of_rows(folder: Path) -> None:
    section = part(folder, ViewerOptions(("the cat",), ("a dog",), "cpu")).section
    (text,) = data(section)["texts"]
    assert text["stages"][0]["tokens"] == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert "evaluation rows" not in section.content
    assert text["label"] is None


def test_a_small_page_has_fewer_layers_then_fewer_texts_then_none(folder: Path) -> None:
    make = attention_part(read_results(folder), DEFAULT_VIEWER)
    whole = make(10**7).section
    size = len(html_page.render_page("", [whole]).encode())
    assert make(size).section.content == whole.content
    fewer = make(size - 1).section
    assert [[layer["key"] for layer in text["stages"][0]["layers"]] for text in data(fewer)["texts"]] == 3 * [
        ["encoder.1"]
    ]
    assert "To keep the page small, it has only 1 of 2 layers." in fewer.content
    one = make(len(html_page.render_page("", [fewer]).encode()) - 1).section
    assert len(data(one)["texts"]) == 2
    assert "only 1 of 2 layers and 2 of 3 texts" in one.content
    given = attention_part(read_results(folder), ViewerOptions(("the cat", "the bird"), ("a dog", "a cat"), "cpu"))
    whole_of_given = given(10**7)
    assert not whole_of_given.missing  # of given texts, what is left out is told outside of the page, too
    smaller = given(len(html_page.render_page("", [whole_of_given.section]).encode()) - 1)
    assert smaller.missing == "To keep the page small, it has only 1 of 2 layers."
    none = make(0)
    assert not none.section.data
    assert none.missing.startswith("The page has no room left")
    assert "no room left" in none.section.content


def test_given_texts_that_do_not_fit_are_told_with_a_length_that_does(
    folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["--text", " ".join(["cat"] * 12), "--text-pair", " ".join(["dog"] * 9)]
    page = tmp_path / "page.html"
    best = f"{folder}/best"
    assert cli.main(["attend", best, texts[1], *texts[2:], "--output", str(page), "--device", "cpu", "--quiet"]) == 0
    monkeypatch.setattr("attendrop.reports.attention_viewer.MOST_BYTES", page.stat().st_size - 3000)
    monkeypatch.setattr(report_page, "MOST_BYTES", 0)
    out = str(tmp_path / "out")
    assert cli.main(["report", str(folder), *texts, "--device", "cpu", "--output-dir", out]) == 0
    told = re.search(r"Not made: Attention viewer: .* no room left .*`(attendrop attend .*)`", capsys.readouterr().out)
    command, length = told[1].split(" --max-length ")
    assert command == f'attendrop attend {best} "TEXT"'
    followed = ["attend", best, texts[1], *texts[2:], "--max-length", length, "--output", str(page), "--overwrite"]
    assert cli.main([*followed, "--device", "cpu", "--quiet"]) == 0


def test_runs_without_a_kept_model_tell_how_to_get_one(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, "finetune", (0.5, 0.52, 0.51, 0.53))
    assert '`attendrop attend RUN "TEXT"` shows that of a run that kept its model' in part(tmp_path).missing
    with pytest.raises(AttendropError, match="whose attention could be shown"):
        part(tmp_path, ViewerOptions(("the cat",)))
    for run in runs + write_runs(tmp_path, "r-drop", (0.6, 0.63, 0.61, 0.62)):
        (run / "run.yaml").write_text("model: minilm")
    told = part(tmp_path)
    recommended = tmp_path / "runs" / "4-seed0"  # a run of r-drop
    assert f"`attendrop train --config {recommended}/run.yaml --output-dir FOLDER`" in told.missing
    assert f"<code>attendrop train --config {recommended}/run.yaml --output-dir FOLDER</code>" in told.section.content
    (recommended / "config.json").write_text("{}")
    assert f'`attendrop attend {recommended} "TEXT"`' in part(tmp_path).missing
    found = json.loads((recommended / "metrics.json").read_text())
    found["data"]["report"] = {"kind": "translation"}
    (recommended / "metrics.json").write_text(json.dumps(found))
    assert part(tmp_path).missing.startswith("`attendrop attend` does not work for translation: ")


def test_a_kept_model_that_cannot_be_shown_does_not_keep_the_report_from_being_made(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    copy = tmp_path / "answer"
    shutil.copytree(folder, copy)
    options = (copy / "best" / "run.yaml").read_text(encoding="utf-8")
    (copy / "best" / "run.yaml").write_text(options.replace("dev.csv", "gone.csv"), encoding="utf-8")
    assert cli.main(["report", str(copy), "--device", "cpu"]) == 0
    assert re.search(r"Not made: Attention viewer: .*gone\.csv", capsys.readouterr().out)
    assert "gone.csv" in (copy / "report" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "the cat"], "was trained on pairs of texts; give one --text-pair for each text"),
        (["--text-pair", "the cat"], "give --text for each --text-pair"),
        (["--text", "the cat", "--no-viewer"], "--no-viewer shows no texts"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(
    folder: Path, tmp_path: Path, capsys: Captured, arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert_refused(["report", str(folder), "--quiet", "--output-dir", str(out), *arguments], out, message, capsys)
