"""Units on Ray: what needs no Ray, and real clusters, all of them on this machine; `make test-all` installs Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from helpers import tiny
from helpers.command_line import Captured

from attendrop import AttendropError, cli
from attendrop.runs.train import train
from attendrop.studies.executor import run_units
from attendrop.studies.ray_workers import RayWorkers, run_on_machine, share_of_job, write_missing
from attendrop.studies.units import Event, Job, Unit

SHORT: dict[str, Any] = {"method": "finetune", "seed": 9, "epochs": 1}
LONG: list[dict[str, Any]] = [{"method": "ad-drop", "seed": seed, "epochs": 40} for seed in range(2)]
SECONDS_TO_END = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    folder = tmp_path_factory.mktemp("ray")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


# Without Ray ---------------------------------------------------------------------------------------------------------

SHARES = [
    # machines, number asked for: number of units, cores and GPUs of each
    ([{"CPU": 4}], None, 4, 1, 0),
    ([{"CPU": 2}, {"CPU": 16}], 3, 3, 2, 0),  # no more than the smallest machine has
    ([{"CPU": 2}], 4, 4, 0.5, 0),
    ([{"CPU": 64}, {"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 1}], None, 3, 8, 1),  # all on machines with GPUs
    ([{"CPU": 16, "GPU": 2}], 5, 5, 3, 0.33),
    ([{}], None, 1, 1, 0),  # no machine yet
]


@pytest.mark.parametrize(("machines", "asked", "count", "cores", "gpus"), SHARES)
def test_units_share_the_cores_and_gpus_of_a_cluster(
    machines: list[dict[str, float]], asked: int | None, count: int, cores: float, gpus: float
) -> None:
    assert share_of_job(machines, asked) == (count, {"num_cpus": cores, "num_gpus": gpus})


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AttendropError, match=r"pip install 'attendrop\[ray\]'"):
        RayWorkers("local")


@pytest.mark.parametrize("keep_model", [False, True])
def test_a_run_on_a_machine_with_another_disk_is_sent_and_removed_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_model: bool
) -> None:
    there, here = tmp_path / "there", tmp_path / "here" / "runs" / "run"
    there.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    unit = Unit(tiny.config(folder, method="finetune", epochs=1), keep_model=keep_model)
    message = run_on_machine(Job(unit, here).request(60), str(tmp_path))
    assert message["kind"] == "finished"
    assert not here.exists()
    assert list(there.iterdir()) == []
    write_missing(here, message["files"])
    assert tiny.read_metrics(here)["steps"] == 5
    assert {"metrics.json", "run.json", "run.yaml"} <= {path.name for path in here.iterdir()}
    assert (here / "model.safetensors").exists() == keep_model


def test_a_run_on_the_disk_of_the_study_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    unit = Unit(tiny.config(folder, method="finetune", epochs=1))
    run = tmp_path / "runs" / "run"
    run.parent.mkdir()
    message = run_on_machine(Job(unit, run).request(60), str(tmp_path))
    assert message["kind"] == "finished"
    changed = (run / "metrics.json").stat().st_mtime_ns
    write_missing(run, message["files"])
    assert (run / "metrics.json").stat().st_mtime_ns == changed


def test_a_run_that_fails_is_a_message_with_its_error(folder: Path, tmp_path: Path) -> None:
    unit = Unit(tiny.config(folder, method="finetune", learning_rate=1e25))
    message = run_on_machine(Job(unit, tmp_path / "run").request(60), "no such folder")
    assert message["kind"] == "failed"
    assert "Training diverged" in message["text"]
    assert message["files"] == {}


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


def scores(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """What must be equal in runs that are the same."""
    assert metrics is not None
    names = ("method", "seed", "selection_score", "score", "all_scores", "best_epoch", "steps")
    return {name: metrics[name] for name in names} | {"losses": [each["train_loss"] for each in metrics["history"]]}


def processes_of_runs(study: Path) -> dict[Path, psutil.Process]:
    """The processes that run units now, which the locks of the runs name."""
    found = {}
    for lock in (study / "runs").glob("*/.lock"):
        try:
            found[lock.parent] = psutil.Process(json.loads(lock.read_text())["pid"])
        except (OSError, ValueError, psutil.NoSuchProcess):  # it has just ended, or begun
            continue
    return found


def wait_until(condition: Callable[[], Any], done: threading.Event) -> Any:
    """Wait for a condition, or until everything is done."""
    while not (found := condition()) and not done.wait(0.02):
        pass
    return found


@pytest.mark.slow
def test_a_machine_that_is_killed_costs_its_runs_only(folder: Path, tmp_path: Path, cluster: Any) -> None:
    """One of two machines is killed while it trains. All runs end, with the scores of runs on this machine."""
    study = tmp_path / "study"
    (second,) = cluster.worker_nodes
    raylet = second.all_processes["raylet"][0].process.pid
    done = threading.Event()
    killed: list[Path] = []
    finished_before: dict[Path, int] = {}

    def run_to_kill() -> Path | None:
        """The run on the second machine, if it has trained for a while and another one is finished."""
        finished = list(study.glob("runs/*/metrics.json"))
        for run, process in processes_of_runs(study).items() if finished else ():
            if process.ppid() == raylet and list(run.glob("checkpoint-*")):
                return run
        return None

    def kill_second_machine() -> None:
        run = wait_until(run_to_kill, done)
        if run is not None:
            finished_before.update({path: path.stat().st_mtime_ns for path in study.glob("runs/*/metrics.json")})
            cluster.remove_node(second, allow_graceful=False)
            killed.append(run)

    killer = threading.Thread(target=kill_second_machine)
    killer.start()
    events: list[Event] = []
    units = [Unit(tiny.config(folder, **options)) for options in (SHORT, *LONG)]
    try:
        results = run_units(
            units, study, backend=f"ray:{cluster.address}", on_event=events.append, checkpoint_seconds=0.5
        )
    finally:
        done.set()
        killer.join()
    (lost,) = [event for event in events if event.kind == "lost"]
    assert [lost.job.folder] == killed
    assert lost.text.startswith("The run was lost (")
    started = Counter(event.job.folder for event in events if event.kind == "started")
    assert started == {result.folder: 2 if result.folder in killed else 1 for result in results}
    assert finished_before
    assert all(path.stat().st_mtime_ns == time for path, time in finished_before.items())
    for result, options in zip(results, (SHORT, *LONG), strict=True):
        expected = train(tiny.config(folder, f"alone{options['seed']}", **options))
        assert scores(result.metrics) == scores(expected)


PROGRAM = """
import sys
from helpers import tiny
from pathlib import Path
from attendrop.studies.units import Unit
from attendrop.studies.executor import run_units

