"""What a trainer tells its method as training goes on: start, epoch, step, end."""

from __future__ import annotations

import logging
import math
import sys
from typing import Any

from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.methods.base import Method

logger = logging.getLogger(__name__)


def warn_of_rest(method: Method, epochs: int) -> bool:
    """Warn before training if a method will not act in any of so many epochs, or if nobody knows how many there are.

    Returns:
        Whether it was warned of, with what to do about it.
    """
    if epochs == sys.maxsize:
        if method.needs_epoch():
            logger.warning(
                "Method %s acts in some epochs, and the training data has no length: if it never ends, there is one "
                "epoch. %s",
                method.name,
                method.inactive_epochs_hint,
            )
            return True
    elif method.regularized_epochs(epochs) == []:
        logger.warning(
            "Method %s would regularise none of the %d epoch(s). %s", method.name, epochs, method.inactive_epochs_hint
        )
        return True
    return False


class Clock(TrainerCallback):
    """Tells the trainer's regularisation and sampler the time: start, epoch, step, end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.epoch = 0
        self.save_is_due = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.epoch = math.floor(state.epoch or 0)
        self.trainer._begin()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._sampler is not None:
            self.trainer._sampler.epoch = self.epoch
        if self.trainer._regularization is not None:
            self.trainer._regularization.set_epoch(self.epoch)
        self.epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._regularization is not None:
            self.trainer._regularization.begin_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell the method; put off a checkpoint that falls on an epoch's last step until the epoch was evaluated.

        The resumed run begins at the next epoch and would skip the evaluation, and the log.
        """
        self.trainer._after_step(state.global_step == state.max_steps)
        ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
        more_to_come = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and ends_epoch and more_to_come:
            control.should_save = False
            self.save_is_due = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save = control.should_save or self.save_is_due
        self.save_is_due = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._regularization is not None:
            self.trainer._regularization.warn_of_idleness()
        self.trainer._end()
