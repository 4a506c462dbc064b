"""Workers on a Ray cluster, which may lose machines: a task of Ray for each job."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError, check_count
from attendrop.runs.run_folder import METRICS
from attendrop.runs.shared_results import share_results
from attendrop.studies.local_workers import threads_of_worker
from attendrop.studies.units import Event, Job, available_cores
from attendrop.studies.worker import Message, describe, forwarded_warnings, perform
from attendrop.support.files import write_bytes

HERE = "local"
_ADDRESS = re.compile(r"[^/]+:\d+")
_SECONDS_TO_CONNECT = 10.0
# What shows that a run is finished, and how it was run.
_RECORDS = (".json", ".yaml")


class RayWorkers:
    """Tasks on a Ray cluster. Use as a context manager: at its end they are killed.

    Ray chooses the machine of a task, keeps its process for the next one, and starts a new one for each task on a GPU.
    attendrop, the data and the model must be on all machines, under the same paths. A job whose machine is lost is run
    again on another: from its last checkpoint, if the machines share a disk. If they do not, the files of finished runs
    are sent to this machine. There are no reports of progress.

    The address of the cluster may be ``"auto"`` for a running one that Ray finds, or ``"local"`` to start one here.

    Raises:
        AttendropError: Ray is not installed, the address is none, or there is no such cluster.
    """

    attempts = 4

    def __init__(self, address: str, count: int | None = None) -> None:
        if address not in (HERE, "auto") and not _ADDRESS.fullmatch(address):
            raise AttendropError(f"--ray {address!r} is no address of a cluster; write HOST:PORT, 'auto' or 'local'.")
        if importlib.util.find_spec("ray") is None:
            raise AttendropError("--ray needs the package ray; run `pip install 'attendrop[ray]'`.")
        if count is not None:
            check_count("workers", count)
        self.address = address
        self.count = count or 1
        self._asked = count
        self._running: dict[Any, Job] = {}  # by the reference of the task

    def __enter__(self) -> RayWorkers:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray's messages, which it prints to stdout
        import ray

        try:
            _connect(self.address)
            machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        except BaseException:  # Ctrl-C, too
            ray.shutdown()
            raise
        self.count, share = share_of_job(machines, self._asked)
        threads = threads_of_worker(max(1, int(share["num_cpus"])))
        # The caller decides what happens to a lost job, so Ray does not try again.
        self._task = ray.remote(max_retries=0, runtime_env={"env_vars": threads}, **share)(run_on_machine)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for task in self._running:
            with suppress(Exception):  # it would hide what ends this; tasks end with this process in any case
                ray.cancel(task, force=True)
        ray.shutdown()

    def start(self, job: Job) -> None:
        """Start a job, as soon as a machine has room for it."""
        request = job.request() | {"folder": str(job.folder.absolute())}
        self._running[self._task.remote(request, os.getcwd())] = job

    def wait(self, report: Callable[[Event], None]) -> Event:
        """Wait for the end of a job; see :meth:`attendrop.studies.executor.Workers.wait`."""
        import ray

        (ended,), _ = ray.wait(list(self._running), num_returns=1)
        job = self._running.pop(ended)
        try:
            message: Message = ray.get(ended)
        except ray.exceptions.RayTaskError as error:  # errors of a run are messages
            raise AttendropError(f"A machine of the Ray cluster cannot run attendrop ({_lines(error)[-1]}).") from None
        except ray.exceptions.RayError as error:
            return Event("lost", job, text=f"The run was lost ({_lines(error)[0].rstrip('.')}).")
        for text in message.pop("warnings"):
            report(Event("warning", job, text=text))
        write_missing(job.folder, message.pop("files"))
        message.pop("unusable", None)  # the next task on a GPU has another process
        return Event(job=job, **message)

    def release(self) -> None:
        """Do nothing: Ray ends the processes that it does not need."""


def share_of_job(machines: Sequence[Mapping[str, float]], asked: int | None = None) -> tuple[int, dict[str, float]]:
    """Divide machines with numbers of ``"CPU"`` and ``"GPU"`` among the jobs that run at the same time.

    No job gets more cores than the smallest machine has, so that all machines can run it. If there are GPUs, only
    machines that have some run jobs. If no number is ``asked``, there is a job for each GPU, otherwise for each core.

    Returns:
        The number of jobs at the same time, and what each gets: ``num_cpus`` and ``num_gpus``, which may be fractions.
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


def run_on_machine(request: dict[str, Any], current: str) -> Message:
    """Run a job in this process, and return the message about its end, with its ``warnings`` and ``files``.

    If this machine does not have the folder of the study, the run takes place in a temporary one, and all files of a
    finished run are sent. Paths are relative to the folder ``current``, where it exists.
    """
    warned: list[str] = []
    with suppress(OSError):
        os.chdir(current)
    share_results()
    folder = Path(request["folder"])
    shared = folder.parent.exists()
    if not shared:
        name = hashlib.sha256(request["folder"].encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"attendrop-{name}" / folder.name
        if folder.parent.is_symlink():  # all users of the machine may write there
            error = AttendropError(f"'{folder.parent}', in which the run is to take place, is a link; delete it.")
            return {"kind": "failed", **describe(error), "warnings": [], "files": {}}
        folder.parent.mkdir(mode=0o700, exist_ok=True)
    files: dict[str, bytes] = {}
    with forwarded_warnings(lambda message: warned.append(message["text"])):
        message = perform(request | {"folder": str(folder)}, lambda report: None)
    if message["kind"] == "finished":
        try:
            found = [path for path in folder.rglob("*") if path.is_file() and (not shared or path.suffix in _RECORDS)]
            files = {str(path.relative_to(folder)): path.read_bytes() for path in found}
        except OSError as error:
            message = {"kind": "failed", **describe(error)}
        if not shared:
            shutil.rmtree(folder.parent, ignore_errors=True)
    return message | {"warnings": warned, "files": files}


def write_missing(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run that are not here, ``metrics.json`` last: then it is finished."""
    for name in sorted(files, key=lambda name: name == METRICS):
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, files[name])


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]


def _connect(address: str) -> None:
    """Connect this process to a cluster, or start one."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == HERE:
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    try:
        if address not in (HERE, "auto"):  # Ray itself would try for many minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()
        ray.init(address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        what = "No Ray cluster can be started here" if address == HERE else f"There is no Ray cluster at {address!r}"
        raise AttendropError(f"{what} ({_lines(error)[0]}).") from error
