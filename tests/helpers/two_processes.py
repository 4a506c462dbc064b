"""Results that two processes compute together, and that one computes, each once for all tests that compare them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import distributed, multiprocessing

from helpers.device import ON_CPU
from helpers.forked import CONTEXT


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


def in_two_processes(results: Callable[[Path, int, int], Any], folder: Path) -> None:
    """Save what a function returns, given the folder, the rank and the number of processes, as ``rank-0.pt`` and so on.

    The processes have the environment that ``torchrun`` gives.
    """
    multiprocessing.start_processes(
        _process, (results, folder), nprocs=2, start_method=CONTEXT.get_start_method(), join=True
    )


def _process(rank: int, results: Callable[[Path, int, int], Any], folder: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # the trainer calls gc.collect, which is slow with all the objects of imported modules
    # Both on the first GPU, which NCCL would refuse.
    local = rank if ON_CPU else 0
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # not used: they meet in a file
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(results(folder, rank, 2), folder / f"rank-{rank}.pt")
    distributed.destroy_process_group()
