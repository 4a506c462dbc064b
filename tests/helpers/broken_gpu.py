"""A worker process whose GPU breaks in the run with seed 1."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from attendrop.studies import worker
from attendrop.studies.local_workers import work


def work_until_gpu_breaks(connection: Connection, log: Path) -> None:
    run_unit = worker.run_unit

    def breaking(job: Any, **options: Any) -> Any:
        if job.unit.config.seed == 1:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return run_unit(job, **options)

    worker.run_unit = breaking
    work(connection, log)
