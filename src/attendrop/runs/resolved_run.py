"""A run with resolved options: its method, task and rows, and what follows from rows and model.

All constants of the recipe for small data are here: enough optimizer steps that plain fine-tuning fits the training
rows, at a learning rate that a head which starts from the frozen encoder survives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, load_data
from attendrop.runs.model_loading import default_pooling, load_config, refuse_untrainable
from attendrop.runs.run_folder import number_of_processes
from attendrop.tasks.base import Task, TaskData

BATCH_SIZE = 16
# Bounds on epochs and steps for small and large data sets.
EPOCHS, LEAST_STEPS, MOST_STEPS, LEAST_EPOCHS = 10, 240, 1200, 3
# Learning rates by the largest hidden size that they are for.
LEARNING_RATES = ((512, 1e-4), (900, 5e-5), (math.inf, 2e-5))
# For adapters, which take higher rates: Hu et al. (2022) tune RoBERTa-base with 4e-4 to 5e-4, large with 2e-4 to 4e-4.
LORA_FACTOR = 10
# Fraction of rows to hold out if a selection split is requested, or there is no other set to score on.
SELECTION_FRACTION = 0.1
_DECIDED = ("epochs", "max_steps", "batch_size", "learning_rate", "pooling", "head_init", "selection_fraction", "refit")


@dataclass(frozen=True)
class ResolvedRun:
    """Run with resolved options, which are read only here."""

    config: RunConfig  # the options, all decided except the start of the head, which depends on the model
    given: RunConfig  # the options as they were given
    data: TaskData  # the task with all its rows
    parts: Parts  # the splits of the run, not encoded

    @property
    def method(self) -> Method:
        """Method with its options."""
        return self.config.regularizer

    @property
    def task(self) -> Task:
        """Task of the run."""
        return self.data.task

    @property
    def chooses_epoch(self) -> bool:
        """Whether the best epoch is kept (if a selection split was requested) instead of the last."""
        if self.parts.selection is None:
            return False
        asked = bool(self.given.selection_fraction) or self.given.patience is not None
        return asked or self.config.protocol == "paper"

    def on_all_rows(self, max_steps: int | None = None) -> ResolvedRun:
        """Return the run on all training rows, including those held out here, for as many epochs or ``max_steps``."""
        steps = {} if max_steps is None else {"max_steps": max_steps}
        config = self.config.filled(selection_fraction=0.0, refit=False, patience=None, **steps)
        return ResolvedRun(config, config, self.data, divide(config, self.data))


def resolve_run(config: RunConfig, decided: Mapping[str, Any] | None = None) -> ResolvedRun:
    """Resolve the options of a run: build its method, load and split its data, and apply the recipe.

    - Rows are held out only if something needs them: a choice of the epoch that was asked for, calibration, or a score
      if there are no evaluation rows. Finally the model is also trained on them, unless there is no step to take.
    - A step has 16 rows. Steps are 10 epochs, but at least 240 and at most 1,200; for large sets, 3 epochs if that is
      more.
    - The learning rate falls with the model's hidden size, see ``LEARNING_RATES``. An adapter's is ten times that.
    - The pooling is what the model was trained with, see :func:`attendrop.runs.model_loading.default_pooling`; None if
      the model offers no choice.

    ``decided`` are the options of a run that is resumed as they were decided when it began.
    """
    data = load_data(config)
    task_type, found = data.task.type, config.filled(**(decided or {}))
    if config.calibrate and not task_type.num_classes:
        raise AttendropError(f"calibrate is for classes; the labels are {task_type.labels_are}: omit it.")
    if config.accept is not None and not task_type.num_classes:
        raise AttendropError(
            f"accept is for classification of one class; the labels are {task_type.labels_are}: omit it."
        )
    if config.accept is not None and "dev" not in data.splits and not config.test_fraction:
        raise AttendropError("accept needs evaluation rows, and this task has none; give your own file.")
    # The rows.
    holds_out, fraction, refit = found.protocol == "held-out", found.selection_fraction, found.refit
    if fraction is None:
        has_eval_rows = "dev" in data.splits or config.test_fraction
        needed = found.patience is not None or refit or found.calibrate or not has_eval_rows
        fraction = SELECTION_FRACTION if needed and holds_out else 0.0
    if refit is None:
        refit = fraction > 0 and holds_out and found.max_steps != 0
    found = found.filled(selection_fraction=fraction, refit=refit, batch_size=found.batch_size or BATCH_SIZE)
    parts = divide(found, data)
    # The steps do not depend on the method, so that methods that hold rows out are compared over the same steps.
    held_out = parts.selection if holds_out else None
    rewards = parts.reward if found.rewarded_on == "split" else None
    rows = sum(len(part) for part in (parts.train, held_out, rewards) if part is not None)
    # The training.
    refuse_untrainable(config.model)
    assert found.batch_size is not None
    if found.epochs is None and found.max_steps is None:
        in_step = found.batch_size * found.gradient_accumulation * number_of_processes()
        found = found.filled(max_steps=steps(rows, in_step))
    if not task_type.one_vector:
        if found.pooling == "mean":
            raise AttendropError("pooling 'mean' is for tasks with one prediction for a whole text; omit it here.")
        found = found.filled(pooling=None)
    elif found.pooling == "auto":
        found = found.filled(pooling=default_pooling(config.model))
    if found.learning_rate is None:
        rate = learning_rate(load_config(config.model))
        found = found.filled(learning_rate=rate if config.lora is None else rate * LORA_FACTOR)
    method = found.regularizer.for_data(len(task_type.strata), rows)
    if method != found.regularizer:
        found = found.filled(options=method.options())
    return ResolvedRun(found, config, data, parts)


def steps(rows: int, batch_size: int) -> int:
    """Return the number of optimizer steps for a number of rows, ``batch_size`` of them in a step."""
    of_small = min(max(math.ceil(EPOCHS * rows / BATCH_SIZE), LEAST_STEPS), MOST_STEPS)
    return max(of_small, math.ceil(LEAST_EPOCHS * rows / batch_size))


def learning_rate(config: PreTrainedConfig) -> float:
    """Return the learning rate for a model, given its configuration."""
    size = getattr(config.get_text_config(), "hidden_size", 0)
    return next(rate for largest, rate in LEARNING_RATES if size <= largest)


def decided(config: RunConfig) -> dict[str, Any]:
    """Return the options of a resolved run that the recipe may have decided, for ``metrics.json``."""
    return {name: getattr(config, name) for name in _DECIDED}
