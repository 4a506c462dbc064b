"""Workers of a study: this process, or warm processes of this machine, which run units and tell how they end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from attendrop.errors import AttendropError, machine_failure, one_line
from attendrop.runs.run_folder import read_metrics
from attendrop.studies.units import Unit, available_cores
from attendrop.support.files import write_text

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SECONDS_BETWEEN_REPORTS = 0.5
MOST_WORKERS = 8
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_SPAWN = get_context("spawn")
# Of a unit: its ``metrics``; or its ``error`` with ``details``, the traceback unless it is a user's mistake; or why it
# is ``lost``; and the ``warnings`` of another process.
Outcome = dict[str, Any]


def perform(unit: Unit, folder: Path, steps: Path | None = None) -> Outcome:
    """Run a unit in this process, from its last checkpoint if there is one; an error is part of the outcome.

    The file ``steps`` has, at most half a second old, the numbers of optimizer steps taken and planned.
    """
    from attendrop.runs.result_cache import share_results
    from attendrop.runs.train import train
    from attendrop.studies.baselines import run_baseline

    share_results()
    config = replace(unit.config, output_dir=str(folder))
    try:
        if unit.baseline is not None:
            run_baseline(config, unit.baseline, keep_model=unit.keep_model)
        else:
            train(config, resume=True, callbacks=[step_reports(steps)] if steps else [], keep_model=unit.keep_model,
                  checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS)  # fmt: skip
        return {"metrics": read_metrics(folder)}
    except Exception as error:  # whatever it is, the next unit may succeed
        return failure(error)
    finally:
        gc.collect()  # trainers refer to themselves


def failure(error: Exception) -> Outcome:
    """Describe an error: one line, ``error``, and ``details``, the traceback, unless it is a user's mistake."""
    if isinstance(error, AttendropError):
        return {"error": str(error), "details": ""}
    lines = str(error).strip().splitlines()
    text = machine_failure(error) or f"{type(error).__name__}: {lines[0] if lines else ''}"
    return {"error": one_line(text), "details": traceback.format_exc()}


def step_reports(file: Path) -> Any:
    """Return a callback of the trainer that writes its steps to a file."""
    from transformers import TrainerCallback

    class StepReports(TrainerCallback):
        last = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if time.monotonic() - self.last >= SECONDS_BETWEEN_REPORTS:
                self.last = time.monotonic()
                with suppress(OSError):  # of a study on another machine
                    write_text(file, f"{state.global_step} {state.max_steps}")

    return StepReports()


# Workers -------------------------------------------------------------------------------------------------------------


