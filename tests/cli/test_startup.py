"""The command line answers before it loads what it does not need."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import attendrop
from attendrop.methods.ad_drop import ADDrop

FILE = "--train-file good.csv --text-columns text --label-column label"
TRAIN = f"train {FILE}"
ANSWERED = [
    ("--help", "Fine-tune"),
    ("--version", "."),
    ("train --help", "--learning-rate"),
]
WRONG = [
    ("train --epoch 3", "--epochs"),
    ("trian", "No such command 'trian'"),
    (f"{TRAIN} --epochs two", "Invalid value for '--epochs'"),
    (f"{TRAIN} --epochs 0", "epochs=0 must be a whole number, and at least 1."),
    (f"{TRAIN} --protocol papers", "Did you mean 'paper'?"),
    (f"{TRAIN} --set p", "--set 'p' is not of the form NAME=VALUE"),
    (f"{TRAIN} --options nowhere.json", "There is no options file 'nowhere.json'"),
    ("train --model minilm", "No data are given; give --train-file"),
    ("train --task cola --protocol paper --selection-fraction 0.3", "omit selection-fraction"),
    (f"{TRAIN} --train-file nowhere.csv", "there is no file nowhere.csv"),
    ("train --train-file good.csv --text-columns txt --label-column label", "no column 'txt'; did you mean 'text'?"),
    ("train --train-file good.csv --text-columns text --label-column same", "good.csv has only one class, 'always'"),
    ("train --train-file broken.csv --text-columns text --label-column label", "line 11: byte 0xf6 is not UTF-8"),
    (f"compare {FILE} --baselines svm", "There is no baseline 'svm'; known are majority"),
    ("study file.yaml", "nowhere.csv"),
    ("evaluate run --batch-size 0", "batch_size=0 must be a whole number, and at least 1."),
    ("evaluate nowhere --eval-file good.csv", "There is no run folder 'nowhere'"),
    ("evaluate run --eval-file good.csv --label-column lable", "did you mean 'label'?"),
    ("predict run", "Missing option '--output'"),
    ("demo --seeds 0", "seeds=0 must be a whole number, and at least 1."),
]
# Methods import PyTorch, but not transformers: their options are checked last, by creating them.
WRONG_METHOD = [
    (f"{TRAIN} --method ad-dorp", "There is no method 'ad-dorp'. Did you mean 'ad-drop'?"),
    (f"{TRAIN} --set p=3", "p=3.0 must be above 0 and below 1."),
    (f"compare {FILE} --set ad-drop.attribution=record", "Did you mean 'recorded'?"),
    (f"compare {FILE} --methods mixout,ad_drop", "Did you mean 'ad-drop'?"),
    ("study option.yaml", "q=3 must be above 0"),
]

REPORT = """
import contextlib, gc, io, json, sys
gc.disable()  # of what is imported, nothing is garbage
from attendrop import cli
for arguments in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main(arguments)
    loaded = sorted({"torch", "transformers", "datasets"} & set(sys.modules))
    print(json.dumps([code, out.getvalue(), loaded]))
"""


def test_what_needs_no_model_is_answered_without_loading_torch(tmp_path: Path) -> None:
    """All in one process: any that loads PyTorch is seen there."""
    rows = [f"some text number {n},{'yes' if n % 2 else 'no'},always\n" for n in range(300)]
    (tmp_path / "good.csv").write_text("".join(["text,label,same\n", *rows]))
    (tmp_path / "broken.csv").write_bytes("".join(["text,label\n", "größer,ja\n" * 9]).encode() + b"gr\xf6\xdfer,no\n")
    for name, file, option in (("option", "good.csv", "q: [0.3, 3]"), ("file", "nowhere.csv", "q: 0.3")):
        data = f"data: {{train_file: {file}, text_columns: text, label_column: label}}\n"
        methods = f"methods: [{{name: ad-drop, options: {{{option}}}}}]\nseeds: 2\n"
        (tmp_path / f"{name}.yaml").write_text(data + methods)
    (tmp_path / "run").mkdir()  # as far as it is looked at before its model
    config = {"train_file": "good.csv", "text_columns": ["text"], "label_column": "label"}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"config": config, "data_sha256": ""}))
    metrics = {"task": "files", "method": "finetune", "config": config, "all_scores": {}}
    (tmp_path / "run" / "metrics.json").write_text(json.dumps(metrics))
    cases = [(line, 0, part) for line, part in ANSWERED] + [(line, 2, part) for line, part in WRONG + WRONG_METHOD]
    given = json.dumps([line.split() for line, _, _ in cases])
    done = subprocess.run([sys.executable, "-c", REPORT], input=given, capture_output=True, text=True, cwd=tmp_path)
    for answer, (line, expected, part) in zip(done.stdout.splitlines(), cases, strict=True):
        code, said, loaded = json.loads(answer)
        assert (line, code) == (line, expected)
        assert not loaded or (line in dict(WRONG_METHOD) and loaded == ["torch"]), line
        assert part in (said if code == 0 else said.splitlines()[-1])


def test_public_names_are_found_when_they_are_asked_for() -> None:
    importlib.import_module("attendrop.training.regularization")
    assert callable(attendrop.regularize)  # a module of that name would be set by the import in its place
    public = attendrop.__all__  # type: ignore[attr-defined]
    assert set(public) >= {"ADDrop", "AttendropError", "RegularizedTrainer", "register_method", "prune"}
    assert attendrop.ADDrop is ADDrop and all(getattr(attendrop, name) is not None for name in public)
    for name in ("Nothing", "_Nothing"):
        with pytest.raises(AttributeError, match=f"module 'attendrop' has no attribute '{name}'"):
            getattr(attendrop, name)


@pytest.mark.slow
def test_only_compare_needs_the_packages_of_the_command_line() -> None:
    """As after ``pip install .``, which has torch and transformers alone."""
    program = """
import sys
for name in ("accelerate", "datasets", "peft", "pyarrow", "sacrebleu", "scipy", "seqeval", "sklearn"):
    sys.modules[name] = None
import attendrop
from attendrop import *
print("RegularizedTrainer" in dir(), "compare" in dir())
attendrop.compare
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert done.stderr.endswith("attendrop.compare needs datasets; run `pip install 'attendrop[cli]'`.\n")
