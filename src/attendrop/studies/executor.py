"""Execution of units: each once, whatever fails, in this process, on worker processes or on a Ray cluster."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from attendrop.errors import AttendropError
from attendrop.files.model_files import model_sha256
from attendrop.files.output_files import write_json
from attendrop.methods.core.registry import is_of_this_program
from attendrop.runs.run_folder import locked, number_of_processes, read_metrics
from attendrop.runs.shared_results import forget_results, share_results
from attendrop.studies.local_workers import LocalWorkers
from attendrop.studies.units import RUNS, Event, Job, Result, Unit, check_workers, data_sha256
from attendrop.studies.worker import perform

LOCAL = "local"
RAY = "ray:"
FAILED = "failed.json"
OnEvent = Callable[[Event], None]


class Workers(Protocol):
    """What runs jobs: this process, other processes of this machine, or a Ray cluster."""

    count: int  # of jobs that run at the same time
    attempts: int  # how often a job is run whose process is lost each time

    def start(self, job: Job) -> None:
        """Start a job; there are never more than ``count``."""

    def wait(self, report: OnEvent) -> Event:
        """Wait for the end of a job: ``"finished"``, ``"failed"`` or ``"lost"``; report earlier events."""

    def release(self) -> None:
        """Free what idle processes hold, such as the memory of GPUs; the next job starts them again."""


def run_units(
    units: Iterable[Unit],
    folder: str | Path,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
) -> list[Result]:
    """Run units, each in a folder of its own below ``FOLDER/runs``; a unit that is finished there is not run again.

    A unit that fails is a result with an error, and does not stop the others. A unit whose process is lost is run
    again, from its last checkpoint. Neither the number of workers nor the order of units changes a result, except that
    sums of floats may differ in the last digit with another number of threads.

    Args:
        units: The units. They are taken one by one, when a worker is free, so that a generator may decide by the
            results so far what comes next.
        folder: Folder of the study, which is locked meanwhile.
        workers: Number of worker processes, see :class:`LocalWorkers`; 0 runs the units in this process.
        backend: ``"local"``: processes on this machine; ``"ray:local"``: a Ray cluster that is started here;
            ``"ray:ADDRESS"``: a running one, see :class:`attendrop.studies.ray_workers.RayWorkers`.
        on_event: Called with what happens. An exception that it raises, as Ctrl-C does, stops all workers; run again,
            the units resume from their last checkpoints.

    Returns:
        A result for each unit, in the order of the units.

    Raises:
        AttendropError: Another process runs units in this folder, or the backend is not available.
    """
    with open_runner(folder, workers=workers, backend=backend) as runner:
        return runner.run(units, on_event)


@contextmanager
def open_runner(folder: str | Path, *, workers: int | None = None, backend: str = LOCAL) -> Iterator[Runner]:
    """Start what :func:`run_units` needs, for several calls of :meth:`Runner.run` on the same warm workers."""
    if number_of_processes() > 1:
        raise AttendropError(
            "Comparisons and studies start processes of their own, each for whole runs: start one without torchrun (or "
            "WORLD_SIZE), and set the number of processes by --workers."
        )
    with locked(Path(folder)), _workers(backend, workers) as opened:
        (Path(folder) / RUNS).mkdir(exist_ok=True)
        yield Runner(Path(folder), opened)


class Runner:
    """Units in a study's folder, and the workers that run them."""

    def __init__(self, folder: Path, workers: Workers) -> None:
        self.folder, self._workers = folder, workers
        self.workers = workers.count  # units that run at the same time
        self._digests: dict[str, str] = {}
        self._failed: dict[Path, Result] = {}  # which are not run again, if a search asks for them again

    def place(self, unit: Unit) -> Job:
        """Find the folder of a unit.

        Raises:
            AttendropError: Its data or model changed since the first one; or worker processes do not know its method.
        """
        config = unit.config
        if not isinstance(self._workers, InProcess) and is_of_this_program(config.method):
            raise AttendropError(
                f"Method '{config.method}' is registered in this program, and worker processes do not know it: run in "
                "this one, workers=0, or declare an entry point in its package."
            )
        files = (config.train_file, config.eval_file, config.label_map, config.label_names, config.unlabelled)
        of = (config.task, config.data_dir, *files, config.model)
        digest = data_sha256(config) + model_sha256(config.model)
        if self._digests.setdefault(source := json.dumps(of), digest) != digest:
            changed = config.train_file or config.task
            raise AttendropError(
                f"The data of {changed}, or the model '{config.model}', changed meanwhile, so earlier runs used other "
                "ones. Start again, so that all runs use the same."
            )
        return Job(unit, self.folder / RUNS / unit.folder_name(self._digests[source]))

    def release(self) -> None:
        """Free what idle workers hold; the next units start them again."""
        self._workers.release()

    def run(self, units: Iterable[Unit], on_event: OnEvent = lambda event: None) -> list[Result]:
        """Run units; see :func:`run_units`."""
        asked: list[Job] = []
        results: dict[Path, Result] = {}
        failures: dict[Path, int] = {}
        started: dict[Path, float] = {}
        losses: Counter[Path] = Counter()

        def report(event: Event) -> None:
            job, folder = event.job, event.job.folder
            if event.kind in ("started", "kept") and folder not in failures:
                failures[folder] = _clear_failure(folder)
            if event.kind == "started":
                started.setdefault(folder, time.monotonic())
            if event.kind in ("kept", "finished"):
                event = replace(event, metrics=read_metrics(folder))
                results[folder] = Result(job.unit, folder, event.metrics)
            elif event.kind == "failed":
                seconds = time.monotonic() - started.get(folder, time.monotonic())
                results[folder] = self._failed[folder] = Result(job.unit, folder, None, event.text, seconds)
                _record_failure(event, failures.get(folder, 0) + 1)
            on_event(event)

        def jobs() -> Iterator[Job]:
            begun = set()
            for unit in units:
                job = self.place(unit)
                asked.append(job)
                if job.folder in begun:
                    continue
                begun.add(job.folder)
                if job.folder in self._failed:
                    results[job.folder] = self._failed[job.folder]
                    continue
                try:
                    finished = read_metrics(job.folder) is not None
                except AttendropError as error:  # a file that a crash of the machine left empty
                    report(Event("failed", job, text=f"{error} Or delete it, and start again."))
                    continue
                if finished:
                    report(Event("kept", job))
                else:
                    yield job

        source, again, running = jobs(), deque[Job](), 0
        while True:
            while running < self.workers and (job := again.popleft() if again else next(source, None)) is not None:
                report(Event("started", job))
                self._workers.start(job)
                running += 1
            if not running:
                return [results[job.folder] for job in asked]
            event = self._workers.wait(report)
            running -= 1
            if event.kind == "lost":
                losses[event.job.folder] += 1
                if losses[event.job.folder] < self._workers.attempts:
                    again.append(event.job)
                else:
                    event = replace(event, kind="failed")
            report(event)


