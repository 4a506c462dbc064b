"""The demonstration: its generated messages, and the comparison that it runs on them."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import AttendropError, cli
from attendrop.cli.demo import write_messages
from attendrop.studies.comparison import Comparison

SHA256 = {
    "train.csv": "6111653599e82470840ff78c0e31b721c5bf242868ba76a7165baaaf306eca34",
    "test.csv": "0ec4f0f1f59c57694d343ed86240de499c3f5c962741f14427a1a6e7ad7f1662",
}


def test_the_files_are_the_same_everywhere(tmp_path: Path) -> None:
    """A change of the messages changes every published figure: it must be meant."""
    written = write_messages(tmp_path)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written} == SHA256
    assert write_messages(tmp_path) == written  # where they are already
    (tmp_path / "test.csv").write_text("mine")
    with pytest.raises(AttendropError, match=r"test\.csv' is not the demonstration's; name another folder"):
        write_messages(tmp_path)
    assert (tmp_path / "test.csv").read_text() == "mine"


def test_the_demonstration_is_a_comparison(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Comparison] = []

    def stop(comparison: Comparison, **how: Any) -> None:
        asked.append(comparison)
        raise AttendropError("stop here")

    monkeypatch.setattr("attendrop.studies.compare.run_comparison", stop)
    model = tiny.save_tiny_bert(tmp_path / "model")
    demo = ["demo", "--model", str(model), "--seeds", "2", "--workers", "0", "--output-dir", str(tmp_path / "demo")]
    assert cli.main(demo) == 2
    command = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("attendrop compare "))
    assert cli.main(shlex.split(command)[1:]) == 2  # what it says that it runs is what it runs
    compared, again = asked
    assert compared == again
    assert [each.method for each in compared.methods] == ["finetune", "ad-drop"]
    assert (compared.seeds, compared.config.epochs, compared.config.model) == (2, 10, str(model))
    assert compared.output_dir == f"{tmp_path}/demo/answer"
    assert (compared.config.train_file, compared.config.eval_file) == tuple(
        f"{tmp_path}/demo/{name}" for name in SHA256
    )
