"""Runs that a study or a comparison asks for: each once, whatever fails, here, on worker processes or on a Ray cluster.

The time line of a run: its folder is named by the hash of its options and data (:meth:`Runner.folder_of`). If it is
finished there, it is ``kept``: there is no other record. Else a free worker runs it in that folder, from its last
checkpoint. It is then ``finished`` or ``failed``, or its process died: it is submitted again, and fails if that happens
too often.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from attendrop.errors import AttendropError, check_count, machine_failure, one_line
from attendrop.runs.config import DEFAULT_TEST_FRACTION, PATHS, RunConfig, by_content
from attendrop.runs.run_folder import METRICS, locked, number_of_processes, read_json, read_metrics
from attendrop.support.files import first_line, known_sha256, model_sha256, write_bytes, write_json, write_text
from attendrop.wording import counted

RUNS = "runs"
# What an answer calls a run, beside the entries of its ``metrics.json``.
LABEL = "label"
# Files of the answer of a study or a comparison, and the list of the runs from which it can be computed again; in it,
# the only setting of a comparison is called "".
REPORTS = ("answer.md", "answer.json", "answer.csv")
COMPARED = "compared.json"
# The method that others are compared with by default.
REFERENCE = "finetune"
# Begins the label of plain fine-tuning whose texts, unlike those of the other runs, begin with no other columns.
WITHOUT = f"{REFERENCE} without "


def check_number_of_runs(runs: int, owner: str) -> None:
    """Raise AttendropError if a study or a comparison has more runs than any has time for: each takes seconds."""
    if runs > 10_000:
        raise AttendropError(f"{owner} has {runs:,} runs, above the 10,000 that are allowed; divide it.")


def with_evaluation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Hold out a quarter of a training file for scoring, if the options of a run name no evaluation data.

    Raises AttendropError if they say that none are to be held out: methods are compared on such.
    """
    if not options.get("train_file") or options.get("eval_file") or options.get("test_fraction"):
        return dict(options)
    if options.get("test_fraction") == 0:
        raise AttendropError(
            "test-fraction 0 sets no rows aside, and methods are compared on such: give an eval-file, or omit it for "
            f"{DEFAULT_TEST_FRACTION}."
        )
    return {**options, "test_fraction": DEFAULT_TEST_FRACTION}


@dataclass(frozen=True)
class RunSpec:
    """A run that is asked for: training with a method, or a ``baseline`` instead of it; ``output_dir`` is ignored.

    An answer calls it by its ``label``; empty: by its method and options.
    """

    config: RunConfig
    baseline: str | None = None
    keep_model: bool = False
    label: str = ""

    @property
    def method(self) -> str:
        """Name of the method or of the baseline."""
        return self.baseline or self.config.method

    @property
    def options(self) -> dict[str, Any]:
        """All options of the method; a baseline has none."""
        return {} if self.baseline else dict(self.config.options)

    def key(self, data_sha256: str = "") -> str:
        """Hash all options, and the data, see :func:`data_sha256`: SHA-256, in hexadecimal.

        Options that are None are left out, so that a new option of the library changes no older hash; so are, where
        the data's hash is given, the folders of data, and that of a local model, whose content is in it.
        """
        config = self.config.as_dict()
        del config["output_dir"]
        if data_sha256:
            config = by_content(config)
            if Path(self.config.model).is_dir():
                config["model"] = Path(self.config.model).name
        config = {name: value for name, value in config.items() if value is not None}
        content = {"config": config, "baseline": self.baseline, "keep_model": self.keep_model, "data": data_sha256}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """Return what distinguishes the run from others in an answer, by the names of ``metrics.json``."""
        label = {LABEL: self.label} if self.label else {}
        return {"method": self.method, "options": self.options, "seed": self.config.seed} | label


