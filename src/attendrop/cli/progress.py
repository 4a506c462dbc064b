"""Progress of training, of passes over rows, and of the runs of a study."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.cli.console import MessageConsole
from attendrop.methods.core.registry import get_method
from attendrop.runs.run_metrics import epoch_metrics
from attendrop.studies.units import Event, Unit, duration
from attendrop.wording import score_text

logger = logging.getLogger(__name__)


# Seconds between lines of progress if stderr is not a terminal.
_SECONDS_BETWEEN_LINES = 30.0


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=console.quiet or not console.is_terminal)


class TrainingProgress(TrainerCallback):
    """Progress of training: a bar where stderr is a terminal, and a line at the end of each epoch."""

    def __init__(self, console: Console) -> None:
        self.console, self.line = console, ""
        self.bar = _bar(console)
        self.task = self.bar.add_task("")

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        self.bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Update the bar: what is being done, and how much of it."""
        self.bar.start()
        self.bar.update(self.task, description=what, completed=done, total=total)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.bar.reset(self.task)

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
        """Print the line of an epoch once its loss is logged, and its score, if it is evaluated."""
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
            self.console.print(self.line + ("" if score is None else f", selection {name} {score_text(score)}"))
            self.line = ""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()


def dropped_fraction(method: str, fraction: float) -> str:
    """Format the fraction of its units that a method dropped."""
    return f"{100 * fraction:.1f} % of {get_method(method).info.units} dropped"


@contextmanager
def row_progress(console: Console, *, quiet: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show the number of processed rows: a bar on a terminal, otherwise an occasional line.

    Yields a function of the number of rows done and of all rows (None if unknown); None if ``quiet``.
    """
    if quiet or console.quiet:
        yield None
        return
    last = time.monotonic()
    with _bar(console) as bar:
        task = bar.add_task("rows", total=None)

        def show(done: int, total: int | None) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total)
            if bar.disable and time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                console.print(f"{done:,} rows done" + ("" if total is None else f" of {total:,}"))

        yield show


# Times of a method that was not measured, relative to those that were: the dearest ones take four passes for one.
_UNKNOWN = (1.0, 4.0)
# From this part of a run on, its time is estimated; a second training on all rows may double it.
_MEASURED, _TRAININGS = 0.1, 2.0


class StudyProgress:
    """Progress of all units of a study: one line where stderr is a terminal, otherwise an occasional line.

    The time left follows from finished runs that differ in their seed only; of a method without one, it is a range.
    """

    def __init__(self, console: MessageConsole, units: Sequence[Unit] = (), *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.running: dict[Path, Event] = {}  # with the steps of each
        self.ended: dict[Path, Event] = {}  # how each run ended
        self.began: dict[Path, float] = {}
        self.seconds: dict[str, list[float]] = {}  # of finished runs, by kind
        self.workers = 1
        self.last_line = time.monotonic()
        columns = (TextColumn("runs"), BarColumn(), TextColumn("{task.description}", markup=False))
        self.bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.task = self.bar.add_task("")
        self.plan(units)
        self.bar.start()

    def plan(self, units: Sequence[Unit], more: int = 0) -> None:
        """Set the different units, as far as they are known, and the number of further ones."""
        self.planned = Counter(unit.kind for unit in units)
        self.baselines = {unit.kind for unit in units if unit.baseline is not None}
        self.units = len(units) + more
        self.bar.update(self.task, total=self.units)

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Count an event, and show it."""
        folder = event.job.folder
        if event.kind in ("finished", "failed", "lost"):
            self.running.pop(folder, None)
        if event.kind in ("finished", "failed", "kept"):
            self.ended[folder] = event
        if event.kind in ("finished", "kept") and event.metrics is not None:
            seconds = event.metrics.get("total_seconds", time.monotonic() - self.began.get(folder, time.monotonic()))
            self.seconds.setdefault(event.job.unit.kind, []).append(seconds)
        match event.kind:
            case "started" | "progress":
                self.ended.pop(folder, None)
                self.running[folder] = event
                self.began.setdefault(folder, time.monotonic())
                self.workers = max(self.workers, len(self.running))
            case "failed":
                logger.warning("%s failed: %s", folder.name, event.text)
            case "lost":
                logger.warning("%s is run again: %s", folder.name, event.text)
            case "warning" if event.text not in self.console.warned:
                self.console.warned.add(event.text)
                logger.warning("%s: %s", folder.name, event.text)
        self._show(event)

    def state(self) -> str:
        """Describe the progress, such as "5 of 24, 1 failed, step 30 of 240, about 3 min left"."""
        failed = sum(event.kind == "failed" for event in self.ended.values())
        text = f"{len(self.ended)} of {self.units}" + (f", {failed} failed" if failed else "")
        if planned := sum(event.planned_steps for event in self.running.values()):
            text += f", step {sum(event.steps for event in self.running.values())} of {planned}"
            text += f" of {len(self.running)} runs" if len(self.running) > 1 else ""
        if (left := self.left()) is None or not left[1]:
            return text
        low, high = map(duration, left)
        return f"{text}, about {low} left" if low == high else f"{text}, {low} to {high} left"

    def left(self) -> tuple[float, float] | None:
        """Estimate the seconds until the end, at least and at most; None before there is a measurement."""
        known = {kind: (fmean(seconds), fmean(seconds)) for kind, seconds in self.seconds.items()}
        for folder, event in self.running.items():
            if _part(event) >= _MEASURED and event.job.unit.kind not in known:
                once = (time.monotonic() - self.began[folder]) / _part(event)
                known[event.job.unit.kind] = (once, _TRAININGS * once)
        tuned = [span for kind, span in known.items() if kind not in self.baselines]
        if not tuned:
            return None
        least, most = min(low for low, _ in tuned), max(high for _, high in tuned)
        unknown = (_UNKNOWN[0] * least, _UNKNOWN[1] * most)
        ended = Counter(event.job.unit.kind for event in self.ended.values())
        runs = self.planned - ended
        others = sum((ended - self.planned).values())
        total = [0.0, 0.0]
        for kind, number in (*runs.items(), ("", max(0, self.units - self.planned.total() - others))):
            span = known.get(kind, (0.0, most) if kind in self.baselines else unknown)
            total = [seconds + number * each for seconds, each in zip(total, span, strict=True)]
        for event in self.running.values():
            span = known.get(event.job.unit.kind, (0.0, 0.0))
            total = [max(0.0, seconds - _part(event) * each) for seconds, each in zip(total, span, strict=True)]
        return total[0] / self.workers, total[1] / self.workers

    def _show(self, event: Event) -> None:
        done = len(self.ended) + sum(map(_part, self.running.values()))
        self.bar.update(self.task, completed=done, description=self.state())
        if not self.bar.disable or self.quiet:
            return
        finished = event.metrics if event.kind == "finished" else None
        if finished is None and time.monotonic() - self.last_line < _SECONDS_BETWEEN_LINES:
            return
        self.last_line, text = time.monotonic(), self.state()
        if finished is not None:
            score = "-" if finished.get("score") is None else f"{finished['metric']} {score_text(finished['score'])}"
            text += f": {event.job.folder.name} {score}"
        self.console.print(text)


def _part(event: Event) -> float:
    """Return the part of a run that is done."""
    return event.steps / max(event.planned_steps, 1)
