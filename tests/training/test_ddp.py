"""Two processes that train together do what one does with the joint batch."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from helpers import ddp_worker, zoo

from attendrop.training.checkpoints import is_complete

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")


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


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The results of both processes, and their folder."""
    folder = once(tmp_path_factory, "ddp", in_two_processes)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1)], folder


def in_two_processes(folder: Path) -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(tests / "helpers" / "ddp_worker.py"), str(folder)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process computes."""
    folder = once(
        tmp_path_factory, "alone", lambda folder: torch.save(ddp_worker.results(folder, 0, 1), folder / "found.pt")
    )
    found: dict[str, Any] = torch.load(folder / "found.pt", weights_only=True)
    return found


Ranks = tuple[list[dict[str, Any]], Path]
RUNS = ["train random", "train group_by_length"]


@pytest.mark.parametrize("name", ["step bert", "step bart-class"])
def test_gradients_equal_those_of_the_joint_batch(name: str, ranks: Ranks, alone: dict[str, Any]) -> None:
    first, second = ranks[0]
    zoo.assert_same(first[name], second[name])
    zoo.assert_same(first[name], alone[name], 1e-9)


@pytest.mark.parametrize("name", [*RUNS, "resumed"])
def test_both_processes_end_with_the_same_weights(name: str, ranks: Ranks) -> None:
    first, second = ranks[0]
    zoo.assert_same(first[name]["weights"], second[name]["weights"])


@pytest.mark.parametrize("name", RUNS)
def test_the_trainer_takes_the_same_steps_as_one_process(name: str, ranks: Ranks, alone: dict[str, Any]) -> None:
    ours, one = ranks[0][0][name], alone[name]
    assert len(ours["gradients"]) == len(one["gradients"]) == 4
    for step, expected in zip(ours["gradients"], one["gradients"], strict=True):
        zoo.assert_same(step, expected, 1e-8)
    zoo.assert_same(ours["weights"], one["weights"], 1e-8)


@pytest.mark.parametrize("variant", ["dropout", "pruning"])
def test_attendout_decides_as_one(variant: str, ranks: Ranks, alone: dict[str, Any]) -> None:
    """All processes end with identical networks, those that one process ends with, also when resumed in mid-period."""
    (first, second), one = (found[f"train {variant}"] for found in ranks[0]), alone[f"train {variant}"]
    resumed = ranks[0][0][f"resumed {variant}"]
    for name in ("weights", "generator", "defender"):
        zoo.assert_same(first[name], second[name])
        zoo.assert_same(first[name], resumed[name])
        zoo.assert_same(first[name], one[name], 1e-7)
    assert [entry["step"] for entry in first["log"]] == [2, 4]
    for ours, theirs in zip(first["log"], one["log"], strict=True):
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], rel=1e-6), name


@pytest.mark.parametrize(
    "name", [*ddp_worker.OTHERS, *(f"{name}, activation checkpointing" for name in ddp_worker.CHECKPOINTED)]
)
def test_every_method_ends_with_the_weights_of_one_process(name: str, ranks: Ranks, alone: dict[str, Any]) -> None:
    (first, second), one = (found[name] for found in ranks[0]), alone[name]
    zoo.assert_same(first, second)
    zoo.assert_same(first, one, 1e-7)


def test_a_resumed_run_of_two_processes_equals_the_uninterrupted_one(ranks: Ranks) -> None:
    first = ranks[0][0]
    assert len(first["resumed"]["gradients"]) == 1
    zoo.assert_same(first["resumed"]["weights"], first["train random"]["weights"])


def test_checkpoints_of_two_processes_are_complete(ranks: Ranks) -> None:
    checkpoint = ranks[1] / "random/checkpoint-3"
    assert is_complete(checkpoint)
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}


def test_the_logged_share_is_that_of_the_whole_batch(ranks: Ranks, alone: dict[str, Any]) -> None:
    assert ranks[0][0]["train random"]["shares"] == pytest.approx(alone["train random"]["shares"])