class InProcess:
    """This process as the only worker: for debugging, and where processes cannot be started."""

    count = attempts = 1
    _job: Job | None = None

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        forget_results()

    def start(self, job: Job) -> None:
        """Take a job, which :meth:`wait` runs."""
        self._job = job

    def wait(self, report: OnEvent) -> Event:
        """Run the job; see :meth:`Workers.wait`."""
        job, logger = self._job, logging.getLogger("attendrop")
        assert job is not None
        share_results()
        level = logger.level
        logger.setLevel(logging.WARNING)  # what a run says about data and method is the same for all
        try:
            request = json.loads(json.dumps(job.request()))
            message = perform(request, lambda message: report(Event(job=job, **message)))
        finally:
            logger.setLevel(level)
        unusable, event = message.pop("unusable", False), Event(job=job, **message)
        if unusable:
            report(event)
            raise AttendropError(f"This process cannot use its GPU any more ({event.text}); start again.")
        return event

    def release(self) -> None:
        """Forget the results that runs of this process share."""
        forget_results()


def _workers(backend: str, count: int | None) -> AbstractContextManager[Workers]:
    if backend == LOCAL:
        check_workers(count)
        return InProcess() if count == 0 else LocalWorkers(count)
    if not backend.startswith(RAY):
        raise AttendropError(f"There is no backend {backend!r}; use {LOCAL!r}, '{RAY}local' or '{RAY}ADDRESS'.")
    from attendrop.studies.ray_workers import RayWorkers

    return RayWorkers(backend.removeprefix(RAY), count)


# Records of failures -------------------------------------------------------------------------------------------------


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
