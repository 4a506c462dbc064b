"""Training of a run's model, from its start or resumed from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import EvalPrediction

from attendrop.attention.adapter import find_attention_layers
from attendrop.errors import AttendropError
from attendrop.methods.core.registry import flat_options
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts
from attendrop.runs.head_start import start_head
from attendrop.runs.lora import add_adapter
from attendrop.runs.model_loading import Loaded, load_for
from attendrop.runs.resolved_run import ResolvedRun
from attendrop.runs.run_folder import is_main_process, note_in_run, read_run
from attendrop.runs.run_trainer import (
    AfterFirstStep,
    BestInMemoryTrainer,
    EverySteps,
    Meter,
    RunTrainer,
    SaveBySeconds,
    StopAfter,
)
from attendrop.runs.training_args import has_stopped, run_arguments
from attendrop.tasks.base import Task
from attendrop.tasks.groups import GROUP, given_groups
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.tokenization import columns_of
from attendrop.training.checkpoints import last_checkpoint

logger = logging.getLogger(__name__)


def balanced_loss(labels: Sequence[int], num_classes: int) -> Callable[..., Tensor]:
    """Make a ``compute_loss_func`` for the trainer: cross-entropy, each row weighted by its class.

    A class of ``count`` rows among ``n`` has weight ``n / (num_classes * count)``, scikit-learn's "balanced", so that
    every class has the same total weight and the mean weight is 1. The sum over a batch is divided by the number
    of rows of the whole step, so that the gradient does not depend on how a step is split into micro-batches.

    Args:
        labels: Labels of the training rows, ``(rows,)``.
        num_classes: Number of classes; a class without rows has weight 0.
    """
    counts = torch.bincount(torch.tensor(labels), minlength=num_classes)
    weights = torch.where(counts > 0, len(labels) / (num_classes * counts.clamp(min=1)), 0.0)

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        total = functional.cross_entropy(logits, labels, weight=weights.to(logits), reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return loss


def run_loss(config: RunConfig, task: Task, labels: Sequence[int]) -> Callable[..., Tensor] | None:
    """Make the ``compute_loss_func`` of a run; None for the model's own loss."""
    if config.class_weights is None:
        return None
    if not task.head.num_classes:
        raise AttendropError(f"class-weights='balanced' needs classes; the labels are {task.head.labels_are}.")
    return balanced_loss(labels, task.head.num_classes)


# Usual upper limits in fine-tuning; an option above its limit is named as the likely cause.
_HIGHEST = {"learning_rate": 1e-3, "weight_decay": 1.0}
_HIGHEST_OF_METHOD = 100.0


def refuse_diverged(config: RunConfig, *values: Any) -> None:
    """Raise AttendropError, with advice, if an array or a tensor has an entry that is NaN or infinite."""
    if not all(bool(torch.as_tensor(value).isfinite().all()) for value in values):
        raise AttendropError(f"Training diverged: the model's numbers are NaN or infinite. {_advice(config)}")


def _advice(config: RunConfig) -> str:
    given = {name: getattr(config, name) for name in _HIGHEST}
    absurd = {name: value for name, value in given.items() if value > _HIGHEST[name]}
    numbers = {name: value for name, value in flat_options(config.options).items() if isinstance(value, float)}
    absurd |= {name: value for name, value in numbers.items() if abs(value) > _HIGHEST_OF_METHOD}
    if absurd:
        named = " and ".join(f"{name.replace('_', '-')} is {value:g}" for name, value in absurd.items())
        return f"Much lower values are usual: {named}."
    half = ", or train without fp16" if config.fp16 else ""
    return f"Lower learning-rate, which is {config.learning_rate:g}{half}."


def load_model(run: ResolvedRun) -> Loaded:
    """Load the model as each training of a run begins with it, and check that the method can act on it."""
    set_seed(run.config.seed)
    loaded = load_for(run.config.model, run.task, run.config.pooling)
    if run.method.info.uses_attention:
        run.method.selected_layers(find_attention_layers(loaded.model))
    return loaded


