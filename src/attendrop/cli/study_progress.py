"""Progress over the runs of a study, with the time left."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from attendrop.studies.units import Event, duration

logger = logging.getLogger(__name__)


class StudyProgress:
    """Progress of all units of a study: one line where stderr is a terminal, otherwise a line for each finished run.

    The time left is estimated from the runs that finished, and the finished parts of those that run.

    Args:
        console: The console.
        units: Number of different units.
        quiet: Show warnings only.
    """

    def __init__(self, console: Console, units: int, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.units = units
        self.kept = self.finished = self.failed = 0
        self.running: dict[Path, float] = {}
        self.start = time.monotonic()
        self.warned: set[str] = set()
        self.bar: Progress | None = None
        if console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("runs"), BarColumn(), TextColumn("{task.description}"), console=console, transient=True
            )
            self.bar.add_task("", total=units)
            self.bar.start()

    def __call__(self, event: Event) -> None:
        """Count an event, and show it."""
        folder = event.job.folder
        if event.kind in ("finished", "failed", "lost"):
            self.running.pop(folder, None)
        match event.kind:
            case "started" | "progress":
                self.running[folder] = event.steps / max(event.planned_steps, 1)
            case "kept":
                self.kept += 1
            case "finished":
                self.finished += 1
            case "failed":
                self.failed += 1
                logger.warning("%s failed: %s", folder.name, event.text)
            case "lost":
                logger.warning("%s is run again: %s", folder.name, event.text)
            case "warning" if event.text not in self.warned:
                self.warned.add(event.text)
                logger.warning("%s: %s", folder.name, event.text)
        self._show(event)

    def state(self) -> str:
        """Describe the progress, such as "5 of 24, 1 failed, about 3 min left"."""
        ended = self.kept + self.finished + self.failed
        text = f"{ended} of {self.units}" + (f", {self.failed} failed" if self.failed else "")
        done = self.finished + self.failed + sum(self.running.values())
        if done and ended < self.units:
            left = (self.units - self.kept - done) * (time.monotonic() - self.start) / done
            text += f", about {duration(left)} left"
        return text

    def plan(self, units: int) -> None:
        """Set the number of different units, once it is known."""
        self.units = units
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], total=units)

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _show(self, event: Event) -> None:
        if self.bar is not None:
            done = self.kept + self.finished + self.failed + sum(self.running.values())
            self.bar.update(self.bar.task_ids[0], completed=done, description=self.state())
        elif event.kind == "finished" and event.metrics is not None and not self.quiet:
            metrics = event.metrics
            score = "-" if metrics.get("score") is None else f"{metrics['metric']} {metrics['score']:.4f}"
            self.console.print(f"{self.state()}: {event.job.folder.name} {score}", markup=False)