@dataclass(frozen=True)
class Event:
    """What happened to a run; the last event is its result.

    Attributes:
        kind: ``"kept"``: it was finished before.
        metrics: Of ``"finished"`` and ``"kept"``: the ``metrics.json``.
        text: Of ``"warning"`` and ``"failed"``.
        steps, planned_steps: Optimizer steps of ``"progress"``: taken, and planned.
    """

    kind: Literal["kept", "progress", "warning", "finished", "failed"]
    spec: RunSpec
    folder: Path
    metrics: dict[str, Any] | None = None
    text: str = ""
    steps: int = 0
    planned_steps: int = 0

    @property
    def run(self) -> dict[str, Any]:
        """What an answer is made of: the ``metrics.json``, or ``method``, ``options``, ``seed`` and ``error``."""
        if self.metrics is None:
            return {**self.spec.described(), "error": self.text}
        return {**self.metrics, LABEL: self.spec.label} if self.spec.label else self.metrics


def data_sha256(config: RunConfig) -> str:
    """Hash the files of a run's data; not those that are missing, with which the run fails, nor data from the hub."""
    from attendrop.runs.data import data_files

    digests = [known_sha256(path) if path.is_file() else "" for path in data_files(config)]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


LOCAL = "local"
RAY = "ray:"
FAILED = "failed.json"
SECONDS_BETWEEN_CHECKPOINTS = 60.0
SECONDS_BETWEEN_REPORTS = 0.5
_SPAWN = get_context("spawn")
OnEvent = Callable[[Event], None]
# Of a run: its ``metrics``; or its ``error`` with ``details``, the traceback unless it is a user's mistake; or why it
# is ``lost``; and the ``warnings`` of another process.
Outcome = dict[str, Any]


@contextmanager
def open_runner(folder: str | Path, *, workers: int | None = None, backend: str = LOCAL) -> Iterator[Runner]:
    """Lock a study's folder, and yield what performs runs in it: see :meth:`Runner.run`.

    Args:
        folder: Folder of the study; each run has a folder of its own below ``FOLDER/runs``.
        workers: Number of worker processes, see :class:`LocalRunner`; 0: this process.
        backend: ``"local"``: processes on this machine; ``"ray:local"``: a Ray cluster that is started here;
            ``"ray:ADDRESS"``: a running one, see :class:`RayRunner`.

    Raises:
        AttendropError: Another process uses this folder, the backend is not available, or there are too many workers.
    """
    if number_of_processes() > 1:
        raise AttendropError(
            "Comparisons and studies start processes of their own, each for whole runs: start one without torchrun (or "
            "WORLD_SIZE), and set the number of processes by --workers."
        )
    if workers is not None:
        check_count("workers", workers, int(backend != LOCAL))
    if (workers or 0) > (most := max(16, 4 * available_cores())) and backend == LOCAL:
        raise AttendropError(
            f"workers={workers} are too many for {counted(available_cores(), 'core')}: each loads PyTorch and a model; "
            f"give at most {most}, or omit it."
        )
    if backend != LOCAL and not backend.startswith(RAY):
        raise AttendropError(f"There is no backend {backend!r}; use {LOCAL!r}, '{RAY}local' or '{RAY}ADDRESS'.")
    folder, runner = Path(folder), Runner(Path(folder))
    with locked(folder):
        if backend != LOCAL:
            runner = RayRunner(folder, backend.removeprefix(RAY), workers)
        elif workers != 0:
            runner = LocalRunner(folder, workers)
        (folder / RUNS).mkdir(exist_ok=True)
        try:
            yield runner
        finally:
            runner.release()


