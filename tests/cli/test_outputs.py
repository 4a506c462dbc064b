"""Written files replace none of the user's files, and have the permissions that the user's umask gives."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import cli
from attendrop.cli.train import _read_run
from attendrop.runs.train import train

PLAIN = {"method": "finetune", "epochs": 1}


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """A model, data, and in ``run`` a finished run."""
    train(tiny.config(folder, **PLAIN))
    return folder


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with texts to predict; nothing in it, nor in the run, may change but ``out.csv``."""
    shutil.copy(folder / "dev.csv", tmp_path / "texts.csv")
    (tmp_path / "mine.csv").write_text("the only copy")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.csv").symlink_to("texts.csv")
    os.link(tmp_path / "texts.csv", tmp_path / "hard.csv")
    (tmp_path / "train.csv").symlink_to(folder / "train.csv")
    monkeypatch.chdir(tmp_path)
    before = [contents(place) for place in (tmp_path, folder)]
    yield tmp_path
    (tmp_path / "out.csv").unlink(missing_ok=True)
    assert [contents(place) for place in (tmp_path, folder)] == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Predictions ----------------------------------------------------------------------------------------------------------

IS_READ = "which is read; name another."


@pytest.mark.parametrize(
    ("output", "more", "message"),
    [
        ("mine.csv", [], "The file 'mine.csv' exists; --overwrite replaces it, or name another."),
        ("hard.csv", ["--overwrite"], IS_READ),
        ("RUN/metrics.json", ["--overwrite", "--output-format", "jsonl"], IS_READ),
        ("out.csv", ["--skip-bad-rows", "--skipped-file", "texts.csv", "--overwrite"], IS_READ),
        ("sub", ["--output-format", "csv"], "The output 'sub' is a folder; name a file."),
    ],
)
def test_predictions_replace_nothing(
    folder: Path, here: Path, capsys: Captured, output: str, more: list[str], message: str
) -> None:
    output = output.replace("RUN", f"{folder}/run")
    arguments = ["predict", f"{folder}/run", "--predict-file", "texts.csv", "--output", output, *more]
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
    if output == "mine.csv":  # unless they are told to
        (here / "out.csv").write_text("older predictions")
        assert cli.main([*arguments[:-1], "out.csv", "--overwrite", "--quiet"]) == 0
        assert len((here / "out.csv").read_text().splitlines()) == 13


COMMANDS = [
    "predict RUN --predict-file texts.csv --output locked/new/out.csv",
    "predict RUN --predict-file texts.csv --output out.csv --skip-bad-rows --skipped-file locked/bad.jsonl",
    "export RUN --output locked/model.onnx",
    "prune RUN --layers 1 --output-dir locked/new",
    "attend RUN text --output locked/page.html",
    "report RUN --output-dir locked/new",
    "train --train-file train.csv --output-dir locked/new",
    "compare train.csv --output-dir locked/new",
    "study study.yaml --output-dir locked/new",
]


@pytest.mark.parametrize("command", COMMANDS, ids=[command.partition(" -")[0] for command in COMMANDS])
def test_a_target_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    folder: Path, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (here / "locked").mkdir()
    (here / "study.yaml").write_text("data: [{train_file: train.csv}]\nmethods: [finetune]\nseeds: 2\n")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, *mode: "locked" not in str(path) and allowed(path, *mode))

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for owner in ("transformers.PreTrainedModel", "transformers.AutoConfig", "transformers.AutoTokenizer"):
        monkeypatch.setattr(f"{owner}.from_pretrained", load)
    data = ["--text-columns", "sentence1,sentence2", "--label-column", "label", "--model", f"{folder}/model"]
    words = command.replace("RUN", f"{folder}/run").split()
    assert cli.main([*words, *data[: {"train": 6, "compare": 6, "inspect": 4}.get(words[0], 0)]]) == 2
    assert "locked' does not allow it" in capsys.readouterr().err
    (here / "locked").rmdir()
    (here / "study.yaml").unlink()


# Runs -----------------------------------------------------------------------------------------------------------------


def test_default_folders_of_files_of_the_same_name_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.csv").symlink_to("loop.csv")  # the run refuses it in words
    columns = {"text_columns": "text", "label_column": "label", "seed": "1,2"}
    names = [
        _read_run({"train_file": file, **columns}, [], None, None, None)[0].output_dir
        for file in ("a/train.csv", "b/train.csv", "b/../a/train.csv", "loop.csv")
    ]
    assert names[0] == names[2] != names[1] and re.fullmatch("runs/train-......-ad-drop-seed1-2", names[0])
    assert names[3].startswith("runs/loop-")
