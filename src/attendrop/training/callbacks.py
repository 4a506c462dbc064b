"""Callbacks of the trainer: training events for the method, and checkpoints after the evaluation."""

from __future__ import annotations

import math
from typing import Any

from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class TrainingClock(TrainerCallback):
    """Callback that tells a ``RegularizedTrainer`` when training, an epoch or an optimizer step begins or ends.

    Epochs count from 0; a resumed run goes on with its own.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._next_epoch = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._next_epoch = math.floor(state.epoch or 0)
        self.trainer.begin_training()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.begin_epoch(self._next_epoch)
        self._next_epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.begin_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.end_step(state.global_step == state.max_steps)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.end_training()


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
