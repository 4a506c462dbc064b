"""Worker processes on this machine.

Plain subprocesses that talk JSON lines, because ``multiprocessing`` would import the caller's script again in each of
them: it needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from signal import Signals
from types import TracebackType
from typing import IO, Any, Self

from attendrop.argument_checks import check_count
from attendrop.runs.run_folder import read_metrics
from attendrop.studies.units import SECONDS_BETWEEN_CHECKPOINTS, Event, Job

MOST_WORKERS = 8
# How often a unit is run whose process died each time.
ATTEMPTS = 2
_PROGRAM = "from attendrop.studies.worker_process import main; main()"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
Report = Callable[[Event], None]
Message = dict[str, Any]
Messages = SimpleQueue["tuple[_Worker, Message | None]"]


class LocalWorkers:
    """Worker processes that stay warm between units. Use as a context manager: at its end they are killed.

    A process starts when the first unit is there for it. It has ``cores / count`` threads; with GPUs, process ``i`` has
    GPU ``i % n``.

    Args:
        count: Number of processes; None: one for each GPU, otherwise one for each core, 8 at most.
        checkpoint_seconds: Seconds between the checkpoints of a run.

    Attributes:
        count: Number of processes.
    """

    def __init__(self, count: int | None = None, *, checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS) -> None:
        if count is not None:
            check_count("workers", count)
        cores, gpus = available_cores(), visible_gpus()
        count = count or len(gpus) or min(cores, MOST_WORKERS)
        environment = environment_of_worker(max(1, cores // count))
        self.count = count
        self.checkpoint_seconds = checkpoint_seconds
        self._messages: Messages = SimpleQueue()
        self._idle = [
            _Worker(environment | ({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {}), self._messages)
            for i in range(count)
        ]
        self._all = list(self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def run(self, jobs: Iterator[Job], report: Report) -> None:
        """Run jobs, each taken when a process is free for it, until all have finished or failed.

        A job whose process dies is run again, from its last checkpoint, and fails when that happens again.

        Args:
            jobs: The jobs.
            report: Called with all events, in this thread; an exception that it raises ends everything.
        """
        died: deque[Job] = deque()
        deaths: Counter[Path] = Counter()
        while True:
            while self._idle and (job := died.popleft() if died else next(jobs, None)) is not None:
                report(Event("started", job))
                self._idle.pop(0).begin(job, self.checkpoint_seconds)
            if len(self._idle) == len(self._all):
                return
            worker, message = self._messages.get()
            job, cause = worker.job, worker.cause_of_death() if message is None else ""
            if job is None:  # it died with nothing to do
                continue
            if message is None:
                deaths[job.folder] += 1
                message = {"kind": "failed" if deaths[job.folder] == ATTEMPTS else "lost", "text": cause}
            if message["kind"] == "lost":
                died.append(job)
            if message["kind"] == "finished":
                message["metrics"] = read_metrics(job.folder)
            if message["kind"] in ("lost", "failed", "finished"):
                worker.job = None
                self._idle.append(worker)
            if message.pop("unusable", False):
                worker.kill()
            report(Event(job=job, **message))

    def release(self) -> None:
        """End the processes, which hold memory; those that are needed later are started again."""
        for worker in self._all:
            worker.kill()

    def pid_of(self, job: Job) -> int | None:
        """Return the id of the process that runs a job; None if none does."""
        return next((worker.process.pid for worker in self._all if worker.job == job and worker.process), None)


class _Worker:
    """One process, started when it is first needed, and again if it died."""

    def __init__(self, environment: Mapping[str, str], messages: Messages) -> None:
        self.environment = environment
        self.messages = messages
        self.job: Job | None = None
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[bytes] | None = None

    def begin(self, job: Job, checkpoint_seconds: float) -> None:
        """Start a job."""
        self.job = job
        content = job.unit.as_dict() | {"folder": str(job.folder), "checkpoint_seconds": checkpoint_seconds}
        process = self.process or self._start()
        assert process.stdin is not None
        with suppress(OSError):  # it has just died; the thread that reads its messages reports that
            process.stdin.write(json.dumps(content) + "\n")
            process.stdin.flush()

    def kill(self) -> None:
        """End the process."""
        self.job = None
        process, self.process = self.process, None  # so that the thread that listens to it reports no death
        if process is not None:
            process.kill()
            self._close(process)

    def cause_of_death(self) -> str:
        """Tell how the process ended, and forget it."""
        assert self.process is not None and self.errors is not None
        process, self.process = self.process, None
        process.kill()  # it may live on, if it is its last message that is broken
        code = process.wait()
        how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 2000))
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        self._close(process)
        return f"The worker process {how}{f': {said[-1]}' if said else ''}."

    def _start(self) -> subprocess.Popen[str]:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=dict(self.environment),
            encoding="utf-8",
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        return self.process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with suppress(ValueError):  # a line that was cut, or a pipe that was closed, when it was killed
            for line in process.stdout:
                self.messages.put((self, json.loads(line)))
        if process is self.process:
            self.messages.put((self, None))

    def _close(self, process: subprocess.Popen[str]) -> None:
        assert self.errors is not None
        process.wait()
        with suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        self.errors.close()


def threads_of_worker(threads: int) -> dict[str, str]:
    """Make the variables that give a process a number of threads, or as many as ``OMP_NUM_THREADS`` says here."""
    return dict.fromkeys(_THREADS, os.environ.get(_THREADS[0], str(threads)))


def environment_of_worker(threads: int) -> dict[str, str]:
    """Make the environment of a process: this one's, with a number of threads, and its import path.

    A number of threads that the user has set in ``OMP_NUM_THREADS`` is kept, and holds for all libraries: PyTorch reads
    ``MKL_NUM_THREADS``, too, and that goes first.
    """
    found = threads_of_worker(threads) | os.environ
    return found | {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
