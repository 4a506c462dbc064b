"""Worker process of a study: runs one unit after another, so that imports are paid for once.

It reads jobs from stdin and writes messages to stdout, JSON lines both. When stdin ends, the process that started it
is gone, and it exits at once.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Run the jobs that come from stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    send = _sender()
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    forward_warnings(send)
    _silence_libraries()
    from attendrop.runs.shared_results import share_results

    share_results()
    while True:
        send(perform(jobs.get(), send))


def perform(job: dict[str, Any], send: Send) -> dict[str, Any]:
    """Run a job, and return the message about its end; it says if the process is ``unusable`` from now on.

    Args:
        job: The unit's ``config``, ``baseline`` and ``keep_model``, its ``folder``, and ``checkpoint_seconds``.
        send: Called with messages about its progress.
    """
    try:
        from attendrop.runs.config import RunConfig
        from attendrop.studies.step_reports import StepReports
        from attendrop.studies.units import Job, Unit, run_unit

        config = RunConfig(**job["config"], output_dir=job["folder"])
        unit = Unit(config, job["baseline"], job["keep_model"])
        callbacks = [StepReports(send)]
        run_unit(Job(unit, Path(job["folder"])), callbacks=callbacks, checkpoint_seconds=job["checkpoint_seconds"])
    except Exception as error:  # whatever it is, the next unit may succeed
        return {"kind": "failed", **({"unusable": True} if _breaks_device(error) else {}), **describe(error)}
    finally:
        gc.collect()  # trainers refer to themselves
    return {"kind": "finished"}


def describe(error: Exception) -> dict[str, str]:
    """Describe an error: one line of ``text``, and ``details``, the traceback, unless it is a user's mistake."""
    from attendrop.errors import AttendropError

    if isinstance(error, AttendropError):
        return {"text": str(error), "details": ""}
    lines = str(error).strip().splitlines()
    return {"text": f"{type(error).__name__}: {lines[0] if lines else ''}", "details": traceback.format_exc()}


def _breaks_device(error: Exception) -> bool:
    """Tell whether nothing more can be computed on this process's GPU, as after a failed assertion of a kernel."""
    import torch

    return isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and "CUDA error" in str(error))


def _sender() -> Send:
    """Make a function that writes messages to stdout, and let everything else that is printed go to stderr."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

    return send


def _receive(jobs: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


def forward_warnings(send: Send) -> None:
    """Send messages about all warnings of this process, from now on."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send({"kind": "warning", "text": record.getMessage()})

    logging.getLogger("attendrop").addHandler(Handler(logging.WARNING))
    warnings.showwarning = lambda message, *_, **__: send({"kind": "warning", "text": str(message)})


def _silence_libraries() -> None:
    """Let stderr hold errors only; its last line tells why a process died."""
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()
