"""Units on a Ray cluster, which may lose machines."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attendrop.argument_checks import check_count
from attendrop.errors import AttendropError
from attendrop.runs.run_folder import read_metrics
from attendrop.studies.local_workers import available_cores, threads_of_worker
from attendrop.studies.ray_machine import RayProcess, write_missing
from attendrop.studies.units import SECONDS_BETWEEN_CHECKPOINTS, Event, Job

HERE = "local"
# How often a unit is run again whose process or machine was lost, and how often in a row a process is started again
# that was lost before it was ready.
RETRIES = 3
_SECONDS_TO_CONNECT = 10.0
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
Report = Callable[[Event], None]


@dataclass(eq=False)
class _Process:
    """Process of the cluster.

    Attributes:
        actor: What Ray calls its handle.
        machine: Name of its machine; empty until it is ready for runs.
        job: What it runs.
    """

    actor: Any
    machine: str = ""
    job: Job | None = None


class RayCluster:
    """Processes on a Ray cluster, which stay warm between units. Use as a context manager: at its end they are killed.

    attendrop, the data and the model must be on all machines, under the same paths. A unit whose machine is lost is run
    again on another: from its last checkpoint, if the machines share a disk. If they do not, the files of finished runs
    are sent to this machine.

    Args:
        address: Address of a cluster, ``"auto"`` for a running one that Ray finds, or ``"local"`` to start one here.
        count: Number of units at the same time; None: one for each GPU, otherwise one for each core.
        checkpoint_seconds: Seconds between the checkpoints of a run.

    Attributes:
        count: Number of units at the same time.

    Raises:
        AttendropError: Ray is not installed, or there is no such cluster.
    """

    def __init__(
        self, address: str, count: int | None = None, *, checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise AttendropError("--ray needs the package ray; run `pip install 'attendrop[ray]'`.")
        if count is not None:
            check_count("workers", count)
        self.address = address
        self.count = count or 1
        self._asked = count
        self.checkpoint_seconds = checkpoint_seconds
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
        self._calls: dict[Any, _Process] = {}  # of methods of processes, which Ray has not answered yet
        self._failed_starts = 0

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray's messages, which it prints to stdout
        import ray

        try:
            _connect(self.address)
            machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        except BaseException:  # Ctrl-C, too
            ray.shutdown()
            raise
        self.count, self._share = share_of_unit(machines, self._asked)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        import ray

        for process in self._processes:
            # Of any kind, for it would hide what ends this. The processes end with this one in any case.
            with suppress(Exception):
                ray.kill(process.actor)
        ray.shutdown()

    def run(self, jobs: Iterator[Job], report: Report) -> None:
        """Run jobs, each taken when there is room for it, until all have finished or failed.

        A job waits until a process is ready: those that are started in place of lost ones may find no machine.

        Args:
            jobs: The jobs.
            report: Called with all events, in this thread; an exception that it raises ends everything.
        """
        import ray

        waiting: deque[Job] = deque()
        losses: Counter[Path] = Counter()
        while True:
            running = [process for process in self._calls.values() if process.job is not None]
            while len(running) + len(waiting) < self.count and (job := next(jobs, None)) is not None:
                waiting.append(job)
            while waiting and self._idle:
                running.append(self._begin(waiting.popleft(), report))
            if not running and not waiting:
                return
            starting = len(self._calls) - len(running)
            for _ in range(len(waiting) - starting):
                self._start_process()
            for call in ray.wait(list(self._calls))[0]:
                process = self._calls.pop(call)
                if process.job is None:
                    self._started(call, process)
                else:
                    waiting.extendleft(self._ended(call, process, process.job, losses, report))

    def release(self) -> None:
        """End the processes that are idle; those that are needed later are started again."""
        for process in self._idle:
            self._forget(process)
        self._idle.clear()

    def _start_process(self) -> None:
        import ray

        process = _Process(ray.remote(RayProcess).options(**self._share).remote())
        self._processes.add(process)
        threads = threads_of_worker(max(1, int(self._share["num_cpus"])))
        self._calls[process.actor.prepare.remote(threads, os.getcwd())] = process

    def _started(self, call: Any, process: _Process) -> None:
        """Take note that a process is ready, or could not be started."""
        import ray

        try:
            process.machine = ray.get(call)
            self._idle.append(process)
            self._failed_starts = 0
        except ray.exceptions.RayError as error:
            self._forget(process)
            if isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False):
                reason = _lines(error)[-1]
                raise AttendropError(f"A machine of the Ray cluster cannot run attendrop ({reason}).") from None
            self._failed_starts += 1
            if self._failed_starts > RETRIES:
                reason = _lines(error)[0]
                raise AttendropError(f"Processes on the Ray cluster die when they start ({reason}).") from None

    def _begin(self, job: Job, report: Report) -> _Process:
        """Run a job on a process that is idle."""
        process = self._idle.pop()
        process.job = job
        report(Event("started", job))
        content = job.unit.as_dict() | {"folder": str(job.folder.absolute())}
        self._calls[process.actor.run.remote(content | {"checkpoint_seconds": self.checkpoint_seconds})] = process
        return process

    def _ended(self, call: Any, process: _Process, job: Job, losses: Counter[Path], report: Report) -> list[Job]:
        """Report the end of a job; return it if it is to be run again."""
        process.job = None
        message = self._answer(call, process)
        if message["kind"] == "lost":
            losses[job.folder] += 1
            message["kind"] = "lost" if losses[job.folder] <= RETRIES else "failed"
        for text in message.pop("warnings", ()):
            report(Event("warning", job, text=text))
        write_missing(job.folder, message.pop("files", {}))
        metrics = read_metrics(job.folder) if message["kind"] == "finished" else None
        report(Event(job=job, metrics=metrics, **message))
        return [job] if message["kind"] == "lost" else []

    def _answer(self, call: Any, process: _Process) -> dict[str, Any]:
        """Return the message about the end of a run."""
        import ray

        try:
            message: dict[str, Any] = ray.get(call)
        except ray.exceptions.RayTaskError as error:  # its files cannot be sent
            self._idle.append(process)
            return {"kind": "failed", "text": _lines(error)[-1], "details": str(error)}
        except ray.exceptions.RayError as error:
            self._forget(process)
            reason = _lines(error)[0].rstrip(".")
            return {"kind": "lost", "text": f"The run was lost on the machine '{process.machine}' ({reason})."}
        if message.pop("unusable", False):
            self._forget(process)
        else:
            self._idle.append(process)
        return message

    def _forget(self, process: _Process) -> None:
        import ray

        self._processes.discard(process)
        with suppress(ray.exceptions.RayError):  # its machine may only have been out of reach
            ray.kill(process.actor)


def share_of_unit(machines: Sequence[Mapping[str, float]], asked: int | None = None) -> tuple[int, dict[str, float]]:
    """Divide a cluster among the units that run at the same time.

    No unit gets more cores than the smallest machine has, so that all machines can run it. If there are GPUs, only
    machines that have some run units.

    Args:
        machines: What each machine has: numbers of ``"CPU"`` and ``"GPU"``.
        asked: Number of units at the same time; None: one for each GPU, otherwise one for each core.

    Returns:
        The number of units at the same time, and what each gets: ``num_cpus`` and ``num_gpus``, which may be fractions.
    """
    usable = [machine for machine in machines if machine.get("CPU", 0) >= 1]
    usable = [machine for machine in usable if machine.get("GPU", 0) >= 1] or usable
    cores = [int(machine["CPU"]) for machine in usable] or [1]
    gpus = sum(int(machine.get("GPU", 0)) for machine in usable)
    count = asked or gpus or sum(cores)
    share = min(sum(cores) / count, *cores)
    num_cpus = int(share) if share >= 1 else math.floor(100 * share) / 100
    num_gpus = math.floor(100 / math.ceil(count / gpus)) / 100 if gpus else 0
    return count, {"num_cpus": num_cpus, "num_gpus": num_gpus}


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]


def _connect(address: str) -> None:
    """Connect this process to a cluster, or start one.

    Raises:
        AttendropError: There is no such cluster.
    """
    import ray
    from ray._private.services import canonicalize_bootstrap_address

    try:
        if address == HERE:
            ray.init(address, num_cpus=available_cores(), include_dashboard=False, **_QUIET)
            return
        found = canonicalize_bootstrap_address(address)  # "auto" stands for one that Ray looks for
        host, _, port = found.rpartition(":")
        # Ray itself would try for many minutes.
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()
        ray.init(found, **_QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        what = "No Ray cluster can be started here" if address == HERE else f"There is no Ray cluster at {address!r}"
        raise AttendropError(f"{what} ({_lines(error)[0]}).") from error
