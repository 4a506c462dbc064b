"""The command line answers before it loads what it does not need."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
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
