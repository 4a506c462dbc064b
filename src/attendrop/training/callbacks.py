"""Callbacks of the trainer: training events for the method, and checkpoints after the evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class TrainingClock(TrainerCallback):
    """Callback that calls functions when training, an epoch or an optimizer step begins or ends.

    Args:
        begin_training: Called before the first step, also of a resumed run.
        begin_epoch: Called with the number of the epoch, from 0.
        begin_step: Called with the number of optimizer steps taken before.
        end_step: Called after an optimizer step, with whether it is the last one planned.
        end_training: Called after the last step.
    """

    def __init__(
        self,
        *,
        begin_training: Callable[[], None],
        begin_epoch: Callable[[int], None],
        begin_step: Callable[[int], None],
        end_step: Callable[[bool], None],
        end_training: Callable[[], None],
    ) -> None:
        self._begin_training = begin_training
        self._begin_epoch = begin_epoch
        self._begin_step = begin_step
        self._end_step = end_step
        self._end_training = end_training
        self._next_epoch = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._next_epoch = math.floor(state.epoch or 0)
        self._begin_training()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin_epoch(self._next_epoch)
        self._next_epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_step(state.global_step == state.max_steps)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_training()


class SaveAfterEvaluation(TrainerCallback):
    """Callback that saves the checkpoint of an epoch's last step only after the epoch was evaluated and logged.

    A run that is resumed from it begins with the next epoch, and would skip the evaluation and the logs.
    """

    def __init__(self) -> None:
        self._save_is_due = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
        more_to_come = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and ends_epoch and more_to_come:
            control.should_save = False
            self._save_is_due = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save = control.should_save or self._save_is_due
        self._save_is_due = False
