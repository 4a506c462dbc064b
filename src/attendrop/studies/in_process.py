"""Running of jobs in this process, one after another: for debugging, and where processes cannot be started."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import read_metrics
from attendrop.runs.shared_results import forget_results, share_results
from attendrop.studies.units import SECONDS_BETWEEN_CHECKPOINTS, Event, Job
from attendrop.studies.worker_process import perform


class InProcess:
    """Backend without worker processes.

    Args:
        checkpoint_seconds: Seconds between the checkpoints of a run.

    Attributes:
        count: Number of jobs that run at the same time.
    """

    count = 1

    def __init__(self, *, checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS) -> None:
        self.checkpoint_seconds = checkpoint_seconds

    def run(self, jobs: Iterator[Job], report: Callable[[Event], None]) -> None:
        """Run jobs, each when it is its turn; see :meth:`attendrop.studies.workers.Backend.run`."""
        share_results()
        try:
            for job in jobs:
                self._run(job, report)
        finally:
            forget_results()

    def _run(self, job: Job, report: Callable[[Event], None]) -> None:
        report(Event("started", job))
        content = job.unit.as_dict() | {"folder": str(job.folder), "checkpoint_seconds": self.checkpoint_seconds}
        with _without_announcements():
            message = perform(json.loads(json.dumps(content)), lambda message: report(Event(job=job, **message)))
        unusable = message.pop("unusable", False)
        metrics = read_metrics(job.folder) if message["kind"] == "finished" else None
        report(Event(job=job, metrics=metrics, **message))
        if unusable:
            raise AttendropError(f"This process cannot use its GPU any more ({message['text']}); start again.")

    def release(self) -> None:
        """Do nothing: there are no other processes."""


@contextmanager
def _without_announcements() -> Iterator[None]:
    """Log warnings of a run only, as for worker processes: what it tells of data and method, all runs of a study do."""
    logger = logging.getLogger("attendrop.runs")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
