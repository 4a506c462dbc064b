"""Worker of a study: it runs one job after another, and reports their progress and their end."""

from __future__ import annotations

import dataclasses
import gc
import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.errors import AttendropError, machine_failure, one_line
from attendrop.runs.config import RunConfig
from attendrop.runs.run_folder import refuse_if_locked
from attendrop.runs.train import train
from attendrop.studies.baselines import run_baseline
from attendrop.studies.units import SECONDS_BETWEEN_CHECKPOINTS, Job, Unit

_SECONDS_BETWEEN_REPORTS = 0.5
# Maximum time that a worker whose parent was killed may hold the folder of its unit.
_SECONDS_UNTIL_FREE = 20.0
# The entries of an :class:`attendrop.studies.units.Event`, less its job.
Message = dict[str, Any]
Send = Callable[[Message], None]


def run_unit(
    job: Job, *, callbacks: Sequence[TrainerCallback] = (), checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS
) -> dict[str, Any]:
    """Run a unit in this process, from its last checkpoint if there is one; return its ``metrics.json``.

    Raises:
        AttendropError: The run cannot be carried out.
    """
    _wait_until_free(job.folder)
    config = dataclasses.replace(job.unit.config, output_dir=str(job.folder))
    keep_model = job.unit.keep_model
    if job.unit.baseline is not None:
        return run_baseline(config, job.unit.baseline, keep_model=keep_model)
    return train(config, resume=True, callbacks=callbacks, keep_model=keep_model, checkpoint_seconds=checkpoint_seconds)


def _wait_until_free(folder: Path) -> None:
    """Wait for the end of a worker whose parent was killed a moment ago."""
    end = time.monotonic() + _SECONDS_UNTIL_FREE
    while True:
        try:
            return refuse_if_locked(folder)
        except AttendropError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def perform(request: dict[str, Any], send: Send) -> Message:
    """Run a job, and return the message about its end; it says if this process is ``unusable`` from now on.

    Args:
        request: The unit's ``config``, ``baseline`` and ``keep_model``, its ``folder``, and ``checkpoint_seconds``.
        send: Called with messages about its progress.
    """
    try:
        config = RunConfig(**request["config"], output_dir=request["folder"])
        job = Job(Unit(config, request["baseline"], request["keep_model"]), Path(request["folder"]))
        run_unit(job, callbacks=[StepReports(send)], checkpoint_seconds=request["checkpoint_seconds"])
    except Exception as error:  # whatever it is, the next unit may succeed
        return {"kind": "failed", **({"unusable": True} if _breaks_device(error) else {}), **describe(error)}
    finally:
        gc.collect()  # trainers refer to themselves
    return {"kind": "finished"}


@contextmanager
def forwarded_warnings(send: Send) -> Iterator[None]:
    """Send messages about all warnings of this process."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send({"kind": "warning", "text": record.getMessage()})

    logger, handler, show = logging.getLogger("attendrop"), Handler(logging.WARNING), warnings.showwarning
    logger.addHandler(handler)
    warnings.showwarning = lambda message, *_, **__: send({"kind": "warning", "text": str(message)})
    try:
        yield
    finally:
        logger.removeHandler(handler)
        warnings.showwarning = show


class StepReports(TrainerCallback):
    """Send the optimizer steps taken and planned, at most twice a second."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.last = 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if time.monotonic() - self.last >= _SECONDS_BETWEEN_REPORTS:
            self.last = time.monotonic()
            self.send({"kind": "progress", "steps": state.global_step, "planned_steps": state.max_steps})


def describe(error: Exception) -> dict[str, str]:
    """Describe an error: one line of ``text``, and ``details``, the traceback, unless it is a user's mistake."""
    if isinstance(error, AttendropError):
        return {"text": str(error), "details": ""}
    lines = str(error).strip().splitlines()
    text = machine_failure(error) or f"{type(error).__name__}: {lines[0] if lines else ''}"
    return {"text": one_line(text), "details": traceback.format_exc()}


def _breaks_device(error: Exception) -> bool:
    """Return whether this process's GPU is unusable, as after a failed assertion in a kernel."""
    return isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and "CUDA error" in str(error))