class Runner:
    """The runs in a study's folder, performed by this process, for debugging; subclasses have other processes."""

    count = 1  # of runs at the same time
    attempts = 1  # how often a run is begun whose process is lost each time

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}

    def folder_of(self, spec: RunSpec) -> Path:
        """Find the folder of a run, such as ``cola-finetune-seed0-1a2b3c4d``; of a long name, the end is kept.

        Raises AttendropError if its data, model or own method changed meanwhile, or worker processes do not know that.
        """
        from attendrop.methods.core.registry import is_of_this_program, own_code_sha256

        config = spec.config
        if type(self) is not Runner and is_of_this_program(config.method):
            raise AttendropError(
                f"Method '{config.method}' is registered in this program, and worker processes do not know it: run in "
                "this one, workers=0, or declare an entry point in its package."
            )
        source = json.dumps([config.task, *(getattr(config, name) for name in PATHS)])
        digest, code = data_sha256(config) + model_sha256(config.model), own_code_sha256(config.regularizer)
        digests = self._digests.setdefault(source, digest), self._digests.setdefault(config.method, code)
        if digests != (digest, code):
            raise AttendropError(
                f"The data of {config.train_file or config.task}, the model '{config.model}', or the code of the "
                f"method '{config.method}' changed meanwhile, so earlier runs used another. Start again, so that all "
                "runs use the same."
            )
        data = config.task or Path(config.train_file or "").stem
        readable = re.sub(r"[^A-Za-z0-9+._-]", "_", f"{data}-{spec.method}-seed{config.seed}")
        # File systems allow 255 bytes, of which the hash and the names of temporary folders need some.
        return self.folder / RUNS / f"{readable[-220:]}-{spec.key(digest + code)[:8]}"

    def run(self, specs: Iterable[RunSpec], on_event: OnEvent = lambda event: None) -> list[Event]:
        """Perform runs; one that is finished in its folder is not run again, and of equal ones, one is run.

        A run that fails does not stop the others; ``FOLDER/failed.json`` has the errors. One whose process is lost is
        run again, from its last checkpoint. Neither the number of workers nor the order of runs changes a result,
        except that sums of floats may differ in the last digit with another number of threads.

        ``on_event`` is called with what happens. An exception that it raises, as Ctrl-C does, stops all workers; asked
        for again, the runs resume from their last checkpoints. Returns the last event of each run, ``"finished"``,
        ``"kept"`` or ``"failed"``, in the order of the specs.
        """
        folders = [(self.folder_of(spec), spec) for spec in specs]
        results: dict[Path, Event] = {}
        attempts: Counter[Path] = Counter()
        running: dict[Future[Outcome], tuple[Path, RunSpec]] = {}
        failures = read_failures(self.folder)

        def end(folder: Path, spec: RunSpec, outcome: Outcome, kind: Any = "finished") -> None:
            before, error = failures.pop(folder.name, None), outcome.get("error")
            if error is not None:
                kind, failures[folder.name] = "failed", {"error": error, "details": outcome.get("details", "")}
            if failures.get(folder.name) != before:
                with suppress(OSError):  # the disk may be full
                    write_json(self.folder / FAILED, failures)
            results[folder] = Event(kind, spec, folder, outcome.get("metrics"), error or "")
            on_event(results[folder])

        todo: deque[tuple[Path, RunSpec]] = deque()
        for folder, spec in dict(folders).items():
            try:
                metrics = read_metrics(folder)
            except AttendropError as error:  # a file that a crash of the machine left empty
                end(folder, spec, {"error": f"{error} Or delete it, and start again."})
                continue
            if metrics is None:
                todo.append((folder, spec))
            else:
                end(folder, spec, {"metrics": metrics}, "kept")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            while todo or running:
                while todo and len(running) < self.count:
                    folder, spec = todo.popleft()
                    self.folder_of(spec)  # its data may have changed meanwhile
                    attempts[folder] += 1
                    running[self.submit(spec, folder, Path(place, folder.name))] = folder, spec
                ended, _ = wait(running, SECONDS_BETWEEN_REPORTS, FIRST_COMPLETED)
                for future in ended:
                    folder, spec = running.pop(future)
                    outcome = self.outcome(future)
                    for text in outcome.get("warnings", ()):
                        on_event(Event("warning", spec, folder, text=text))
                    if "lost" not in outcome:
                        end(folder, spec, outcome)
                    elif attempts[folder] >= self.attempts:
                        end(folder, spec, {"error": outcome["lost"]})
                    else:
                        on_event(Event("warning", spec, folder, text=f"{outcome['lost']} It is run again."))
                        todo.append((folder, spec))
                for folder, spec in running.values():
                    if (file := Path(place, folder.name)).exists():
                        steps, planned = map(int, file.read_text(encoding="ascii").split())
                        file.unlink()
                        on_event(Event("progress", spec, folder, steps=steps, planned_steps=planned))
        return [replace(results[folder], spec=spec) for folder, spec in folders]  # equal ones may have other labels

    def submit(self, spec: RunSpec, folder: Path, steps: Path) -> Future[Outcome]:
        """Start :func:`perform`, of at most ``count`` runs at a time. Here, it has ended when this returns."""
        logger, future = logging.getLogger("attendrop"), Future[Outcome]()
        level = logger.level
        logger.setLevel(logging.WARNING)  # what a run says about data and method is the same for all
        try:
            future.set_result(perform(spec, folder))
        finally:
            logger.setLevel(level)
        return future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a run that has ended, or that it was ``lost``."""
        return future.result()

    def release(self) -> None:
        """Free what processes hold, such as the memory of GPUs, once all runs have ended."""
        from attendrop.runs.data import share_results

        share_results(False)


def read_failures(folder: Path) -> dict[str, dict[str, str]]:
    """Read ``failed.json`` of a study: ``error`` and ``details`` of each failed run, by the name of its folder."""
    try:
        return read_json(folder / FAILED, {}) or {}
    except AttendropError:  # it is for people to read: failed runs are run again when the study is
        return {}


# One run -------------------------------------------------------------------------------------------------------------


def perform(spec: RunSpec, folder: Path, steps: Path | None = None) -> Outcome:
    """Perform a run in this process, from its last checkpoint if there is one; an error is part of the outcome.

    With a file ``steps``, this process is a worker: the file has, at most half a second old, the numbers of optimizer
    steps taken and planned, and the outcome the texts of all ``warnings``.
    """
    from transformers import TrainerCallback

    from attendrop.methods.core.registry import own_code_sha256
    from attendrop.runs.data import share_results
    from attendrop.runs.train import train
    from attendrop.studies.baselines import run_baseline

    class StepReports(TrainerCallback):
        last = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if steps is not None and time.monotonic() - self.last >= SECONDS_BETWEEN_REPORTS:
                self.last = time.monotonic()
                with suppress(OSError):  # of a study on another machine
                    write_text(steps, f"{state.global_step} {state.max_steps}")

    share_results()
    config, outcome = replace(spec.config, output_dir=str(folder)), Outcome()
    told, logger = BufferingHandler(sys.maxsize), logging.getLogger("attendrop")
    told.setLevel(logging.WARNING)
    with ExitStack() as stack:
        if steps is not None:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            logger.addHandler(told)
            stack.callback(logger.removeHandler, told)
        try:
            used = data_sha256(config) + model_sha256(config.model) + own_code_sha256(config.regularizer)
            if re.search("-[0-9a-f]{8}$", folder.name) and not folder.name.endswith(spec.key(used)[:8]):
                raise AttendropError(
                    "The data, the model or the code of the method changed since this run was asked for, or differ on "
                    "this machine; start again."
                )
            if spec.baseline is not None:
                run_baseline(config, spec.baseline, keep_model=spec.keep_model)
            else:
                train(config, resume=True, callbacks=[StepReports()], keep_model=spec.keep_model,
                      checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS)  # fmt: skip
            outcome["metrics"] = read_metrics(folder)
        except AttendropError as error:
            outcome |= {"error": str(error), "details": ""}
        except Exception as error:  # whatever it is, the next run may succeed
            lines = str(error).strip().splitlines()
            text = machine_failure(error) or f"{type(error).__name__}: {lines[0] if lines else ''}"
            outcome |= {"error": one_line(text), "details": traceback.format_exc()}
        if steps is not None:
            outcome["warnings"] = [each.getMessage() for each in told.buffer] + [str(each.message) for each in caught]
    gc.collect()  # trainers refer to themselves
    return outcome


# Worker processes ----------------------------------------------------------------------------------------------------


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_worker(threads: int) -> dict[str, str]:
    """Return the variables that set the threads of all libraries in a process, or the user's ``OMP_NUM_THREADS``."""
    wanted = os.environ.get("OMP_NUM_THREADS", str(threads))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    return {name: os.environ.get(name, wanted) for name in names}


