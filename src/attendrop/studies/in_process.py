"""Running of jobs in this process, one after another: for debugging, and where processes cannot be started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from attendrop.runs.run_folder import read_metrics
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
        for job in jobs:
            report(Event("started", job))
            content = job.unit.as_dict() | {"folder": str(job.folder), "checkpoint_seconds": self.checkpoint_seconds}

            def send(message: dict[str, Any], job: Job = job) -> None:
                report(Event(job=job, **message))

            message = perform(json.loads(json.dumps(content)), send)
            metrics = read_metrics(job.folder) if message["kind"] == "finished" else None
            report(Event(job=job, metrics=metrics, **message))
