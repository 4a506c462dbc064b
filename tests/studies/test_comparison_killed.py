"""A comparison that is killed again and again ends as an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import tiny

pytestmark = pytest.mark.slow
KILLS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


def start(folder: Path, output: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import sys; from attendrop.cli import main; sys.exit(main())", "compare"]
    command += ["--train-file", str(folder / "train.csv"), "--text-columns", "sentence1,sentence2"]
    command += ["--label-column", "label", "--model", str(folder / "model"), "--device", "cpu", "--max-steps", "40"]
    command += ["--methods", "mixout,ad-drop", "--seeds", "3", "--trials", "2", "--folds", "2", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / f"{output}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--output-dir", str(folder / output)], stderr=log, stdout=log, env=environment
        )


def tables(folder: Path) -> dict[str, Any]:
    """The answer without times."""
    found: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    rows = [{name: value for name, value in row.items() if name != "time_ratio"} for row in found["methods"]]
    return {"methods": rows, "trials": found["trials"], "chosen": found["chosen"]}


def test_ten_kills_change_nothing(folder: Path) -> None:
    began = time.monotonic()
    assert start(folder, "undisturbed").wait() == 0
    takes = time.monotonic() - began
    chance, kills = random.Random(0), 0
    while True:
        process = start(folder, "disturbed")
        try:
            process.wait(timeout=None if kills == KILLS else chance.uniform(0.15, 0.35) * takes)
            break
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            assert not psutil.wait_procs(workers, timeout=20)[1], "worker processes outlive the comparison"
    assert process.returncode == 0, (folder / "disturbed.log").read_text(encoding="utf-8")
    assert kills == KILLS
    assert tables(folder / "disturbed") == tables(folder / "undisturbed")
