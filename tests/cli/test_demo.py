"""The demonstration: its generated messages, and the comparison that it runs on them."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest
from helpers import tiny

from attendrop import AttendropError, cli
from attendrop.cli import demo
from attendrop.cli.demo_messages import generate_messages, write_messages

Captured = pytest.CaptureFixture[str]
SHA256 = {
    "train.csv": "6111653599e82470840ff78c0e31b721c5bf242868ba76a7165baaaf306eca34",
    "test.csv": "786f72bad26fed1695b3a6a0fc4914ef3aa3e7f59c6148634d87a85217931a37",
}
TRAIN, TEST = generate_messages()


def test_the_files_are_the_same_everywhere(tmp_path: Path) -> None:
    """A change of the messages changes every published figure: it must be meant."""
    written = write_messages(tmp_path)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written} == SHA256
    assert write_messages(tmp_path) == written  # where they are already


def test_another_file_of_the_same_name_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("mine")
    with pytest.raises(AttendropError, match=r"test\.csv' is not the demonstration's; name another folder"):
        write_messages(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test.csv"]
    assert (tmp_path / "test.csv").read_text() == "mine"


def test_the_demonstration_answers_and_is_not_run_again(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendrop.cli.demo_messages.generate_messages", lambda draw: (TRAIN, TEST[:96]))
    model = tiny.save_tiny_bert(tmp_path / "model")
    monkeypatch.setattr(demo, "SETTINGS", [*demo.SETTINGS, "--max-steps", "2", "--max-length", "24"])
    asked = ["demo", "--model", str(model), "--seeds", "1", "--workers", "0", "--output-dir", str(tmp_path / "demo")]
    assert cli.main(asked) == 0
    out, err = capsys.readouterr()
    assert f"accuracy of {model} on test.csv (96 rows), trained on train.csv:" in out
    compared = {"finetune", "ad-drop", "frozen", "tfidf", "majority"}
    assert {line.split("  ")[0] for line in out.splitlines()} >= compared
    assert f"attendrop predict {tmp_path / 'demo' / 'answer' / 'best'}" in out

    command = next(line for line in err.splitlines() if line.startswith("attendrop compare "))
    before = finished(tmp_path / "demo")
    assert len(before) == 6  # two methods, three baselines, and the model that is kept
    assert cli.main([*shlex.split(command)[1:], "--json"]) == 0  # what it says that it runs is what it ran
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "demo/answer/answer.json").read_text())
    assert finished(tmp_path / "demo") == before


def finished(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")}
