"""Running of units: each once, on worker processes or a Ray cluster, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from attendrop.errors import AttendropError
from attendrop.output_files import write_json
from attendrop.runs.folder_lock import locked
from attendrop.runs.run_folder import read_metrics
from attendrop.studies.in_process import InProcess
from attendrop.studies.local_workers import LocalWorkers
from attendrop.studies.units import RUNS, SECONDS_BETWEEN_CHECKPOINTS, Event, Job, Result, Unit, data_sha256

LOCAL = "local"
RAY = "ray:"
FAILED = "failed.json"
OnEvent = Callable[[Event], None]


class Backend(Protocol):
    """What runs jobs: processes here, or other machines.

    Attributes:
        count: Number of jobs that it runs at the same time.
    """

    count: int

    def run(self, jobs: Iterator[Job], report: OnEvent) -> None:
        """Run jobs, each taken when there is room for it, until all have finished or failed."""

    def release(self) -> None:
        """Free what processes hold while no job runs, such as the memory of GPUs."""


def run_units(
    units: Iterable[Unit],
    folder: str | Path,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
    checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS,
) -> list[Result]:
    """Run units, each in a folder of its own below ``FOLDER/runs``; a unit that is finished there is not run again.

    A unit that fails is a result with an error, and never the end of the others. Neither the number of workers nor
    the order of units changes a result, except that sums of floats may differ in the last digit with another number
    of threads.

    Args:
        units: The units. They are taken one by one, when a worker is free, so that a generator may decide by the
            results so far what comes next.
        folder: Folder of the study, which is locked meanwhile.
        workers: Number of worker processes, see :class:`LocalWorkers`; 0 runs the units in this process.
        backend: ``"local"``: processes on this machine; ``"ray:local"``: a Ray cluster that is started here;
            ``"ray:ADDRESS"``: a running one, see :class:`attendrop.studies.ray_backend.RayCluster`.
        on_event: Called with what happens. An exception that it raises, as Ctrl-C does, stops all workers; run again,
            the units resume from their last checkpoints.
        checkpoint_seconds: Seconds between the checkpoints of a run.

    Returns:
        A result for each unit, in the order of the units.

    Raises:
        AttendropError: Another process runs units in this folder, or the backend is not available.
    """
    with open_runner(folder, workers=workers, backend=backend, checkpoint_seconds=checkpoint_seconds) as runner:
        return runner.run(units, on_event)


@contextmanager
def open_runner(
    folder: str | Path,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS,
) -> Iterator[Runner]:
    """Start what :func:`run_units` needs, for several calls of :meth:`Runner.run` on the same warm workers."""
    with locked(Path(folder)), _backend(backend, workers, checkpoint_seconds) as opened:
        (Path(folder) / RUNS).mkdir(exist_ok=True)
        yield Runner(Path(folder), opened)


class Runner:
    """Units in one folder, run by one backend.

    Attributes:
        folder: Folder of the study.
    """

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.folder = folder
        self._backend = backend
        self._digests: dict[str, str] = {}

    @property
    def workers(self) -> int:
        """Number of units that run at the same time."""
        return self._backend.count

    def place(self, unit: Unit) -> Job:
        """Find the folder of a unit."""
        config = unit.config
        source = json.dumps([config.task, config.data_dir, config.train_file, config.eval_file])
        if source not in self._digests:
            self._digests[source] = data_sha256(config)
        return Job(unit, self.folder / RUNS / unit.folder_name(unit.key(self._digests[source])))

    def release(self) -> None:
        """Free what idle workers hold; the next units start them again."""
        self._backend.release()

    def run(self, units: Iterable[Unit], on_event: OnEvent = lambda event: None) -> list[Result]:
        """Run units; see :func:`run_units`."""
        asked: list[Job] = []
        results: dict[Path, Result] = {}
        attempts: dict[Path, int] = {}

        def report(event: Event) -> None:
            job = event.job
            if event.kind == "started" and job.folder not in attempts:
                attempts[job.folder] = _clear_failure(job.folder) + 1
            elif event.kind in ("kept", "finished"):
                results[job.folder] = Result(job.unit, job.folder, event.metrics)
            elif event.kind == "failed":
                results[job.folder] = Result(job.unit, job.folder, None, event.text)
                _record_failure(event, attempts.get(job.folder, 1))
            on_event(event)

        def jobs() -> Iterator[Job]:
            begun = set()
            for unit in units:
                job = self.place(unit)
                asked.append(job)
                if job.folder in begun:
                    continue
                begun.add(job.folder)
                metrics = read_metrics(job.folder)
                if metrics is None:
                    yield job
                else:
                    report(Event("kept", job, metrics=metrics))

        self._backend.run(jobs(), report)
        return [results[job.folder] for job in asked]


def read_failure(folder: Path) -> dict[str, Any] | None:
    """Read a run's ``failed.json``: ``error`` and ``attempts``; None if there is none."""
    try:
        content = json.loads((folder / FAILED).read_text(encoding="utf-8"))
        return {"error": str(content["error"]), "attempts": int(content["attempts"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _clear_failure(folder: Path) -> int:
    """Delete ``failed.json``; return how often the unit had failed."""
    failure = read_failure(folder)
    with suppress(OSError):
        (folder / FAILED).unlink()
    return failure["attempts"] if failure else 0


def _record_failure(event: Event, attempts: int) -> None:
    """Write ``failed.json``, for people to read: the unit is run again when the study is."""
    with suppress(OSError):  # the disk may be full
        event.job.folder.mkdir(parents=True, exist_ok=True)
        content = {"error": event.text, "attempts": attempts, "details": event.details}
        write_json(event.job.folder / FAILED, content)


def _backend(name: str, workers: int | None, checkpoint_seconds: float) -> AbstractContextManager[Backend]:
    if name == LOCAL and workers == 0:
        return nullcontext(InProcess(checkpoint_seconds=checkpoint_seconds))
    if name == LOCAL:
        return LocalWorkers(workers, checkpoint_seconds=checkpoint_seconds)
    if not name.startswith(RAY):
        raise AttendropError(f"There is no backend {name!r}; use {LOCAL!r}, '{RAY}local' or '{RAY}ADDRESS'.")
    from attendrop.studies.ray_backend import RayCluster

    return RayCluster(name.removeprefix(RAY), workers, checkpoint_seconds=checkpoint_seconds)