@dataclass
class _Slot:
    """A pool of one process: if it dies, no other one does, and it is known which run it had."""

    environment: Mapping[str, str]
    pool: ProcessPoolExecutor | None = None
    process: BaseProcess | None = None
    future: Future[Outcome] | None = None

    def end(self) -> int:
        """Kill the process, and return its exit code."""
        pool, process, self.pool, self.process, self.future = self.pool, self.process, None, None, None
        if process is not None:
            process.kill()
            process.join()
        if pool is not None:
            pool.shutdown()
        return 0 if process is None else process.exitcode or 0


class LocalRunner(Runner):
    """Worker processes that stay warm between runs, and are killed at the end.

    By default there is one for each GPU, otherwise for each core, 8 at most. A process starts with its first run. It
    has ``cores / count`` threads; with GPUs, process ``i`` has GPU ``i % n``.
    """

    attempts = 2

    def __init__(self, folder: Path, count: int | None = None) -> None:
        import torch

        super().__init__(folder)
        # The GPUs that this process may use, as in CUDA_VISIBLE_DEVICES.
        cores, found = available_cores(), torch.cuda.device_count()
        gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(found)))).split(",")[:found]
        self.count = count or len(gpus) or min(cores, 8)
        threads = threads_of_worker(max(1, cores // self.count))
        devices = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}]
        self.slots = [_Slot(threads | devices[place % len(devices)]) for place in range(self.count)]

    def submit(self, spec: RunSpec, folder: Path, steps: Path) -> Future[Outcome]:
        """Start a run on an idle process."""
        from accelerate.utils import patch_environment  # type: ignore[import-untyped]

        slot = next(slot for slot in self.slots if slot.future is None)
        if slot.process is None or not slot.process.is_alive():
            slot.end()
            main, children = sys.modules["__main__"], set(active_children())
            slot.pool = ProcessPoolExecutor(1, _SPAWN, _begin)
            # multiprocessing would import the caller's script in each process, which fails if it has no main guard.
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                with patch_environment(**slot.environment):
                    slot.pool.submit(int)
            finally:
                sys.modules["__main__"] = main
            (slot.process,) = set(active_children()) - children
        assert slot.pool is not None
        slot.future = slot.pool.submit(perform, spec, folder, steps)
        return slot.future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a run; after an unexpected error, as of a GPU, the next one has a new process."""
        slot = next(slot for slot in self.slots if slot.future is future)
        slot.future = None
        try:
            outcome = future.result()
        except BrokenProcessPool:
            code = slot.end()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return {"lost": f"The worker process {how}."}
        if outcome.get("details"):
            slot.end()
        return outcome

    def release(self) -> None:
        """End the processes, which hold memory; those that are needed later are started again."""
        for slot in self.slots:
            slot.end()


def _begin() -> None:
    def end_with_parent() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    threading.Thread(target=end_with_parent, daemon=True).start()
    with open(os.devnull, "wb") as nothing:
        for number in (1, 2):  # standard output and error, which may be closed
            os.dup2(nothing.fileno(), number)
    import datasets
    import transformers
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())  # one between processes would be left when this one is killed
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()


# Ray -----------------------------------------------------------------------------------------------------------------


class RayRunner(Runner):
    """Tasks on a Ray cluster, which are killed at the end.

    attendrop, the data and the model must be on all machines, under the same paths. A run whose machine is lost is run
    again on another: from its last checkpoint, if the machines share a disk. If they do not, the files of finished runs
    are sent to this machine. The address may be ``"auto"`` for a cluster that Ray finds, or ``"local"`` to start one.

    Raises:
        AttendropError: Ray is not installed, the address is none, or there is no such cluster.
    """

    attempts = 4

    def __init__(self, folder: Path, address: str, count: int | None = None) -> None:
        super().__init__(folder)
        if not re.fullmatch(r"local|auto|[^/]+:\d+", address):
            raise AttendropError(f"--ray {address!r} is no address of a cluster; write HOST:PORT, 'auto' or 'local'.")
        if importlib.util.find_spec("ray") is None:
            raise AttendropError("--ray needs the package ray; run `pip install 'attendrop[ray]'`.")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray's messages, which it prints to stdout
        import ray

        self._tasks: dict[Future[Outcome], tuple[Any, Path]] = {}
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        what = f"There is no Ray cluster at {address!r}"
        if address == "local":
            what = "No Ray cluster can be started here"
            options |= {"num_cpus": available_cores(), "include_dashboard": False}
        try:
            if ":" in address:  # Ray itself would try for many minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
            ray.init(address, **options)
            self.count, share = share_of_run([each["Resources"] for each in ray.nodes() if each["Alive"]], count or 0)
        except (OSError, ValueError, RuntimeError) as error:
            raise AttendropError(f"{what} ({first_line(error)}).") from error
        threads = threads_of_worker(max(1, int(share["num_cpus"])))
        # Machines that find this file share the disk.
        (folder / RUNS).mkdir(exist_ok=True)
        handle, mark = tempfile.mkstemp(prefix=".shared-", dir=folder / RUNS)
        os.close(handle)
        self._mark = Path(mark)
        # The caller decides what happens to a lost run, so Ray does not try again.
        self._task = ray.remote(max_retries=0, runtime_env={"env_vars": threads}, **share)(run_on_machine)

    def release(self) -> None:
        """Cancel what runs, and leave the cluster."""
        import ray

        for task, _folder in self._tasks.values():
            with suppress(Exception):  # it would hide what ends this; tasks end with this process in any case
                ray.cancel(task, force=True)
        ray.shutdown()
        self._mark.unlink(missing_ok=True)

    def submit(self, spec: RunSpec, folder: Path, steps: Path) -> Future[Outcome]:
        """Start a run, as soon as a machine has room for it."""
        task = self._task.remote(spec, folder.absolute(), steps, os.getcwd(), self._mark.absolute())
        future: Future[Outcome] = task.future()
        self._tasks[future] = task, folder
        return future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a run; write its files that are on another disk, ``metrics.json`` last."""
        import ray

        _, folder = self._tasks.pop(future)
        try:
            outcome = future.result()
        except ray.exceptions.RayTaskError as error:  # errors of a run are outcomes
            last = str(error).strip().splitlines()[-1]
            raise AttendropError(f"A machine of the Ray cluster cannot run attendrop ({last}).") from None
        except ray.exceptions.RayError as error:
            return {"lost": f"The run was lost ({first_line(error)})."}
        files = outcome.pop("files", {})
        for name in sorted(files, key=lambda name: name == METRICS):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, files[name])
        return outcome


