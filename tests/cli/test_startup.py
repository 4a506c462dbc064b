"""The command line answers before it loads what it does not need."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attendrop
from attendrop.methods.ad_drop import ADDrop

TRAIN = ("train", "--train-file", "a.csv", "--text-columns", "text", "--label-column", "label")

ANSWERED_AT_ONCE = [
    (["--help"], 0, "Fine-tune"),
    (["--version"], 0, "."),
    (["train", "--help"], 0, "--learning-rate"),
    (["train", "--epoch", "3"], 2, "--epochs"),
    (["trian"], 2, "No such command 'trian'"),
    ([*TRAIN, "--epochs", "two"], 2, "Invalid value for '--epochs'"),
    ([*TRAIN, "--epochs", "0"], 2, "epochs must be at least 1, not 0."),
    ([*TRAIN, "--learning-rate", "nan"], 2, "learning-rate must be a number above 0, not nan."),
    ([*TRAIN, "--protocol", "papers"], 2, "Did you mean 'paper'?"),
    ([*TRAIN, "--preset", "papr"], 2, "Did you mean 'paper'?"),
    ([*TRAIN, "--set", "p"], 2, "--set 'p' is not of the form NAME=VALUE"),
    ([*TRAIN, "--options", "nowhere.json"], 2, "There is no options file 'nowhere.json'"),
    ([*TRAIN, "--bf16", "--fp16"], 2, "bf16 and fp16 exclude each other"),
    (["train", "--model", "minilm"], 2, "No data are given; give --train-file"),
    (["evaluate", "run", "--batch-size", "0"], 2, "batch-size must be at least 1, not 0."),
    (["predict", "run"], 2, "Missing option '--output'"),
    (["export", "run"], 2, "Missing option '--output'"),
    (["demo", "--seeds", "0"], 2, "seeds must be at least 1, not 0."),
]

REPORT = """
import contextlib, io, json, sys
from attendrop import cli
for arguments in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main(arguments)
    loaded = sorted({"torch", "transformers", "datasets", "numpy"} & set(sys.modules))
    print(json.dumps([code, out.getvalue(), loaded]))
"""


def test_what_needs_no_model_is_answered_without_loading_torch() -> None:
    cases = json.dumps([arguments for arguments, _, _ in ANSWERED_AT_ONCE])
    done = subprocess.run([sys.executable, "-c", REPORT], input=cases, capture_output=True, text=True, check=True)
    for line, (arguments, expected, part) in zip(done.stdout.splitlines(), ANSWERED_AT_ONCE, strict=True):
        code, said, loaded = json.loads(line)
        assert (arguments, code, loaded) == (arguments, expected, [])
        assert part in said


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of data, and the folder of a run, as far as it is looked at before its model."""
    folder = tmp_path_factory.mktemp("data")
    rows = [f"some text number {n},{'yes' if n % 2 else 'no'},always\n" for n in range(300)]
    (folder / "good.csv").write_text("".join(["text,label,same\n", *rows]))
    (folder / "broken.csv").write_bytes("".join(["text,label\n", "größer,ja\n" * 9]).encode() + b"gr\xf6\xdfer,no\n")
    study = (
        "data: {train_file: %s, text_columns: text, label_column: label}\nmethods: [{name: ad-drop, options: {%s}}]\n"
    )
    (folder / "option.yaml").write_text(study % ("good.csv", "q: [0.3, 3]") + "seeds: 2\n")
    (folder / "file.yaml").write_text(study % ("nowhere.csv", "q: 0.3") + "seeds: 2\n")
    (folder / "run").mkdir()
    config = {"train_file": "good.csv", "text_columns": ["text"], "label_column": "label"}
    (folder / "run" / "run.json").write_text(json.dumps({"config": config, "data_sha256": ""}))
    return folder


