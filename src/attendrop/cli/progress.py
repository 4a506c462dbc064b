"""Progress of training, of passes over rows, and of the runs of a study."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.cli.console import MessageConsole
from attendrop.cli.training_summary import dropped_fraction
from attendrop.runs.run_metrics import epoch_metrics
from attendrop.studies.units import Event, duration
from attendrop.wording import score_text

logger = logging.getLogger(__name__)


# Seconds between lines of progress if stderr is not a terminal.
_SECONDS_BETWEEN_LINES = 30.0


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


class TrainingProgress(TrainerCallback):
    """Progress of training: a bar where stderr is a terminal, and a line at the end of each epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.line = ""

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()
        self.show("training", state.global_step, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.show("training", state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        logs = logs or {}
        if "loss" in logs:
            number = math.ceil(state.epoch or 0)
            metrics = epoch_metrics(state.log_history, number)
            dropped = {name.partition("/")[0]: value for name, value in metrics.items() if name.endswith("/dropped")}
            parts = [f", {dropped_fraction(name.replace('_', '-'), value)}" for name, value in dropped.items()]
            self.line = (
                f"Epoch {number} of {args.num_train_epochs:.0f}: loss {score_text(metrics['loss'])}{''.join(parts)}"
            )
        score = logs.get(args.metric_for_best_model or "")
        ended = float(state.epoch or 0).is_integer() or state.global_step == state.max_steps
        if self.line and (score is not None or (args.eval_strategy == IntervalStrategy.NO and ended)):
            name = (args.metric_for_best_model or "").removeprefix("eval_").replace("_", " ")
            selection = "" if score is None else f", selection {name} {score_text(score)}"
            self.console.print(self.line + selection)
            self.line = ""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()

    def show(self, what: str, done: int, total: int) -> None:
        """Update the bar: what is being done, and how much of it."""
        if not self.console.is_terminal or self.console.quiet:
            return
        if self.bar is None:
            self.bar = _bar(self.console)
            self.bar.add_task(what)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], description=what, completed=done, total=total)


@contextmanager
def row_progress(
    console: Console, *, quiet: bool, what: str = "rows"
) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show the number of processed rows or other items: a bar on a terminal, otherwise an occasional line.

    Yields a function of the number of rows done and of all rows (None if unknown); None if ``quiet``.
    """
    if quiet or console.quiet:
        yield None
        return
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def line(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            console.print(f"{done:,} {what} done" + ("" if total is None else f" of {total:,}"))

    yield line


class StudyProgress:
    """Progress of all units of a study: one line where stderr is a terminal, otherwise a line for each finished run.

    The time left is estimated from the runs that finished, and the finished parts of those that run.
    """

    def __init__(self, console: MessageConsole, units: int = 0, *, quiet: bool = False) -> None:
        self.console, self.units, self.quiet = console, units, quiet
        self.running: dict[Path, float] = {}
        self.ended: dict[Path, str] = {}  # how each run ended: a search asks again for those that it has
        self.start = time.monotonic()
        columns = (TextColumn("runs"), BarColumn(), TextColumn("{task.description}", markup=False))
        self.bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.task = self.bar.add_task("", total=units)
        self.bar.start()

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Count an event, and show it."""
        folder = event.job.folder
        if event.kind in ("finished", "failed", "lost"):
            self.running.pop(folder, None)
        if event.kind in ("finished", "failed") or (event.kind == "kept" and folder not in self.ended):
            self.ended[folder] = event.kind
        match event.kind:
            case "started" | "progress":
                self.ended.pop(folder, None)
                self.running[folder] = event.steps / max(event.planned_steps, 1)
            case "failed":
                logger.warning("%s failed: %s", folder.name, event.text)
            case "lost":
                logger.warning("%s is run again: %s", folder.name, event.text)
            case "warning" if event.text not in self.console.warned:
                self.console.warned.add(event.text)
                logger.warning("%s: %s", folder.name, event.text)
        self._show(event)

    def done(self) -> float:
        """Count the runs that finished or failed, and the parts of those that run."""
        return len(self.ended) - self.count("kept") + sum(self.running.values())

    def count(self, kind: str) -> int:
        """Count the runs that ended so: ``"kept"``, ``"finished"`` or ``"failed"``."""
        return [*self.ended.values()].count(kind)

    def state(self) -> str:
        """Describe the progress, such as "5 of 24, 1 failed, about 3 min left"."""
        ended, kept, failed = len(self.ended), self.count("kept"), self.count("failed")
        text = f"{ended} of {self.units}" + (f", {failed} failed" if failed else "")
        done = self.done()
        if done and ended < self.units:
            left = (self.units - kept - done) * (time.monotonic() - self.start) / done
            text += f", about {duration(left)} left"
        return text

    def plan(self, units: int) -> None:
        """Set the number of different units, once it is known."""
        self.units = units
        self.bar.update(self.task, total=units)

    def _show(self, event: Event) -> None:
        self.bar.update(self.task, completed=self.count("kept") + self.done(), description=self.state())
        if self.bar.disable and event.kind == "finished" and event.metrics is not None and not self.quiet:
            metrics = event.metrics
            score = "-" if metrics.get("score") is None else f"{metrics['metric']} {score_text(metrics['score'])}"
            self.console.print(f"{self.state()}: {event.job.folder.name} {score}")
