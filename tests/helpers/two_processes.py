"""Results that two processes compute together, and that one computes, each once for all tests that compare them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that is filled once, by whichever process of pytest-xdist is the first to need it."""
    root = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not folder.exists():
            partial = root / f"{name}-partial"
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


def in_two_processes(worker: str, *arguments: str) -> None:
    """Run a module of the helpers with ``torchrun``."""
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(tests / "helpers" / f"{worker}.py"), *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
