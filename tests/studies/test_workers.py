"""Units on worker processes: each runs once, whatever fails, and results depend on nothing but the unit."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers import tiny
from helpers.broken_gpu import work_until_gpu_breaks
from helpers.forked import CONTEXT

from attendrop.errors import AttendropError
from attendrop.runs.run_file import partial_of
from attendrop.runs.train import train
from attendrop.studies import executor, local_workers, units, worker
from attendrop.studies.executor import open_runner, run_units
from attendrop.studies.local_workers import LocalWorkers, threads_of_worker
from attendrop.studies.units import Event, Unit

PLAIN: dict[str, Any] = {"method": "finetune", "epochs": 1}


def unit(folder: Path, **options: Any) -> Unit:
    return Unit(tiny.config(folder, **(PLAIN | options)))


def process_of(event: Event) -> int:
    """The process that runs a unit, which the lock of its folder names."""
    return int(json.loads((partial_of(event.job.folder) / ".lock").read_text())["pid"])


def test_units_run_once_each_and_keep_their_scores_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates, failures, warm workers, order."""
    monkeypatch.setattr(local_workers, "_SPAWN", CONTEXT)
    asked = [
        unit(folder, max_steps=1),
        unit(folder, seed=1, method="ad-drop", max_steps=2),
        unit(folder, seed=2, learning_rate=1e25),
        unit(folder, max_steps=1),
        unit(folder, train_file=str(folder / "nowhere.csv")),
    ]
    events: list[Event] = []
    with open_runner(tmp_path / "study", workers=1) as runner:
        results = runner.run(asked, events.append)
        again: list[Event] = []
        reordered = runner.run([asked[1], asked[0]], again.append)
        assert [event.kind for event in again] == ["kept"] * 2
        assert runner.run([asked[2]], again.append) == [results[2]] and len(again) == 2  # one that failed, neither
    alone = train(tiny.config(folder, "alone", seed=1, method="ad-drop", epochs=1, max_steps=2))
    assert tiny.scores_of(results[1].metrics) == tiny.scores_of(alone)
    assert [result.folder for result in reordered] == [results[i].folder for i in (1, 0)]
    assert results[3].folder == results[0].folder
    assert [event.kind for event in events].count("finished") == 2
    assert "Training diverged" in str(results[2].error)
    assert "nowhere.csv" in str(results[4].error)
    for i in (2, 4):
        failed = json.loads((results[i].folder / "failed.json").read_text())
        assert (failed["error"], failed["attempts"]) == (results[i].error, 1) and results[i].seconds > 0
    kept = ["dev_predictions.parquet", "metrics.json", "run.json", "run.yaml"]
    assert sorted(os.listdir(results[0].folder)) == kept


