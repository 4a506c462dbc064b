"""A model that FSDP2 (``fully_shard``) divides among processes is trained as one process trains the whole model."""

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import fsdp_worker, zoo
from helpers.table import TABLE
from helpers.training import trainer_of
from helpers.two_processes import in_two_processes, once
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import distribute_module

from attendrop import ADDrop, AttendropError, Compose, Mixout, Vanilla, regularize
from attendrop.attribution.finite_gradients import first_finite

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def divided(one_process: None) -> Any:
    return fsdp_worker.divided("bert", 1)


@pytest.mark.parametrize("name", ["ad-drop", "r-drop", "layerdrop", "headmask importance", "scal attention"])
def test_parameters_that_are_divided_train_as_whole_ones(name: str, one_process: None) -> None:
    models = fsdp_worker.divided("bert", 1), zoo.build("bert", dtype=torch.float64)
    found, expected = (fsdp_worker.train(model, "bert", TABLE[name], 0, 1) for model in models)
    for ours, theirs in zip(found["gradients"], expected["gradients"], strict=True):
        zoo.assert_same(ours, theirs, 1e-12)
    assert found["logs"] == pytest.approx(expected["logs"])


def test_plans_reach_the_model_in_its_mixed_precision(one_process: None) -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    models = fsdp_worker.divided("bert", 1, torch.float32, mp_policy=half), zoo.build("bert")
    found, expected = (fsdp_worker.train(model, "bert", TABLE["hiddencut"], 0, 1)["logs"] for model in models)
    assert found == pytest.approx(expected, rel=0.1) and expected["hiddencut/dropped"] > 0


def test_what_needs_the_whole_model_is_refused(divided: Any, tmp_path: Path) -> None:
    refused = pytest.raises(AttendropError, match="Method 'mixout' needs the whole model")
    with refused, regularize(divided, Compose(Vanilla(), Mixout())):
        pass
    assert divided.config._attn_implementation == "sdpa"
    with pytest.raises(AttendropError, match=r"neither DeepSpeed nor FSDP; .* regularize\(\.\.\.\)"):
        trainer_of(tmp_path, model=divided)


def test_parameters_that_are_divided_otherwise_are_refused(one_process: None) -> None:
    model = distribute_module(zoo.build("bert"), init_device_mesh("cpu", (1,)))
    with pytest.raises(AttendropError, match="otherwise than by fully_shard"), regularize(model, ADDrop()):
        pass


def test_processes_take_another_factor_together(divided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the gradients of this process were finite: it would run the model less often than the others."""
    asked: list[float] = []

    # The first time, those of another were not.
    monkeypatch.setattr("attendrop.support.models.gathered", lambda value, _: [value, len(asked) > 1])
    assert first_finite(lambda factor: asked.append(factor) or factor, divided) == asked[1]  # type: ignore[func-returns-value]
    asked.clear()
    assert first_finite(lambda factor: asked.append(factor) or factor, zoo.build("bert")) == asked[0]  # type: ignore[func-returns-value]


def _alone(folder: Path) -> None:
    torch.save(fsdp_worker.results(folder, 0, 1), folder / "alone.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of two processes computes in a job, and what one computes."""

    @cache
    def load() -> list[dict[str, Any]]:
        ranks = once(tmp_path_factory, "fsdp", partial(in_two_processes, fsdp_worker.results))
        alone = once(tmp_path_factory, "fsdp-alone", _alone)
        files = [ranks / "rank-0.pt", ranks / "rank-1.pt", alone / "alone.pt"]
        return [torch.load(file, weights_only=True) for file in files]

    return lambda job: [found[job] for found in load()]


@pytest.mark.slow
@pytest.mark.parametrize("job", fsdp_worker.JOBS)
def test_two_processes_take_the_steps_of_one(job: str, results: Any) -> None:
    first, second, alone = results(job)
    for ours, theirs in zip(first["gradients"], alone["gradients"], strict=True):
        zoo.assert_same(ours, theirs, 1e-9)
    zoo.assert_same(first["weights"], second["weights"])
    zoo.assert_same(first["weights"], alone["weights"], 1e-9)
    assert first["logs"] == pytest.approx(second["logs"])
    assert counts(first["logs"]) == pytest.approx(counts(alone["logs"]))


def counts(logs: dict[str, float]) -> dict[str, float]:
    """Fractions of all units; other metrics are means over passes, and two processes take twice as many."""
    return {name: value for name, value in logs.items() if re.search("/(dropped|active)", name)}
