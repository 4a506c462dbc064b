"""Runs on Ray: what needs no Ray, and a real cluster, on this machine; `make test-all` installs Ray."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from helpers import tiny

from attendrop import AttendropError
from attendrop.runs.config import partial_of
from attendrop.runs.data import share_results
from attendrop.runs.train import train
from attendrop.studies.executor import Event, OnEvent, RayRunner, RunSpec, open_runner, run_on_machine, share_of_run

SHORT: dict[str, Any] = {"method": "finetune", "seed": 9, "epochs": 1}
LONG: list[dict[str, Any]] = [{"method": "ad-drop", "seed": seed, "epochs": 40, "save_steps": 2} for seed in range(2)]


def perform(specs: list[RunSpec], folder: Path, backend: str, on_event: OnEvent = lambda event: None) -> list[Event]:
    with open_runner(folder, backend=backend, workers=2 if backend == "ray:local" else None) as runner:
        return runner.run(specs, on_event)


# Without Ray ---------------------------------------------------------------------------------------------------------

SHARES = [
    # machines, number asked for: number of runs, cores and GPUs of each
    ([{"CPU": 4}], None, 4, 1, 0),
    ([{"CPU": 2}, {"CPU": 16}], 3, 3, 2, 0),  # no more than the smallest machine has
    ([{"CPU": 64}, {"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 1}], None, 3, 8, 1),  # all on machines with GPUs
    ([{"CPU": 16, "GPU": 2}], 5, 5, 3, 0.33),
]


@pytest.mark.parametrize(("machines", "asked", "count", "cores", "gpus"), SHARES)
def test_runs_share_the_cores_and_gpus_of_a_cluster(
    machines: list[dict[str, float]], asked: int | None, count: int, cores: float, gpus: float
) -> None:
    assert share_of_run(machines, asked or 0) == (count, {"num_cpus": cores, "num_gpus": gpus})


def test_ray_that_is_not_installed_and_what_is_no_address_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for address, told in (("local", r"pip install 'attendrop\[ray\]'"), ("head", "is no address of a cluster")):
        with pytest.raises(AttendropError, match=told):
            RayRunner(tmp_path, address)


def test_a_run_on_a_machine_with_another_disk_is_sent_and_removed_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: Ray
) -> None:
    there, here = tmp_path / "there", tmp_path / "here" / "runs" / "run"
    there.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    spec = RunSpec(tiny.config(folder, method="finetune", max_steps=1), keep_model=True)
    runner = RayRunner(tmp_path, "local")
    (mark,) = (tmp_path / "runs").iterdir()
    mark.unlink()  # as on another disk
    future = runner.submit(spec, here, tmp_path / "steps")
    assert not here.exists() and list(there.iterdir()) == []
    outcome = runner.outcome(future)
    assert outcome["metrics"] == tiny.read_metrics(here)
    assert {"metrics.json", "run.json", "run.yaml", "model.safetensors"} <= {path.name for path in here.iterdir()}
    mark.touch()
    again = run_on_machine(spec, here, tmp_path / "steps", str(tmp_path), mark)  # on the disk of the study
    assert again["metrics"] == outcome["metrics"] and "files" not in again


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Ray(SimpleNamespace):
    """The part of Ray that is used: tasks run here at once; those in ``lost`` end by an error."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    lost: list[Exception]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 9.0}}]

    def init(self, address: str, **options: Any) -> None:
        assert (address, options["include_dashboard"]) == ("local", False)

    def remote(self, **options: Any) -> Callable[..., Any]:
        assert (options["max_retries"], options["num_cpus"], options["num_gpus"]) == (0, 1, 0)
        assert options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"]
        return lambda function: SimpleNamespace(remote=lambda *given: self.task(function, *given))

    def task(self, function: Callable[..., Any], *given: Any) -> Any:
        future = Future[Any]()
        if self.lost:
            future.set_exception(self.lost.pop())
        else:
            future.set_result(function(*pickle.loads(pickle.dumps(given))))
        return SimpleNamespace(future=lambda: future)

    def cancel(self, task: Any, *, force: bool) -> None:
        raise RayError("it is gone")

    def shutdown(self) -> None: ...


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    found = Ray(lost=[])
    monkeypatch.setitem(sys.modules, "ray", found)  # type: ignore[arg-type]
    stock = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *package: name == "ray" or stock(name, *package))
    yield found
    share_results(False)


def test_what_is_lost_is_run_again_four_times_at_most(folder: Path, tmp_path: Path, ray: Ray) -> None:
    specs = [RunSpec(tiny.config(folder, method="finetune", seed=seed, max_steps=1)) for seed in range(2)]
    for losses, errors in ((3, []), (4, ["The run was lost (the machine died)."])):
        ray.lost.extend(RayError("the machine died.\nDetails") for _ in range(losses))
        events: list[Event] = []
        results = perform(specs[:1], tmp_path / str(losses), "ray:local", events.append)
        assert [result.text for result in results if result.text] == errors
        kinds = Counter(event.kind for event in events if event.kind != "warning" or "run again" in event.text)
        assert (kinds["warning"], kinds["finished"]) == (3, 1 - len(errors))
    ray.lost.append(RayTaskError("Traceback\nModuleNotFoundError: No module named 'attendrop'"))
    with pytest.raises(AttendropError, match=r"cannot run attendrop \(ModuleNotFoundError: No module named"):
        perform(specs, tmp_path / "study", "ray:local")


# On clusters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files_of_ray() -> Iterator[None]:
    """A folder for what Ray writes; its sockets need a short path."""
    pytest.importorskip("ray", reason="ray is not installed; pip install 'attendrop[ray]'")
    place = tempfile.mkdtemp(prefix="ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", place)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_worker_niceness", "0")  # by default, its processes hardly run beside others
        yield
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def cluster(files_of_ray: None) -> Iterator[Any]:
    """Two machines with one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_machine_that_is_killed_costs_its_runs_only(folder: Path, tmp_path: Path, cluster: Any) -> None:
    """One of two machines is killed while it trains. All runs end, with the scores of runs on this machine."""
    (second,) = cluster.worker_nodes
    raylet = second.all_processes["raylet"][0].process.pid
    events: list[Event] = []
    killed: list[Path] = []
    finished: dict[Path, int] = {}

    def kill_second_machine(event: Event) -> None:
        """Wait for a run on the second machine that has a checkpoint, when another one is finished."""
        events.append(event)
        place = partial_of(event.folder)
        if event.kind != "progress" or killed or not any(each.kind == "finished" for each in events):
            return
        with suppress(OSError, ValueError, IndexError, psutil.NoSuchProcess):  # the run has just ended
            process = psutil.Process(int((place / ".lock").read_text().split()[1]))  # "process 17 on"
            if process.ppid() == raylet and list(place.glob("checkpoint-*")):
                finished.update({each: each.stat().st_mtime_ns for each in tmp_path.glob("study/runs/*/metrics.json")})
                cluster.remove_node(second, allow_graceful=False)
                killed.append(event.folder)

    specs = [RunSpec(tiny.config(folder, **options)) for options in (SHORT, *LONG)]
    results = perform(specs, tmp_path / "study", f"ray:{cluster.address}", kill_second_machine)
    (lost,) = [event for event in events if "run again" in event.text]
    assert [lost.folder] == killed and lost.text.startswith("The run was lost (")
    assert finished and all(path.stat().st_mtime_ns == time for path, time in finished.items())
    for result, options in zip(results, (SHORT, *LONG), strict=True):
        expected = train(tiny.config(folder, f"alone{options['seed']}", **options))
        assert tiny.scores_of(result.metrics) == tiny.scores_of(expected)
