"""Execution of units: each once, whatever fails, in this process, on worker processes or on a Ray cluster.

The time line of a unit: its folder is named by its options and data (:meth:`Runner.folder_of`). If it is finished
there, it is ``kept``: there is no other record. Else a free worker runs it in that folder, from its last checkpoint. It
is then ``finished`` or ``failed``, or its process died: it is submitted again, and fails if that happens too often.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import locked, number_of_processes, read_json, read_metrics
from attendrop.studies.units import RUNS, Event, Result, Unit, check_workers, data_sha256
from attendrop.studies.workers import SECONDS_BETWEEN_REPORTS, LocalWorkers, Outcome, Workers
from attendrop.support.files import model_sha256, write_json

LOCAL = "local"
RAY = "ray:"
FAILED = "failed.json"
OnEvent = Callable[[Event], None]


@contextmanager
def open_runner(folder: str | Path, *, workers: int | None = None, backend: str = LOCAL) -> Iterator[Runner]:
    """Open a study's folder, which is locked meanwhile, and what runs units in it: see :meth:`Runner.run`.

    Args:
        folder: Folder of the study; each unit has a folder of its own below ``FOLDER/runs``.
        workers: Number of worker processes, see :class:`attendrop.studies.workers.LocalWorkers`; 0: this process.
        backend: ``"local"``: processes on this machine; ``"ray:local"``: a Ray cluster that is started here;
            ``"ray:ADDRESS"``: a running one, see :class:`attendrop.studies.ray_workers.RayWorkers`.

    Raises:
        AttendropError: Another process runs units in this folder, or the backend is not available.
    """
    if number_of_processes() > 1:
        raise AttendropError(
            "Comparisons and studies start processes of their own, each for whole runs: start one without torchrun (or "
            "WORLD_SIZE), and set the number of processes by --workers."
        )
    opened: Workers
    if backend == LOCAL:
        check_workers(workers)
        opened = Workers() if workers == 0 else LocalWorkers(workers)
    elif backend.startswith(RAY):
        from attendrop.studies.ray_workers import RayWorkers

        opened = RayWorkers(backend.removeprefix(RAY), workers)
    else:
        raise AttendropError(f"There is no backend {backend!r}; use {LOCAL!r}, '{RAY}local' or '{RAY}ADDRESS'.")
    with locked(Path(folder)), opened:
        (Path(folder) / RUNS).mkdir(exist_ok=True)
        yield Runner(Path(folder), opened)


class Runner:
    """Units in a study's folder, and the workers that run them."""

    def __init__(self, folder: Path, workers: Workers) -> None:
        self.folder, self.workers = folder, workers
        self._digests: dict[str, str] = {}

    def folder_of(self, unit: Unit) -> Path:
        """Find the folder of a unit.

        Raises:
            AttendropError: Its data or model changed since the first one; or worker processes do not know its method.
        """
        from attendrop.methods.core.registry import is_of_this_program

        config = unit.config
        if type(self.workers) is not Workers and is_of_this_program(config.method):
            raise AttendropError(
                f"Method '{config.method}' is registered in this program, and worker processes do not know it: run in "
                "this one, workers=0, or declare an entry point in its package."
            )
        files = (config.train_file, config.eval_file, config.label_map, config.label_names, config.unlabelled)
        source = json.dumps((config.task, config.data_dir, *files, config.model))
        digest = data_sha256(config) + model_sha256(config.model)
        if self._digests.setdefault(source, digest) != digest:
            raise AttendropError(
                f"The data of {config.train_file or config.task}, or the model '{config.model}', changed meanwhile, so "
                "earlier runs used other ones. Start again, so that all runs use the same."
            )
        return self.folder / RUNS / unit.folder_name(digest)

    def run(self, units: Iterable[Unit], on_event: OnEvent = lambda event: None) -> list[Result]:
        """Run units; one that is finished in its folder is not run again, and of equal ones, one is run.

        A unit that fails is a result with an error, and does not stop the others; ``FOLDER/failed.json`` has the
        errors. A unit whose process is lost is run again, from its last checkpoint. Neither the number of workers nor
        the order of units changes a result, except that sums of floats may differ in the last digit with another
        number of threads.

        Args:
            units: The units.
            on_event: Called with what happens. An exception that it raises, as Ctrl-C does, stops all workers; run
                again, the units resume from their last checkpoints.

        Returns:
            A result for each unit, in the order of the units.
        """
        folders = [(self.folder_of(unit), unit) for unit in units]
        results: dict[Path, Result] = {}
        attempts: Counter[Path] = Counter()
        running: dict[Future[Outcome], tuple[Path, Unit]] = {}
        failures = read_failures(self.folder)

        def end(folder: Path, unit: Unit, outcome: Outcome, kind: Any = "finished") -> None:
            metrics, error = outcome.get("metrics"), outcome.get("error")
            before = failures.pop(folder.name, None)
            if error is not None:
                kind, failures[folder.name] = "failed", {"error": error, "details": outcome.get("details", "")}
            if failures.get(folder.name) != before:
                with suppress(OSError):  # the disk may be full
                    write_json(self.folder / FAILED, failures)
            results[folder] = Result(unit, folder, metrics, error)
            on_event(Event(kind, unit, folder, text=error or "", metrics=metrics))

        todo: deque[tuple[Path, Unit]] = deque()
        for folder, unit in dict(folders).items():
            try:
                metrics = read_metrics(folder)
            except AttendropError as error:  # a file that a crash of the machine left empty
                end(folder, unit, {"error": f"{error} Or delete it, and start again."})
                continue
            if metrics is None:
                todo.append((folder, unit))
            else:
                end(folder, unit, {"metrics": metrics}, "kept")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            while todo or running:
                while todo and len(running) < self.workers.count:
                    folder, unit = todo.popleft()
                    self.folder_of(unit)  # its data may have changed meanwhile
                    attempts[folder] += 1
                    running[self.workers.submit(unit, folder, Path(place, folder.name))] = folder, unit
                ended, _ = wait(running, SECONDS_BETWEEN_REPORTS, FIRST_COMPLETED)
                for future in ended:
                    folder, unit = running.pop(future)
                    outcome = self.workers.outcome(future)
                    for text in outcome.get("warnings", ()):
                        on_event(Event("warning", unit, folder, text=text))
                    if "lost" not in outcome:
                        end(folder, unit, outcome)
                    elif attempts[folder] >= self.workers.attempts:
                        end(folder, unit, {"error": outcome["lost"]})
                    else:
                        on_event(Event("warning", unit, folder, text=f"{outcome['lost']} It is run again."))
                        todo.append((folder, unit))
                for folder, unit in running.values():
                    if (file := Path(place, folder.name)).exists():
                        steps, planned = map(int, file.read_text(encoding="ascii").split())
                        file.unlink()
                        on_event(Event("progress", unit, folder, steps=steps, planned_steps=planned))
        return [results[folder] for folder, _ in folders]


def read_failures(folder: Path) -> dict[str, dict[str, str]]:
    """Read ``failed.json`` of a study: ``error`` and ``details`` of each failed run, by the name of its folder."""
    try:
        return read_json(folder / FAILED, {}) or {}
    except AttendropError:  # it is for people to read: failed runs are run again when the study is
        return {}
