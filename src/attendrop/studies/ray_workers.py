"""Workers on a Ray cluster, which may lose machines: a task of Ray for each unit."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
import socket
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from attendrop.errors import AttendropError, check_count
from attendrop.runs.run_folder import METRICS
from attendrop.studies.units import Unit, available_cores
from attendrop.studies.workers import Outcome, Workers, perform_here, threads_of_worker
from attendrop.support.files import write_bytes

HERE = "local"
_ADDRESS = re.compile(r"[^/]+:\d+")
_SECONDS_TO_CONNECT = 10.0


class RayWorkers(Workers):
    """Tasks on a Ray cluster. Use as a context manager: at its end they are killed.

    Ray chooses the machine of a task, keeps its process for the next one, and starts a new one for each task on a GPU.
    attendrop, the data and the model must be on all machines, under the same paths. A unit whose machine is lost is run
    again on another: from its last checkpoint, if the machines share a disk. If they do not, the files of finished runs
    are sent to this machine.

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
        self.count = count or 0
        self._tasks: dict[Future[Outcome], tuple[Any, Path]] = {}

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray's messages, which it prints to stdout
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == HERE:
            options |= {"num_cpus": available_cores(), "include_dashboard": False}
        try:
            if self.address not in (HERE, "auto"):  # Ray itself would try for many minutes
                host, _, port = self.address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()
            ray.init(self.address, **options)
            self.count, share = share_of_unit([each["Resources"] for each in ray.nodes() if each["Alive"]], self.count)
        except (OSError, ValueError, RuntimeError) as error:
            here = self.address == HERE
            what = "No Ray cluster can be started here" if here else f"There is no Ray cluster at {self.address!r}"
            raise AttendropError(f"{what} ({_line(error, 0)}).") from error
        threads = threads_of_worker(max(1, int(share["num_cpus"])))
        # The caller decides what happens to a lost unit, so Ray does not try again.
        self._task = ray.remote(max_retries=0, runtime_env={"env_vars": threads}, **share)(run_on_machine)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for task, _folder in self._tasks.values():
            with suppress(Exception):  # it would hide what ends this; tasks end with this process in any case
                ray.cancel(task, force=True)
        ray.shutdown()

    def submit(self, unit: Unit, folder: Path, steps: Path) -> Future[Outcome]:
        """Start a unit, as soon as a machine has room for it."""
        task = self._task.remote(unit, folder.absolute(), steps, os.getcwd())
        future: Future[Outcome] = task.future()
        self._tasks[future] = task, folder
        return future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a unit; write the files of its run that are on another disk, ``metrics.json`` last."""
        import ray

        _, folder = self._tasks.pop(future)
        try:
            outcome = future.result()
        except ray.exceptions.RayTaskError as error:  # errors of a run are outcomes
            raise AttendropError(f"A machine of the Ray cluster cannot run attendrop ({_line(error, -1)}).") from None
        except ray.exceptions.RayError as error:
            return {"lost": f"The run was lost ({_line(error, 0).rstrip('.')})."}
        files = outcome.pop("files", {})
        for name in sorted(files, key=lambda name: name == METRICS):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, files[name])
        return outcome

    def release(self) -> None:
        """Do nothing: Ray ends the processes that it does not need."""


def share_of_unit(machines: Sequence[Mapping[str, float]], asked: int = 0) -> tuple[int, dict[str, float]]:
    """Divide machines with numbers of ``"CPU"`` and ``"GPU"`` among units; returns their number, and what each gets.

    No unit gets more cores than the smallest machine has, so that all machines can run it. If there are GPUs, only
    machines that have some run units. If no number is ``asked``, there is a unit for each GPU, otherwise for each core.
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


def run_on_machine(unit: Unit, folder: Path, steps: Path, current: str) -> Outcome:
    """Run a unit in this process; paths are relative to the folder ``current``, where it exists.

    If this machine does not have the folder of the study, the run takes place in a temporary one, and the outcome has
    all its ``files``.
    """
    with suppress(OSError):
        os.chdir(current)
    if folder.parent.exists():
        return perform_here(unit, folder, steps)
    with tempfile.TemporaryDirectory(prefix="attendrop-", ignore_cleanup_errors=True) as name:
        place = Path(name, folder.name)
        outcome = perform_here(unit, place, steps)
        found = [path for path in place.rglob("*") if path.is_file()] if "metrics" in outcome else []
        return outcome | {"files": {str(path.relative_to(place)): path.read_bytes() for path in found}}


def _line(error: BaseException, number: int) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[number]
