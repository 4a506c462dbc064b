"""Two processes that train together do what one does with the joint batch."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ddp_worker, zoo
from helpers.two_processes import in_two_processes, once

from attendrop.training.checkpoints import is_complete

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")


def in_one_process(folder: Path, part: str) -> None:
    torch.save(ddp_worker.results(folder, 0, 1, part), folder / "alone.pt")


def part_of(job: str) -> str:
    return next(part for part, jobs in ddp_worker.PARTS.items() if job in jobs)


Results = Callable[[str], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the two processes that ran a job."""
    return lambda job: once(
        tmp_path_factory,
        f"ddp-{part_of(job)}",
        partial(in_two_processes, partial(ddp_worker.results, part=part_of(job))),
    )


@pytest.fixture(scope="module")
def ranks(folder: Callable[[str], Path]) -> Results:
    """What each of two processes computes in a job."""
    load = cache(lambda path: torch.load(path, weights_only=True))
    return lambda job: [load(folder(job) / f"rank-{rank}.pt")[job] for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What one process computes in a job."""

    @cache
    def load(part: str) -> dict[str, Any]:
        folder = once(tmp_path_factory, f"alone-{part}", partial(in_one_process, part=part))
        return torch.load(folder / "alone.pt", weights_only=True)

    return lambda job: load(part_of(job))[job]


def cases(*names: str, job: str = "{}") -> list[Any]:
    """Parameters of tests; those whose ``job`` is not in the sample are slow, the others run on a GPU, too."""
    sampled = {name: job.format(name) in ddp_worker.SAMPLE for name in names}
    return [pytest.param(name, marks=pytest.mark.gpu if sampled[name] else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("job", cases("step bert", "step bart-class"))
def test_gradients_equal_those_of_the_joint_batch(job: str, ranks: Results, alone: Results) -> None:
    first, second = ranks(job)
    zoo.assert_same(first, second)
    zoo.assert_same(first, alone(job), 1e-9)


@pytest.mark.parametrize("job", cases("train random", "train recorded", "train group_by_length", "train stream"))
def test_the_trainer_takes_the_same_steps_as_one_process(job: str, ranks: Results, alone: Results) -> None:
    (ours, other), one = ranks(job), alone(job)
    zoo.assert_same(ours["weights"], other["weights"])
    assert len(ours["gradients"]) == len(one["gradients"]) == 4
    for step, expected in zip(ours["gradients"], one["gradients"], strict=True):
        zoo.assert_same(step, expected, 1e-8)
    zoo.assert_same(ours["weights"], one["weights"], 1e-8)


@pytest.mark.parametrize("variant", cases("dropout", "pruning", job="train {}"))
def test_attendout_decides_as_one(variant: str, ranks: Results, alone: Results) -> None:
    """All processes end with identical networks, those that one process ends with, also when resumed in mid-period."""
    (first, second), one = ranks(f"train {variant}"), alone(f"train {variant}")
    resumed = ranks(f"resumed {variant}")[0]
    for name in ("weights", "generator", "defender"):
        zoo.assert_same(first[name], second[name])
        zoo.assert_same(first[name], resumed[name])
        zoo.assert_same(first[name], one[name], 1e-7)
    assert first["pi"] == second["pi"] == pytest.approx(one["pi"], rel=1e-6)
    assert [entry["step"] for entry in first["log"]] == [2, 4]
    for ours, theirs in zip(first["log"], one["log"], strict=True):
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], rel=1e-6), name


@pytest.mark.parametrize(
    "job", cases(*ddp_worker.OTHERS, *(f"{name}, activation checkpointing" for name in ddp_worker.CHECKPOINTED))
)
def test_every_method_ends_with_the_weights_of_one_process(job: str, ranks: Results, alone: Results) -> None:
    first, second = ranks(job)
    zoo.assert_same(first, second)
    zoo.assert_same(first, alone(job), 1e-7)


@pytest.mark.parametrize("rows", cases("random", "recorded", "stream", job="resumed {}"))
def test_a_resumed_run_of_two_processes_equals_the_uninterrupted_one(rows: str, ranks: Results) -> None:
    (resumed, other), whole = ranks(f"resumed {rows}"), ranks(f"train {rows}")[0]
    assert len(resumed["gradients"]) == 1
    assert resumed["shares"] == whole["shares"]
    zoo.assert_same(resumed["weights"], whole["weights"])
    zoo.assert_same(resumed["weights"], other["weights"])


@pytest.mark.gpu
def test_checkpoints_of_two_processes_are_complete(folder: Callable[[str], Path]) -> None:
    checkpoint = folder("train recorded") / "recorded/checkpoint-3"
    assert is_complete(checkpoint)
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in checkpoint.iterdir()}


@pytest.mark.gpu
def test_a_mean_loss_is_not_multiplied_by_the_processes_that_evaluate(ranks: Results, alone: Results) -> None:
    assert ranks("evaluated") == pytest.approx([alone("evaluated")] * 2)
