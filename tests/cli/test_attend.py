"""`attendrop attend`: the page of one's own texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli
from attendrop.runs.train import train as train_run

TEN = "the cat sees the red bird and near far not"
PAIR = ("the cat sees not the red bird", "a dog hears the bird")


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """A model of two layers and data, and runs that trained it."""
    for name, method, options, seed in (("ad-drop", "ad-drop", {"p": 0.4}, 0), ("plain", "finetune", {}, 1)):
        train_run(tiny.config(folder, name, method=method, options=options, seed=seed, learning_rate=0.02, max_steps=3))
    return folder


def attend(captured: Captured, *arguments: str) -> dict[str, Any]:
    captured.readouterr()
    assert cli.main(["attend", *arguments, "--device", "cpu", "--json"]) == 0
    return json.loads(captured.readouterr().out)


def data_of(file: Path) -> dict[str, Any]:
    page = file.read_text(encoding="utf-8")
    text = re.search(r'<script type="application/json" id="maps-chart">(.*?)</script>', page, re.DOTALL)
    return json.loads(text.group(1))["datasets"]


def test_a_run_is_shown_before_and_after_training(folder: Path, capsys: Captured) -> None:
    found = attend(capsys, f"{folder}/ad-drop", PAIR[0], "--text-pair", PAIR[1])
    file = folder / "ad-drop" / "attention.html"
    assert found["output"] == str(file)
    assert found["method"] == "ad-drop"
    assert list(found["texts"][0]["predictions"]) == ["Before training", "After training"]
    data = data_of(file)
    assert data["texts"][0]["tokens"] == ["[CLS]", *PAIR[0].split(), "[SEP]", *PAIR[1].split(), "[SEP]"]
    before, after = ([each for each in data["maps"] if each["stage"] == stage] for stage in (0, 1))
    assert list(dict.fromkeys(each["layer"] for each in after)) == ["encoder.0", "encoder.1"]
    assert any(first["a"] != last["a"] for first, last in zip(before, after, strict=True))
    assert any(each["d"] for each in after)
    # The page is no file of the run, which is not damaged by it.
    assert cli.main(["evaluate", f"{folder}/ad-drop", "--device", "cpu", "--quiet"]) == 0


def test_before_training_is_the_model_with_the_head_that_the_run_began_with(folder: Path, capsys: Captured) -> None:
    found = attend(capsys, f"{folder}/plain", PAIR[0], "--text-pair", PAIR[1])
    hf.set_seed(1)
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=2)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder / "model")
    logits = model(**tokenizer(*PAIR, return_tensors="pt")).logits[0]
    begun = found["texts"][0]["predictions"]["Before training"]
    assert begun == {
        "label": ("no", "yes")[int(logits.argmax())],
        "probability": pytest.approx(logits.softmax(0).max().item(), abs=1e-5),
    }
    # A run without drops shows those of the default method.
    assert found["method"] == "ad-drop"


def test_options_choose_what_is_shown(folder: Path, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    shown = (f"{folder}/model", "the cat", "the dog sees", "--output", str(file), "--overwrite")
    found = attend(capsys, *shown, "--method", "vanilla", "--set", "p=0.9", "--layers", "1", "--max-length", "4")
    assert (found["method"], [text["tokens"] for text in found["texts"]]) == ("vanilla", [4, 4])
    assert {(each["stage"], each["layer"]) for each in data_of(file)["maps"]} == {(0, "encoder.1")}
    assert "vanilla with p=0.9 drops" in file.read_text() and "its head is random" in file.read_text()
    attend(capsys, f"{folder}/ad-drop", PAIR[0], "--text-pair", PAIR[1], *shown[-3:], "--set", "q=1.0")
    assert "ad-drop with p=0.4, q=1.0 drops" in file.read_text()
    assert attend(capsys, *shown, "--method", "mixout")["method"] is None
    assert "Cross out" not in file.read_text() and not any(each["d"] for each in data_of(file)["maps"])


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("ad-drop", [PAIR[0], "--overwrite"], "was trained on pairs of texts; give one --text-pair for each text"),
        ("model", [PAIR[0], "x", "--text-pair", "y"], "2 texts and 1 second text"),
        ("model", ["the cat", "--output", "{folder}/train.csv"], "exists; --overwrite replaces it"),
        ("model", ["the cat", "--output", "{folder}/model/config.json", "--overwrite"], "which is read; name another"),
        ("without", [PAIR[0], "--text-pair", PAIR[1]], "kept no model, only scores"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, capsys: Captured, model: str, arguments: list[str], message: str
) -> None:
    (folder / "without").mkdir(exist_ok=True)
    record = json.loads((folder / "plain" / "run.json").read_text())
    (folder / "without" / "run.json").write_text(json.dumps(record | {"files": {}}))
    (folder / "without" / "metrics.json").write_bytes((folder / "plain" / "metrics.json").read_bytes())
    capsys.readouterr()
    given = [argument.format(folder=folder) for argument in arguments]
    assert cli.main(["attend", f"{folder}/{model}", *given, "--device", "cpu", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err


@pytest.mark.parametrize(
    ("long_texts", "max_length", "words", "note"),
    [
        ("windows", 12, TEN, "12 of 12 tokens are shown; the run's prediction is over all, in windows of 6."),
        ("head+tail", None, "the near far not", "6 of 12 tokens are shown."),
    ],
)
def test_a_long_text_is_cut_as_in_the_run_and_said_to_be(
    folder: Path, capsys: Captured, tmp_path: Path, long_texts: str, max_length: int | None, words: str, note: str
) -> None:
    run, columns = folder / f"long-{long_texts}", ("sentence1",)
    train_run(tiny.config(folder, run.name, text_columns=columns, long_texts=long_texts, max_length=6, max_steps=1))
    more = [] if max_length is None else ["--max-length", str(max_length)]
    given = ["attend", str(run), TEN, "the cat", *more, "--output", f"{tmp_path}/page.html", "--device", "cpu"]
    assert cli.main([*given, "--quiet"]) == 0
    assert capsys.readouterr().err == f"Warning: Text 1: {note}\n"
    long, _ = data_of(tmp_path / "page.html")["texts"]
    assert long["tokens"] == ["[CLS]", *words.split(), "[SEP]"]
