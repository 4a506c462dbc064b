"""Units on a Ray cluster, which may lose machines."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attendrop.argument_checks import check_count
from attendrop.errors import AttendropError
from attendrop.output_files import write_text
from attendrop.runs.run_folder import METRICS, read_metrics
from attendrop.runs.shared_results import share_results
from attendrop.studies.units import SECONDS_BETWEEN_CHECKPOINTS, Event, Job
from attendrop.studies.worker_process import perform

HERE = "local"
# How often Ray runs a unit again whose process or machine was lost.
RETRIES = 3


class RayCluster:
    """Ray cluster that runs units as tasks. Use as a context manager.

    attendrop, the data and the model must be on all machines, under the same paths. A unit has one GPU, if the cluster
    has any, and an equal share of the cores. A unit whose machine is lost is run again on another: from its last
    checkpoint, if the machines share a disk. If they do not, the scores are sent to this machine.

    Args:
        address: Address of a cluster, ``"auto"`` for a running one that Ray finds, or ``"local"`` to start one here.
        count: Number of units at the same time; None: one for each GPU, otherwise one for each core.
        checkpoint_seconds: Seconds between the checkpoints of a run.

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

    def __enter__(self) -> Self:
        import ray

        address = None if self.address == HERE else self.address
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
        except (ConnectionError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise AttendropError(f"There is no Ray cluster at {self.address!r} ({reason}).") from error
        cores, gpus = (int(ray.cluster_resources().get(name, 0)) for name in ("CPU", "GPU"))
        self.count = self._asked or gpus or cores
        self._share = {"num_cpus": max(1, cores // self.count), "num_gpus": min(1, gpus)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        import ray

        ray.shutdown()

    def run(self, jobs: Iterator[Job], report: Callable[[Event], None]) -> None:
        """Run jobs as Ray tasks, each taken when there is room for it, until all have finished or failed."""
        import ray

        task = ray.remote(max_retries=RETRIES, **self._share)(run_on_node)
        running: dict[Any, Job] = {}
        while True:
            while len(running) < self.count and (job := next(jobs, None)) is not None:
                report(Event("started", job))
                content = job.unit.as_dict() | {"folder": str(job.folder.absolute())}
                running[task.remote(content | {"checkpoint_seconds": self.checkpoint_seconds})] = job
            if not running:
                return
            for reference in ray.wait(list(running), num_returns=1)[0]:
                job = running.pop(reference)
                try:
                    message = ray.get(reference)
                except ray.exceptions.RayError as error:
                    message = {"kind": "failed", "text": f"Ray lost the run: {str(error).strip().splitlines()[0]}"}
                write_missing(job.folder, message.pop("files", {}))
                metrics = read_metrics(job.folder) if message["kind"] == "finished" else None
                report(Event(job=job, metrics=metrics, **message))


def run_on_node(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job on a machine of the cluster; return the message about its end, with the ``files`` of a finished run."""
    folder = Path(job["folder"])
    if not folder.parent.exists():  # the disk is not shared
        folder = Path(tempfile.gettempdir()) / "attendrop-study" / folder.name
    share_results()
    message = perform(job | {"folder": str(folder)}, lambda report: None)
    if message["kind"] == "finished":
        files = {path.name: path for path in folder.iterdir() if path.suffix in (".json", ".yaml")}
        message["files"] = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return message


def write_missing(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a run that are not here, ``metrics.json`` last."""
    for name in sorted(files, key=lambda name: name == METRICS):
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, files[name])
