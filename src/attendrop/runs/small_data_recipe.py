"""Training options that follow from the data and the model, if they are not set.

All constants of the recipe are here. They are for small data: enough optimizer steps that plain fine-tuning fits the
training rows, at a learning rate that a head which starts from the frozen encoder survives.
"""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedConfig

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import default_pooling, load_config, refuse_untrainable

BATCH_SIZE = 16
# Bounds on epochs and steps for small and large data sets.
EPOCHS, LEAST_STEPS, MOST_STEPS, LEAST_EPOCHS = 10, 240, 1200, 3
# Learning rates by the largest hidden size that they are for.
LEARNING_RATES = ((512, 1e-4), (900, 5e-5), (math.inf, 2e-5))
# For adapters, which take higher rates: Hu et al. (2022) tune RoBERTa-base with 4e-4 to 5e-4, large with 2e-4 to 4e-4.
LORA_FACTOR = 10
# Fraction of rows to hold out if a selection split is requested, or there is no other set to score on.
SELECTION_FRACTION = 0.1
# What the recipe decides, for metrics.json.
DECIDED = ("epochs", "max_steps", "batch_size", "learning_rate", "pooling", "head_start", "selection_fraction", "refit")


def with_selection(config: RunConfig, *, has_eval_rows: bool) -> RunConfig:
    """Decide how many rows are held out, and whether the model is trained again on all.

    Rows are held out only if something needs them: a choice of the epoch that was asked for, calibration, rewards, or a
    score if there are no evaluation rows. Finally the model is also trained on held-out rows, unless a method was
    rewarded on them, or there is no step to take.
    """
    rewarded = config.rewarded_on == "selection"
    fraction = config.selection_fraction
    if fraction is None:
        needed = config.patience is not None or config.refit or config.calibrate or rewarded or not has_eval_rows
        fraction = SELECTION_FRACTION if needed and config.protocol == "honest" else 0.0
    refit = config.refit
    if refit is None:
        refit = fraction > 0 and config.protocol == "honest" and not rewarded and config.max_steps != 0
    return config.filled(selection_fraction=fraction, refit=refit)


def with_training(config: RunConfig, rows: int, *, has_pooling: bool = True, processes: int = 1) -> RunConfig:
    """Decide batch size, number of steps, learning rate and pooling.

    - A step has 16 rows.
    - Steps are 10 epochs, but at least 240 and at most 1,200; for large sets, 3 epochs if that is more.
    - The learning rate falls with the model's hidden size, see ``LEARNING_RATES``. An adapter's is ten times that.
    - The pooling is what the model was trained with, see :func:`attendrop.runs.model_loading.default_pooling`; None if
      the model offers no choice.

    The steps do not depend on the method, so that methods that hold rows out are compared over the same steps.
    """
    refuse_untrainable(config.model)
    found: dict[str, Any] = {"batch_size": config.batch_size or BATCH_SIZE}
    if config.epochs is None and config.max_steps is None:
        found["max_steps"] = steps(rows, found["batch_size"] * config.gradient_accumulation * processes)
    if not has_pooling:
        if config.pooling == "mean":
            raise AttendropError("pooling 'mean' is for tasks with one prediction for a whole text; omit it here.")
        found["pooling"] = None
    elif config.pooling == "auto":
        found["pooling"] = default_pooling(config.model)
    if config.learning_rate is None:
        rate = learning_rate(load_config(config.model))
        found["learning_rate"] = rate if config.lora is None else rate * LORA_FACTOR
    return config.filled(**found)


def steps(rows: int, batch_size: int) -> int:
    """Return the number of optimizer steps for a number of rows, ``batch_size`` of them in a step."""
    of_small = min(max(math.ceil(EPOCHS * rows / BATCH_SIZE), LEAST_STEPS), MOST_STEPS)
    return max(of_small, math.ceil(LEAST_EPOCHS * rows / batch_size))


def learning_rate(config: PreTrainedConfig) -> float:
    """Return the learning rate for a model, given its configuration."""
    size = getattr(config.get_text_config(), "hidden_size", 0)
    return next(rate for largest, rate in LEARNING_RATES if size <= largest)


def decided(config: RunConfig) -> dict[str, Any]:
    """Return the options of a resolved run that the recipe may have decided."""
    return {name: getattr(config, name) for name in DECIDED}
