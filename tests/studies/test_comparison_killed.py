"""A comparison that is killed again and again ends as an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow
KILLS = 10


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


def finishes_a_run(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait until one more run is finished; tell whether the comparison still goes on then."""
    before = len(list(folder.glob("runs/*/metrics.json")))
    while len(list(folder.glob("runs/*/metrics.json"))) == before:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            return False
    return True


def test_ten_kills_change_nothing(folder: Path) -> None:
    """Each kill comes at a random moment after one more run was finished, not while the process still starts."""
    assert start(folder, "undisturbed").wait() == 0
    chance = random.Random(0)
    for _ in range(KILLS):
        process = start(folder, "disturbed")
        assert finishes_a_run(process, folder / "disturbed"), "the comparison ended before it was killed ten times"
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, 0.5))
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not psutil.wait_procs(workers, timeout=20)[1], "worker processes outlive the comparison"
    process = start(folder, "disturbed")
    assert process.wait() == 0, (folder / "disturbed.log").read_text(encoding="utf-8")
    assert tables(folder / "disturbed") == tables(folder / "undisturbed")