def test_units_are_not_shared_by_the_processes_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(AttendropError, match="without torchrun"):
        run_units([], tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_unit_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first unit is killed once, in mid-training, and goes on; the second one each time, and fails."""
    monkeypatch.setattr(units, "SECONDS_BETWEEN_CHECKPOINTS", 0.1)
    long, doomed = unit(folder, method="ad-drop", epochs=15), unit(folder, seed=1, epochs=100_000)
    events: list[Event] = []

    def kill(event: Event) -> None:
        events.append(event)
        if event.kind == "progress" and event.steps > 3:
            is_first = len([e for e in events if e.kind == "lost" and e.job.unit is long]) == 0
            if event.job.unit is doomed or is_first:
                os.kill(process_of(event), signal.SIGKILL)

    with open_runner(tmp_path / "study", workers=2) as runner:
        results = runner.run([long, doomed, unit(folder)], kill)
    assert tiny.scores_of(results[0].metrics) == tiny.scores_of(
        train(tiny.config(folder, "long", method="ad-drop", epochs=15))
    )
    assert results[1].error == "The worker process was killed by SIGKILL."
    assert results[2].metrics is not None
    # A warning tells of a checkpoint that the process was writing when it was killed.
    assert [e.kind for e in events if e.job.unit is doomed and e.kind not in ("progress", "warning")] == [
        *("started", "lost"),
        *("started", "failed"),
    ]


PROGRAM = """
import sys
from helpers import tiny
from pathlib import Path
from attendrop.studies import units
from attendrop.studies.executor import run_units

def say(event):
    print(event.kind, event.steps, flush=True)

folder = Path(sys.argv[1])
units.SECONDS_BETWEEN_CHECKPOINTS = 0.05
asked = [units.Unit(tiny.config(folder, method="ad-drop", seed=seed, epochs=12)) for seed in range(2)]
run_units(asked, sys.argv[2], workers=2, on_event=say)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(folder: Path, tmp_path: Path, number: int) -> None:
    """The script has no main guard. Run again, units end with the scores of runs that nobody killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "study")]
    said = tmp_path / "stderr"
    with (
        said.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        while (line := process.stdout.readline()).split()[:1] != ["progress"]:
            assert line
        workers = psutil.Process(process.pid).children()
        assert len(workers) >= 2
        os.kill(process.pid, number)
        process.stdout.read()
    _, alive = psutil.wait_procs(workers, timeout=60)  # at once, unless the machine is busy
    assert not alive
    if number == signal.SIGINT:
        # Python ends by the signal, or with code 1 if a library evaluated a string after it, at shutdown.
        assert process.returncode in (-number, 1), said.read_text()
        assert said.read_text().splitlines()[-1] == "KeyboardInterrupt"
    else:
        assert process.returncode == -number
    options = [PLAIN | {"method": "ad-drop", "seed": seed, "epochs": 12} for seed in range(2)]
    found = run_units([unit(folder, **each) for each in options], tmp_path / "study", workers=1)
    expected = [train(tiny.config(folder, f"{number}-{each['seed']}", **each)) for each in options]
    assert [tiny.scores_of(result.metrics) for result in found] == [tiny.scores_of(metrics) for metrics in expected]


def test_each_worker_has_a_gpu_and_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "visible_gpus", lambda: ["4", "7"])
    monkeypatch.setattr(local_workers, "available_cores", lambda: 7)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for count, threads, gpus in ((None, "3", ["4", "7"]), (3, "2", ["4", "7", "4"])):
        with LocalWorkers(count) as workers:
            environments = [each.environment for each in workers._workers]
            assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == gpus
            assert {each["OMP_NUM_THREADS"] for each in environments} == {threads}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the user's number holds for all libraries
    assert set(threads_of_worker(3).values()) == {"1"}


@pytest.mark.parametrize(
    ("named", "found"), [(None, ["0", "1"]), ("3,5", ["3", "5"]), ("GPU-a,MIG-b", ["GPU-a", "MIG-b"])]
)
def test_gpus_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, named: str | None, found: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert local_workers.visible_gpus() == found


@pytest.mark.slow
def test_a_worker_whose_gpu_broke_is_started_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "work", work_until_gpu_breaks)
    pids = set()

    def note(event: Event) -> None:
        if event.kind == "progress":
            pids.add(process_of(event))

    results = run_units([unit(folder, seed=seed) for seed in range(3)], tmp_path / "study", workers=1, on_event=note)
    assert [each.error for each in results] == [
        None,
        "AcceleratorError: CUDA error: device-side assert triggered",
        None,
    ]
    assert len(pids) == 2


def test_this_process_ends_a_study_when_its_gpu_broke(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(worker, "run_unit", broken)
    with pytest.raises(AttendropError, match=r"cannot use its GPU any more .*illegal memory access"):
        run_units([unit(folder)], tmp_path / "study", workers=0)


def test_this_process_shows_warnings_of_its_runs_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def performed(request: Any, send: Any) -> dict[str, Any]:
        for package in ("runs.data", "tasks.likeness", "methods.ad_drop_records"):
            logging.getLogger(f"attendrop.{package}").info("held out, as for all runs")
            logging.getLogger(f"attendrop.{package}").warning("of %s", package)
        return {"kind": "failed", "text": "", "details": ""}

    monkeypatch.setattr(executor, "perform", performed)
    with caplog.at_level(logging.INFO, "attendrop"):
        run_units([unit(folder)], tmp_path / "study", workers=0)
        logging.getLogger("attendrop.studies").info("then")
    assert caplog.messages == ["of runs.data", "of tasks.likeness", "of methods.ad_drop_records", "then"]


def test_a_unit_that_was_stopped_goes_on_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    stopped, steps = unit(folder), []

    def stop(event: Event) -> None:
        if event.kind == "progress":
            steps.append(event.steps)
            if event.steps == 3 and len(steps) == 3:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_SECONDS_BETWEEN_REPORTS", 0.0)
        patch.setattr(units, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_units([stopped], tmp_path, workers=0, on_event=stop)
        (result,) = run_units([stopped], tmp_path, workers=0, on_event=stop)
    assert 1 < steps[3] <= 4
    assert tiny.scores_of(result.metrics) == tiny.scores_of(train(tiny.config(folder, "undisturbed", **PLAIN)))
