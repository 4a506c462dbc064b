"""Worker processes on this machine: :mod:`multiprocessing` starts them afresh, and a pipe leads to each.

A pool of :mod:`concurrent.futures` ends as a whole when one of its processes dies, and gets no reports of progress.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType

from attendrop.runs.shared_results import share_results
from attendrop.studies.units import Event, Job, available_cores
from attendrop.studies.worker import Message, forwarded_warnings, perform

MOST_WORKERS = 8
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_SPAWN = get_context("spawn")


class LocalWorkers:
    """Worker processes that stay warm between jobs. Use as a context manager: at its end they are killed.

    By default there is one for each GPU, otherwise for each core, 8 at most. A process starts with its first job. It
    has ``cores / count`` threads; with GPUs, process ``i`` has GPU ``i % n``.
    """

    attempts = 2

    def __init__(self, count: int | None = None) -> None:
        cores, gpus = available_cores(), visible_gpus()
        self.count = count or len(gpus) or min(cores, MOST_WORKERS)
        self._logs = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        threads = threads_of_worker(max(1, cores // self.count))
        self._workers = [
            _Worker(
                threads | ({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {}), Path(self._logs.name, str(i))
            )
            for i in range(self.count)
        ]

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._logs.cleanup()

    def start(self, job: Job) -> None:
        """Start a job on an idle process."""
        next(worker for worker in self._workers if worker.job is None).start(job)

    def wait(self, report: Callable[[Event], None]) -> Event:
        """Wait for the end of a job; see :meth:`attendrop.studies.executor.Workers.wait`."""
        while True:
            busy = [worker for worker in self._workers if worker.job is not None]
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection in ready:
                    event = worker.receive()
                    if worker.job is None:
                        return event
                    report(event)

    def release(self) -> None:
        """End the processes, which hold memory; those that are needed later are started again."""
        for worker in self._workers:
            worker.kill()


class _Worker:
    """One process, started when it is first needed, and again if it died."""

    connection: Connection
    process: SpawnProcess | None = None
    job: Job | None = None

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.environment = environment
        self.log = log

    def start(self, job: Job) -> None:
        if self.process is None or not self.process.is_alive():
            self.kill()
            self.connection, other = _SPAWN.Pipe()
            self.process = _SPAWN.Process(target=work, args=(other, self.log))
            with _start_of_process(self.environment):
                self.process.start()
            other.close()  # so that the process has the only one, and its death is the end of the pipe
        self.job = job
        with suppress(OSError):  # it has just died, as `receive` will find
            self.connection.send(job.request())

    def receive(self) -> Event:
        """Receive a message; after the last one of a job, there is none."""
        job = self.job
        assert job is not None
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            message = {"kind": "lost", "text": self._cause_of_death(), "unusable": True}
        if message["kind"] in ("lost", "failed", "finished"):
            self.job = None
        if message.pop("unusable", False):
            self.kill()
        return Event(job=job, **message)

    def kill(self) -> None:
        """End the process."""
        self.job = None
        if self.process is not None and self.process.pid is not None:  # None if Ctrl-C came while it started
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None

    def _cause_of_death(self) -> str:
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self.log.read_text(encoding="utf-8", errors="replace").strip() if self.log.exists() else ""
        return f"The worker process {how}{f': {said.splitlines()[-1]}' if said else ''}."


def work(connection: Connection, log: Path) -> None:
    """Run the jobs from a pipe; output goes to a file, whose last line shows why a process died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with log.open("wb") as file:
        for number in (1, 2):  # standard output and error, which may be closed
            os.dup2(file.fileno(), number)
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            connection.send(message)

    _silence_libraries()
    share_results()
    with forwarded_warnings(send):
        while True:
            send(perform(connection.recv(), send))


def _end_with_parent() -> None:
    """End this process, whatever it does, when the one that started it is gone."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _silence_libraries() -> None:
    """Log only errors to stderr, and give tqdm no lock between processes, which a killed one would keep."""
    import datasets
    import transformers
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()


@contextmanager
def _start_of_process(environment: Mapping[str, str]) -> Iterator[None]:
    """Let a process start with other variables, and without the caller's script.

    multiprocessing would import that script in each process, which fails if it has no main guard.
    """
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in environment}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(environment)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in environment:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def threads_of_worker(threads: int) -> dict[str, str]:
    """Return the variables that set a process's number of threads, or the user's ``OMP_NUM_THREADS``.

    All libraries get the same number: PyTorch also reads ``MKL_NUM_THREADS``, which takes precedence.
    """
    wanted = os.environ.get(_THREADS[0], str(threads))
    return {name: os.environ.get(name, wanted) for name in _THREADS}


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
