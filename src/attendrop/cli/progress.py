"""Progress bars for training and for passes over rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.cli.training_summary import dropped_fraction
from attendrop.runs.run_metrics import epoch_metrics


class TrainingProgress(TrainerCallback):
    """Progress of training: a bar where stderr is a terminal, and a line at the end of each epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.line = ""

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
            self.line = f"Epoch {number} of {args.num_train_epochs:.0f}: loss {metrics['loss']:.4f}{''.join(parts)}"
        score = logs.get(args.metric_for_best_model or "")
        ended = float(state.epoch or 0).is_integer() or state.global_step == state.max_steps
        if self.line and (score is not None or (args.metric_for_best_model is None and ended)):
            name = (args.metric_for_best_model or "").removeprefix("eval_").replace("_", " ")
            self.console.print(
                self.line + (f", selection {name} {score:.4f}" if score is not None else ""), markup=False
            )
            self.line = ""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()

    def show(self, what: str, done: int, total: int) -> None:
        """Update the bar: what is being done, and how much of it."""
        if not self.console.is_terminal or self.console.quiet:
            return
        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.add_task(what)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], description=what, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


# Seconds between lines of progress if stderr is not a terminal.
_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def row_progress(
    console: Console, *, quiet: bool, what: str = "rows"
) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show the number of processed rows, or of other things: a bar on a terminal, otherwise an occasional line.

    Yields a function of the number of rows done and of all rows (None if unknown); None if ``quiet``.
    """
    if quiet or console.quiet:
        yield None
        return
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
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
