"""Progress of training, and of the runs of a study."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.cli.app import PlainConsole
from attendrop.methods.core.registry import get_method
from attendrop.runs.run_trainer import epoch_metrics
from attendrop.studies.executor import Event
from attendrop.wording import score_text

logger = logging.getLogger(__name__)


class TrainingProgress(TrainerCallback):
    """Progress of training: a bar where stderr is a terminal, and a line at the end of each epoch."""

    def __init__(self, console: Console) -> None:
        self.console, self.line = console, ""
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=console.quiet or not console.is_terminal)
        self.task = self.bar.add_task("")

    def close(self, *_: Any, **__: Any) -> None:
        """Remove the bar, also after an exception."""
        self.bar.stop()

    on_train_end = close

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.bar.start()
        self.bar.update(self.task, completed=state.global_step, total=state.max_steps)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the line of an epoch once its loss is logged, and its score, if it is evaluated."""
        logs = logs or {}
        if "loss" in logs:
            number = math.ceil(state.epoch or 0)
            metrics = epoch_metrics(state.log_history, number)
            dropped = {name.partition("/")[0]: value for name, value in metrics.items() if name.endswith("/dropped")}
            parts = [f", {dropped_fraction(name.replace('_', '-'), value)}" for name, value in dropped.items()]
            epoch = f"Epoch {number} of {args.num_train_epochs:.0f}"
            self.line = f"{epoch}: loss {score_text(metrics['loss'])}{''.join(parts)}"
        score = logs.get(args.metric_for_best_model or "")
        ended = float(state.epoch or 0).is_integer() or state.global_step == state.max_steps
        if self.line and (score is not None or (args.eval_strategy == IntervalStrategy.NO and ended)):
            name = (args.metric_for_best_model or "").removeprefix("eval_").replace("_", " ")
            self.console.print(self.line + ("" if score is None else f", selection {name} {score_text(score)}"))
            self.line = ""


def dropped_fraction(method: str, fraction: float) -> str:
    """Format the fraction of its units that a method dropped."""
    return f"{100 * fraction:.1f} % of {get_method(method).info.units} dropped"


class StudyProgress:
    """Progress of all runs of a study: one line where stderr is a terminal, otherwise a line for each finished run.

    The time left is that of the runs so far, running ones in part, for those that remain: one that was finished before
    takes none.
    """

    def __init__(self, console: PlainConsole, runs: int = 0, *, quiet: bool = False) -> None:
        self.console, self.quiet, self.runs = console, quiet, runs
        self.ended: dict[Path, str] = {}  # the kinds of the last events
        self.parts: dict[Path, float] = {}  # of running runs, what is done
        self.began = time.monotonic()
        columns = (TextColumn("runs"), BarColumn(), TextColumn("{task.description}", markup=False))
        self.bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.task = self.bar.add_task("")
        self.bar.start()

    def close(self) -> None:
        """Remove the bar, also after an exception."""
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Count an event, and show it."""
        name = event.folder.name
        if event.kind == "warning":
            if event.text not in self.console.warned:
                self.console.warned.add(event.text)
                logger.warning("%s: %s", name, event.text)
            return
        if event.kind == "progress":
            self.parts[event.folder] = event.steps / event.planned_steps
        else:
            self.parts.pop(event.folder, None)
            self.ended[event.folder] = event.kind
        if event.kind == "failed":
            logger.warning("%s failed: %s", name, event.text)
        done, state = len(self.ended) + sum(self.parts.values()), self.state()
        self.bar.update(self.task, total=self.runs, completed=done, description=state)
        finished = event.metrics if event.kind == "finished" else None
        if finished is not None and self.bar.disable and not self.quiet:
            score = finished.get("score")
            scored = "-" if score is None else f"{finished['metric']} {score_text(score)}"
            self.console.print(f"{state}: {name} {scored}")

    def state(self) -> str:
        """Describe the progress, such as "5 of 24, 1 failed, about 3 min left"."""
        kinds, parts = list(self.ended.values()), sum(self.parts.values())
        text = f"{len(kinds)} of {self.runs}" + (f", {kinds.count('failed')} failed" if "failed" in kinds else "")
        measured = len(kinds) - kinds.count("kept") + parts
        remaining = self.runs - len(kinds) - parts
        if measured < 0.1 or remaining <= 0:  # a tenth of a run is too little to estimate by
            return text
        left = (time.monotonic() - self.began) * remaining / measured
        told = f"{left:.0f} s" if left < 60 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        return f"{text}, about {told} left"