def share_of_run(machines: Sequence[Mapping[str, float]], asked: int = 0) -> tuple[int, dict[str, float]]:
    """Divide machines with numbers of ``"CPU"`` and ``"GPU"`` among runs; returns their number, and what each gets.

    No run gets more cores than the smallest machine has, so that all machines can take it. If there are GPUs, only
    machines that have some are used. If no number is ``asked``, there is a run for each GPU, otherwise for each core.
    """
    usable = [machine for machine in machines if machine.get("CPU", 0) >= 1]
    usable = [machine for machine in usable if machine.get("GPU", 0) >= 1] or usable
    cores = [int(machine["CPU"]) for machine in usable] or [1]
    gpus = sum(int(machine.get("GPU", 0)) for machine in usable)
    count = asked or gpus or sum(cores)
    share = min(sum(cores) / count, *cores)
    num_cpus = int(share) if share >= 1 else math.floor(100 * share) / 100
    return count, {"num_cpus": num_cpus, "num_gpus": math.floor(100 / math.ceil(count / gpus)) / 100 if gpus else 0}


def run_on_machine(spec: RunSpec, folder: Path, steps: Path, current: str, mark: Path) -> Outcome:
    """Perform a run in this process; paths are relative to the folder ``current``, where it exists.

    If this machine does not have the file ``mark``, the folder of the study is on another disk, even if there is one at
    its path here: the run takes place in a temporary one, and the outcome has all its ``files``.
    """
    with suppress(OSError):
        os.chdir(current)
    if mark.exists():
        return perform(spec, folder, steps)
    with tempfile.TemporaryDirectory(prefix="attendrop-", ignore_cleanup_errors=True) as name:
        place = Path(name, folder.name)
        outcome = perform(spec, place, steps)
        found = [path for path in place.rglob("*") if path.is_file()] if "metrics" in outcome else []
        return outcome | {"files": {str(path.relative_to(place)): path.read_bytes() for path in found}}