folder, study, address = sys.argv[1:]
units = [Unit(tiny.config(Path(folder), method="finetune", seed=seed, epochs=100_000)) for seed in range(2)]
run_units(units, study, backend=f"ray:{address}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_runs_end_with_the_process_that_started_them(folder: Path, tmp_path: Path, cluster: Any, number: int) -> None:
    """Interrupted or killed, it leaves no process on the cluster."""
    study, done = tmp_path / "study", threading.Event()
    command = [sys.executable, "-c", PROGRAM, str(folder), str(study), cluster.address]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        watch = threading.Thread(target=lambda: (process.wait(), done.set()))
        watch.start()
        found = wait_until(lambda: len(now := processes_of_runs(study)) == 2 and now, done)
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
        watch.join()
    assert found, said
    _, alive = psutil.wait_procs(found.values(), timeout=SECONDS_TO_END)
    assert not alive
    if number == signal.SIGINT:
        # Python ends by the signal, or with code 1 if Ray evaluated a string after it, at shutdown.
        assert process.returncode in (-number, 1), said
        assert said.splitlines()[-1] == "KeyboardInterrupt", said
    else:
        assert process.returncode == -number, said


@pytest.mark.slow
def test_a_study_on_this_machine_with_a_run_that_fails(
    folder: Path, tmp_path: Path, capsys: Captured, files_of_ray: None
) -> None:
    """`--ray local`: one command starts the cluster, runs the study and leaves no process behind."""
    content = {
        "data": {
            "train_file": str(folder / "train.csv"),
            "eval_file": str(folder / "dev.csv"),
            "label_column": "label",
        },
        "models": str(folder / "model"),
        "methods": ["finetune"],
        "baselines": ["majority"],
        "seeds": 1,
        "run": {"epochs": 1, "learning_rate": [1e-3, 1e25], "max_length": 24, "device": "cpu"},
    }
    content["data"]["text_columns"] = "sentence1,sentence2"
    file, study = tmp_path / "study.yaml", tmp_path / "study"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    command = ["study", str(file), "--output-dir", str(study), "--ray", "local", "--workers", "2", "--json"]
    before = psutil.Process().children()
    assert cli.main(command) == 1
    _, alive = psutil.wait_procs(set(psutil.Process().children()) - set(before), timeout=SECONDS_TO_END)
    assert not alive
    out, err = capsys.readouterr()
    (failed,) = json.loads(out)["failed"]
    assert "Training diverged" in failed["error"]
    assert json.loads((Path(failed["folder"]) / "failed.json").read_text())["attempts"] == 1
    assert "lost" not in err
    assert len(list(study.glob("runs/*/metrics.json"))) == 3


@pytest.mark.slow
def test_a_machine_that_cannot_run_attendrop_is_one_sentence(folder: Path, tmp_path: Path, cluster: Any) -> None:
    broken = tmp_path / "broken" / "attendrop"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import package_that_is_missing", encoding="utf-8")
    path = os.pathsep.join([str(broken.parent), *sys.path])
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
    units = [Unit(tiny.config(folder, method="finetune", seed=seed, epochs=100_000)) for seed in range(3)]
    message = "A machine of the Ray cluster cannot run attendrop .*No module named 'package_that_is_missing'"
    with pytest.raises(AttendropError, match=message):
        run_units(units, tmp_path / "study", backend=f"ray:{cluster.address}")


@pytest.mark.slow
def test_an_address_without_a_cluster_is_one_sentence(files_of_ray: None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(AttendropError, match=f"There is no Ray cluster at '{address}' "), RayWorkers(address):
            pass
    with pytest.raises(AttendropError, match="There is no Ray cluster at 'nowhere' "), RayWorkers("nowhere"):
        pass