COLUMNS = "--text-columns text --label-column label"
WRONG_INPUTS = [
    (f"train --train-file nowhere.csv {COLUMNS}", "there is no file nowhere.csv"),
    ("train --train-file good.csv --text-columns txt --label-column label", "no column 'txt'; did you mean 'text'?"),
    ("train --train-file good.csv --text-columns text --label-column same", "good.csv has only one class, 'always'"),
    (f"train --train-file broken.csv {COLUMNS}", "broken.csv, line 11: byte 0xf6 is not UTF-8"),
    (f"train --train-file good.csv {COLUMNS} --epochs 0", "epochs must be at least 1, not 0."),
    (f"train --train-file good.csv {COLUMNS} --eval-file nowhere.csv", "there is no file nowhere.csv"),
    (f"train --train-file good.csv {COLUMNS} --label-map nowhere.csv", "there is no file nowhere.csv"),
    (
        f"train --train-file good.csv {COLUMNS} --method ad-dorp",
        "There is no method 'ad-dorp'. Did you mean 'ad-drop'?",
    ),
    (f"train --train-file good.csv {COLUMNS} --set p=3", "p=3.0 must be above 0 and below 1."),
    (f"train --train-file good.csv {COLUMNS} --method ad-drop+r-drop --set r-drop.a=1", "has no option 'a'"),
    (f"compare --train-file good.csv {COLUMNS} --set ad-drop.attribution=record", "Did you mean 'recorded'?"),
    (f"compare --train-file good.csv {COLUMNS} --methods mixout,ad_drop", "Did you mean 'ad-drop'?"),
    (f"compare --train-file good.csv {COLUMNS} --budget soon", "budget 'soon' is not a duration"),
    ("study option.yaml", "q=3 must be above 0"),
    ("study file.yaml", "nowhere.csv"),
    (f"compare --train-file nowhere.csv {COLUMNS}", "there is no file nowhere.csv"),
    ("compare --train-file good.csv --text-columns text --label-column lable", "did you mean 'label'?"),
    ("compare --train-file good.csv --text-columns text --label-column same", "has only one class, 'always'"),
    ("evaluate nowhere --eval-file good.csv", "There is no run folder 'nowhere'"),
    ("evaluate run --eval-file nowhere.csv", "there is no file nowhere.csv"),
    ("evaluate run --eval-file good.csv --label-column lable", "did you mean 'label'?"),
    ("evaluate run --eval-file broken.csv", "broken.csv, line 11: byte 0xf6 is not UTF-8"),
    ("predict run --output out.csv --predict-file nowhere.csv", "there is no file nowhere.csv"),
    ("predict run --output out.csv --predict-file good.csv --text-columns txt", "did you mean 'text'?"),
]


def test_wrong_data_are_refused_without_loading_torch(data: Path) -> None:
    """All of them in one process: any that loads PyTorch is seen there."""
    cases = json.dumps([arguments.split() for arguments, _ in WRONG_INPUTS])
    done = subprocess.run([sys.executable, "-c", REPORT], input=cases, capture_output=True, text=True, cwd=data)
    for line, (arguments, part) in zip(done.stdout.splitlines(), WRONG_INPUTS, strict=True):
        code, said, loaded = json.loads(line)
        assert (arguments, code, loaded) == (arguments, 2, [])
        assert part in said.splitlines()[-1]


def test_public_names_are_found_when_they_are_asked_for() -> None:
    importlib.import_module("attendrop.training.regularization")
    assert callable(attendrop.regularize)  # a module of that name would be set by the import in its place
    names: dict[str, Any] = {}
    exec("from attendrop import *", names)
    public = attendrop.__all__  # type: ignore[attr-defined]
    assert set(public) >= {"ADDrop", "AttendropError", "RegularizedTrainer", "register_method", "prune"}
    assert all(names[name] is getattr(attendrop, name) for name in public)
    assert set(public) <= set(dir(attendrop))
    assert attendrop.ADDrop is ADDrop
    for name in ("Nothing", "nothing", "_Nothing"):
        with pytest.raises(AttributeError, match=f"module 'attendrop' has no attribute '{name}'"):
            getattr(attendrop, name)