def fit(
    run: ResolvedRun,
    loaded: Loaded,
    encoded: Parts,
    place: Path,
    begin: Callable[[], None],
    *,
    begun: Mapping[str, Any],
    checkpoints: Path | None = None,
    stop_after: int | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    checkpoint_seconds: float | None = None,
) -> RunTrainer:
    """Train a model, or resume from its last checkpoint; return the trainer, which stores the head's start.

    After the first step, ``begin`` writes the record of the run in ``place``, if there is none. ``begun`` is that
    record if this training may have begun before, otherwise empty. ``checkpoints`` are in ``place`` by default, one
    after each epoch or ``checkpoint_seconds``. ``stop_after`` ends a longer schedule after this number of steps.
    """
    checkpoints = checkpoints or place
    checkpoint = last_checkpoint(checkpoints) if begun else None
    arguments = run_arguments(run, len(encoded.train), checkpoints, save_epochs=checkpoint_seconds is None)
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
        head_start = begun.get("head_start")
    else:
        if begun:
            logger.info("There is no complete checkpoint in %s: the run starts over.", checkpoints)
        run.method.prepare(loaded.model, run.config.seed)
        rows = run.parts.train
        groups = given_groups(rows) if GROUP in rows.column_names else None
        head_start = start_head(loaded, run.task.head, encoded, run.config, groups)
    if run.config.adapter is not None:
        loaded = loaded._replace(model=add_adapter(loaded.model, loaded.new, run.task.head, run.config.adapter))

    def note() -> None:
        if read_run(place) is None:
            begin()
        note_in_run(place, head_start=head_start)

    own = _callbacks(run.config, encoded, checkpoint_seconds)
    own += [StopAfter(stop_after)] if stop_after is not None else []
    own += [AfterFirstStep(note)] if checkpoint is None and is_main_process() else []
    kind = BestInMemoryTrainer if checkpoint_seconds is not None and run.chooses_epoch else RunTrainer
    trainer = _trainer(kind, run, loaded, encoded, arguments, [*own, *callbacks])
    trainer.head_start = head_start
    trainer.has_stopped = checkpoint is not None and has_stopped(run.config, checkpoint, stop_after)
    if run.config.max_steps == 0:
        note()
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    refuse_diverged(run.config, *(parameter.detach() for parameter in loaded.model.parameters()))
    return trainer


def _callbacks(config: RunConfig, encoded: Parts, checkpoint_seconds: float | None) -> list[TrainerCallback]:
    """Make the callbacks that the options ask for."""
    found: list[TrainerCallback] = [Meter(), EverySteps(save=config.save_steps, log=config.logging_steps)]
    if config.patience is not None and encoded.selection is not None:
        found.append(EarlyStoppingCallback(config.patience))
    if checkpoint_seconds is not None:
        found.append(SaveBySeconds(checkpoint_seconds))
    return found


def _trainer(
    kind: type[RunTrainer],
    run: ResolvedRun,
    loaded: Loaded,
    encoded: Parts,
    arguments: TrainingArguments,
    callbacks: list[TrainerCallback],
) -> RunTrainer:
    config, task, tokenizer = run.config, run.task, loaded.tokenizer
    selection = {} if encoded.selection is None else columns_of(encoded.selection)

    def scores(found: EvalPrediction, rows: Mapping[str, Any]) -> dict[str, float]:
        refuse_diverged(config, found.predictions)
        outputs = task.head.row_outputs(np.asarray(found.predictions), rows, tokenizer)
        return compute_scores(task, outputs, task.head.references(rows))

    return kind(
        loaded.model,
        arguments,
        regularizer=run.method,
        train_dataset=encoded.train,
        reward_dataset=encoded.reward,
        eval_dataset=encoded.selection,
        data_collator=task.head.collator(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: scores(found, selection),
        compute_reward_metrics=lambda found: scores(found, {"labels": found.label_ids}),
        compute_loss_func=run_loss(config, task, encoded.train["labels"][:]),
        head=task.head,
        callbacks=callbacks,
    )