class Workers:
    """What runs units: this process, for debugging; or, as subclasses, other processes, or a Ray cluster."""

    count = 1  # of units that run at the same time
    attempts = 1  # how often a unit is run whose process is lost each time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def submit(self, unit: Unit, folder: Path, steps: Path) -> Future[Outcome]:
        """Start :func:`perform`, of at most ``count`` units at a time. Here, it has ended when this returns."""
        logger, future = logging.getLogger("attendrop"), Future[Outcome]()
        level = logger.level
        logger.setLevel(logging.WARNING)  # what a run says about data and method is the same for all
        try:
            future.set_result(perform(unit, folder))
        finally:
            logger.setLevel(level)
        return future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a unit that has ended, or that it was ``lost``."""
        return future.result()

    def release(self) -> None:
        """Free what idle processes hold, such as the memory of GPUs; the next unit starts them again."""
        from attendrop.runs.result_cache import forget_results

        forget_results()


@dataclass
class _Slot:
    """A pool of one process: if it dies, no other one does, and it is known which unit it ran."""

    environment: Mapping[str, str]
    log: Path  # of its output, whose last line shows why it died
    pool: ProcessPoolExecutor | None = None
    process: BaseProcess | None = None
    future: Future[Outcome] | None = None

    def start(self) -> None:
        """Start the process with its environment, and without the caller's script.

        multiprocessing would import that script in each process, which fails if it has no main guard.
        """
        main, outer, children = sys.modules["__main__"], dict(os.environ), set(active_children())
        self.pool = ProcessPoolExecutor(1, _SPAWN, _begin, (self.log,))
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ.update(self.environment)
        try:
            self.pool.submit(int)
        finally:
            sys.modules["__main__"] = main
            os.environ.clear()
            os.environ.update(outer)
        (self.process,) = set(active_children()) - children

    def end(self) -> int:
        """Kill the process, and return its exit code."""
        pool, process, self.pool, self.process, self.future = self.pool, self.process, None, None, None
        if process is not None:
            process.kill()
            process.join()
        if pool is not None:
            pool.shutdown()
        return 0 if process is None else process.exitcode or 0


class LocalWorkers(Workers):
    """Worker processes that stay warm between units. Use as a context manager: at its end they are killed.

    By default there is one for each GPU, otherwise for each core, 8 at most. A process starts with its first unit. It
    has ``cores / count`` threads; with GPUs, process ``i`` has GPU ``i % n``.
    """

    attempts = 2

    def __init__(self, count: int | None = None) -> None:
        import torch

        # The GPUs that this process may use, as in CUDA_VISIBLE_DEVICES.
        cores, found = available_cores(), torch.cuda.device_count()
        gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(found)))).split(",")[:found]
        self.count = count or len(gpus) or min(cores, MOST_WORKERS)
        self._logs = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        threads = threads_of_worker(max(1, cores // self.count))
        self.slots = [
            _Slot(
                threads | ({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {}),
                Path(self._logs.name, str(i)),
            )
            for i in range(self.count)
        ]

    def submit(self, unit: Unit, folder: Path, steps: Path) -> Future[Outcome]:
        """Start a unit on an idle process."""
        slot = next(slot for slot in self.slots if slot.future is None)
        if slot.process is None or not slot.process.is_alive():
            slot.end()
            slot.start()
        assert slot.pool is not None
        slot.future = slot.pool.submit(perform_here, unit, folder, steps)
        return slot.future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a unit; after an unexpected error, as of a GPU, the next one has a new process."""
        slot = next(slot for slot in self.slots if slot.future is future)
        slot.future = None
        try:
            outcome = future.result()
        except BrokenProcessPool:
            code = slot.end()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            said = slot.log.read_text(encoding="utf-8", errors="replace").strip() if slot.log.exists() else ""
            return {"lost": f"The worker process {how}{f': {said.splitlines()[-1]}' if said else ''}."}
        if outcome.get("details"):
            slot.end()
        return outcome

    def release(self) -> None:
        """End the processes, which hold memory; those that are needed later are started again."""
        for slot in self.slots:
            slot.end()


def _begin(log: Path) -> None:
    def end_with_parent() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    threading.Thread(target=end_with_parent, daemon=True).start()
    with log.open("wb") as file:
        for number in (1, 2):  # standard output and error, which may be closed
            os.dup2(file.fileno(), number)
    import datasets
    import transformers
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())  # one between processes would be left when this one is killed
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()


def perform_here(unit: Unit, folder: Path, steps: Path) -> Outcome:
    """Run a unit in a worker process, and return the texts of all warnings, too."""
    texts: list[str] = []
    handler, logger, show = logging.Handler(logging.WARNING), logging.getLogger("attendrop"), warnings.showwarning
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    warnings.showwarning = lambda message, *_, **__: texts.append(str(message))
    try:
        return perform(unit, folder, steps) | {"warnings": texts}
    finally:
        logger.removeHandler(handler)
        warnings.showwarning = show


def threads_of_worker(threads: int) -> dict[str, str]:
    """Return the variables that set a process's number of threads, or the user's ``OMP_NUM_THREADS``.

    All libraries get the same number: PyTorch also reads ``MKL_NUM_THREADS``, which takes precedence.
    """
    wanted = os.environ.get(_THREADS[0], str(threads))
    return {name: os.environ.get(name, wanted) for name in _THREADS}
