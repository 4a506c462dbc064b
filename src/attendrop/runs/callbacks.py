"""Trainer callbacks of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState, PrinterCallback


class Meter(TrainerCallback, ExportableState):
    """Timer of training, including the time before a run was resumed.

    Attributes:
        seconds_so_far: Seconds of training, once it has ended.
        seconds_before: Seconds of training in earlier processes.
    """

    def __init__(self) -> None:
        self.seconds_so_far = 0.0
        self.seconds_before = 0.0
        self.start = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.start = time.monotonic()
        self.seconds_before = self.seconds_so_far

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds_so_far = self.seconds()

    def seconds(self) -> float:
        """Return the seconds of training until now."""
        return self.seconds_so_far + time.monotonic() - self.start

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seconds_so_far": self.seconds()}}


class SaveEvery(TrainerCallback):
    """Save a checkpoint every ``steps`` optimizer steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        ends_epoch = float(state.epoch or 0).is_integer()  # has a checkpoint anyway, after its evaluation
        if state.global_step % self.steps == 0 and not ends_epoch:
            control.should_save = True


class StopAfter(TrainerCallback):
    """Stop after ``steps`` optimizer steps of a longer schedule."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step >= self.steps:
            control.should_training_stop = True


class LogEvery(TrainerCallback):
    """Log every ``steps`` optimizer steps, besides the log at each epoch's end."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        ends_epoch = float(state.epoch or 0).is_integer()
        if state.global_step % self.steps == 0 and not ends_epoch:
            control.should_log = True


class AfterFirstStep(TrainerCallback):
    """Call ``do`` after the first step, because methods and models refuse invalid settings before it."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.do is not None:
            self.do()
            self.do = None


def silence(trainer: Trainer) -> None:
    """Remove the printing callbacks of the trainer."""
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
