"""Runs on worker processes: each once, whatever fails, and results depend on nothing but the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from helpers import tiny
from helpers.forked import CONTEXT

from attendrop.errors import AttendropError
from attendrop.runs.config import partial_of
from attendrop.runs.train import train
from attendrop.studies import executor
from attendrop.studies.executor import Event, LocalRunner, RunSpec, open_runner, threads_of_worker

PLAIN: dict[str, Any] = {"method": "finetune", "epochs": 1}


def spec(folder: Path, **options: Any) -> RunSpec:
    return RunSpec(tiny.config(folder, **(PLAIN | options)))


def test_runs_are_performed_once_each_and_keep_their_scores_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates, failures, warm workers, order; the scores are those of the single command."""
    monkeypatch.setattr(executor, "_SPAWN", CONTEXT)
    asked = [
        spec(folder, max_steps=1),
        spec(folder, seed=1, method="ad-drop", max_steps=2),
        spec(folder, seed=2, learning_rate=1e25),
        spec(folder, max_steps=1),
        spec(folder, train_file=str(folder / "nowhere.csv")),
    ]
    events: list[Event] = []
    with open_runner(tmp_path / "study", workers=1) as runner:
        results = runner.run(asked, events.append)
        again: list[Event] = []
        reordered = runner.run([asked[1], asked[0]], again.append)
        assert [event.kind for event in again] == ["kept"] * 2
    alone = train(tiny.config(folder, "alone", seed=1, method="ad-drop", epochs=1, max_steps=2))
    assert tiny.scores_of(results[1].metrics) == tiny.scores_of(alone)
    assert [result.folder for result in reordered] == [results[i].folder for i in (1, 0)]
    assert results[3].folder == results[0].folder
    assert [event.kind for event in events].count("finished") == 2
    assert "Training diverged" in results[2].text and "nowhere.csv" in results[4].text
    kept = ["dev_predictions.parquet", "metrics.json", "run.json", "run.yaml"]
    assert sorted(os.listdir(results[0].folder)) == kept


def test_a_number_of_workers_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "available_cores", lambda: 3)
    for count, told in ((-2, "workers=-2 must be a whole number"), (10**6, "too many for 3 cores.* at most 16")):
        with pytest.raises(AttendropError, match=told), open_runner(tmp_path / "study", workers=count):
            pytest.fail("it was opened")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(AttendropError, match="without torchrun"), open_runner(tmp_path / "study"):
        pytest.fail("it was opened")
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_run_only(folder: Path, tmp_path: Path) -> None:
    """The first run is killed once, in mid-training, and goes on; the second one each time, and fails."""
    long, doomed = spec(folder, method="ad-drop", epochs=15), spec(folder, seed=1, epochs=100_000)
    events: list[Event] = []

    def kill(event: Event) -> None:
        events.append(event)
        if event.kind == "progress" and event.steps > 3:
            is_first = not [each for each in events if "run again" in each.text and each.spec is long]
            if event.spec is doomed or is_first:  # the lock of its folder names the process
                lock = (partial_of(event.folder) / ".lock").read_text()  # "process PID on HOST ..."
                os.kill(int(lock.split()[1]), signal.SIGKILL)

    with open_runner(tmp_path / "study", workers=2) as runner:
        results = runner.run([long, doomed, spec(folder)], kill)
    alone = train(tiny.config(folder, "long", method="ad-drop", epochs=15))
    assert tiny.scores_of(results[0].metrics) == tiny.scores_of(alone)
    assert results[1].text == "The worker process was killed by SIGKILL."
    assert results[2].metrics is not None
    told = [event.text for event in events if event.spec is doomed and event.kind in ("warning", "failed")]
    assert told[0] == "The worker process was killed by SIGKILL. It is run again." and told[-1] == results[1].text


PROGRAM = """
import sys
from helpers import tiny
from pathlib import Path
from attendrop.studies.executor import open_runner
from attendrop.studies.executor import RunSpec

def say(event):
    print(event.kind, event.steps, flush=True)

folder = Path(sys.argv[1])
asked = [RunSpec(tiny.config(folder, method="ad-drop", seed=seed, epochs=12)) for seed in range(2)]
with open_runner(sys.argv[2], workers=2) as runner:
    runner.run(asked, say)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(folder: Path, tmp_path: Path, number: int) -> None:
    """The script has no main guard. Asked for again, runs end with the scores of those that nobody killed."""
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
    with open_runner(tmp_path / "study", workers=1) as runner:
        found = runner.run([spec(folder, **each) for each in options])
    expected = [train(tiny.config(folder, f"{number}-{each['seed']}", **each)) for each in options]
    assert [tiny.scores_of(result.metrics) for result in found] == [tiny.scores_of(metrics) for metrics in expected]


@pytest.mark.parametrize("gpus", [["0", "1"], ["GPU-a", "MIG-b"]])
def test_each_worker_has_a_gpu_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(executor, "available_cores", lambda: 7)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    if gpus != ["0", "1"]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(gpus))
    for count, threads, expected in ((None, "3", gpus), (3, "2", [*gpus, gpus[0]])):
        environments = [each.environment for each in LocalRunner(tmp_path, count).slots]
        assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == expected
        assert {each["OMP_NUM_THREADS"] for each in environments} == {threads}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the user's number holds for all libraries
    assert set(threads_of_worker(3).values()) == {"1"}


@pytest.mark.parametrize("details", ["Traceback ...", ""])
def test_after_an_unexpected_error_the_next_run_has_a_new_process(tmp_path: Path, details: str) -> None:
    """As after a failed assertion of a GPU, which ends all further work of its process."""
    killed: list[bool] = []
    process: Any = SimpleNamespace(kill=lambda: killed.append(True), join=lambda: None, exitcode=-9)
    runner = LocalRunner(tmp_path, 1)
    (slot,) = runner.slots
    slot.process, slot.future = process, Future()
    slot.future.set_result({"error": "CUDA error", "details": details})
    assert runner.outcome(slot.future)["error"] == "CUDA error"
    assert bool(killed) == (slot.process is None) == bool(details)


def test_a_run_whose_data_changed_before_it_began_fails(folder: Path, tmp_path: Path) -> None:
    """Its folder is named by the hash of the data, so that it would be kept for them."""
    train_file, _ = tiny.write_data(tmp_path)
    asked = spec(folder, train_file=str(train_file))
    place = executor.Runner(tmp_path).folder_of(asked)
    tiny.write_csv(train_file, ["no", "yes"] * 10)
    assert "changed since this run was asked for" in executor.perform(asked, place)["error"]
    assert not place.exists()


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, steps = spec(folder), tmp_path / "steps"
    seen: list[int] = []

    def write(file: Path, text: str) -> None:
        seen.append(int(text.split()[0]))
        if seen == [1, 2, 3]:
            raise KeyboardInterrupt

    monkeypatch.setattr(executor, "SECONDS_BETWEEN_REPORTS", 0.0)
    monkeypatch.setattr(executor, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(executor, "write_text", write)
    with pytest.raises(KeyboardInterrupt):
        executor.perform(stopped, tmp_path / "run", steps)
    outcome = executor.perform(stopped, tmp_path / "run", steps)
    assert 1 < seen[3] <= 4
    assert tiny.scores_of(outcome["metrics"]) == tiny.scores_of(train(tiny.config(folder, "undisturbed", **PLAIN)))
