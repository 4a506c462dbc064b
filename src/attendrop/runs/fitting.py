"""Fitting of a run's model to its training rows, or going on with it from a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction

from attendrop.attention.adapter import find_attention_layers
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
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
    LogEvery,
    Meter,
    RunTrainer,
    SaveBySeconds,
    SaveEvery,
    StopAfter,
    keep_in_folder,
    silence,
)
from attendrop.runs.training_args import run_arguments
from attendrop.tasks.base import Task
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.tokenization import columns_of
from attendrop.training.checkpoints import last_checkpoint
from attendrop.training.trainer import RegularizedTrainer

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
    """Make the ``compute_loss_func`` of a run; None for the model's own loss.

    Raises:
        AttendropError: Class weights are requested, but the labels are not classes.
    """
    if config.class_weights is None:
        return None
    if not task.head.has_class_weights:
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
    """Load the model as each training of a run begins with it.

    Raises:
        AttendropError: The method cannot act on the model, or names layers that it does not have.
    """
    set_seed(run.config.seed)
    loaded = load_for(run.config.model, run.task, run.config.pooling)
    _check_method(loaded.model, run.method)
    return loaded


def _check_method(model: PreTrainedModel, method: Method) -> None:
    if method.info.uses_attention:
        method.selected_layers(find_attention_layers(model))


@dataclass(frozen=True)
class Fitted:
    """Trained model, in its trainer.

    Attributes:
        trainer: The trainer.
        seconds: Seconds that training took.
        seconds_before: Those of them in earlier processes, before a resumption.
        head_start: How the head started; None: at random.
    """

    trainer: RegularizedTrainer
    seconds: float
    seconds_before: float
    head_start: dict[str, Any] | None


@dataclass(frozen=True)
class Fitting:
    """How the models of a run are fitted: the same for the selection and for the final model.

    Attributes:
        place: Folder of the run.
        begin: Writes the record of the run, after the first step, if there is none.
        callbacks: Callbacks of the trainer.
        checkpoint_seconds: Seconds between checkpoints; None: a checkpoint after each epoch.
    """

    place: Path
    begin: Callable[[], None]
    callbacks: Sequence[TrainerCallback] = ()
    checkpoint_seconds: float | None = None

    def fit(
        self,
        run: ResolvedRun,
        loaded: Loaded,
        encoded: Parts,
        begun: Mapping[str, Any],
        *,
        checkpoints: Path | None = None,
        stop_after: int | None = None,
    ) -> Fitted:
        """Train a model, or go on from its last checkpoint.

        Args:
            run: The run, whose config and method are used.
            loaded: The model.
            encoded: Rows.
            begun: Record of the run if this training may have begun before, otherwise empty.
            checkpoints: Folder of checkpoints; None: that of the run.
            stop_after: Number of steps after which to stop, if not after all.
        """
        checkpoints = checkpoints or self.place
        checkpoint = last_checkpoint(checkpoints) if begun else None
        save_epochs = self.checkpoint_seconds is None
        arguments = run_arguments(
            run, len(encoded.train), checkpoints, checkpoint, save_epochs=save_epochs, stop_after=stop_after
        )
        if checkpoint is not None:
            logger.info("Resuming from %s.", checkpoint)
            head_start = begun.get("head_start")
        else:
            if begun:
                logger.info("There is no complete checkpoint in %s: the run starts over.", checkpoints)
            if run.config.head_start == "contrastive":
                _tune_contrastively(loaded, run)
            run.method.prepare(loaded.model, run.config.seed)
            head_start = start_head(
                loaded.model, loaded.tokenizer, loaded.new, run.task.head, encoded.train, run.config
            )

        def note() -> None:
            if read_run(self.place) is None:
                self.begin()
            note_in_run(self.place, head_start=head_start)

        own: list[TrainerCallback] = [] if stop_after is None else [StopAfter(stop_after)]
        own += [AfterFirstStep(note)] if checkpoint is None and is_main_process() else []
        if run.config.adapter is not None:
            model = add_adapter(loaded.model, loaded.new, run.task.head, run.config.adapter)
            loaded = replace(loaded, model=model)
        trainer = self._trainer(run, loaded, encoded, arguments, own)
        if run.config.max_steps == 0:
            note()
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        refuse_diverged(run.config, *(parameter.detach() for parameter in loaded.model.parameters()))
        meter = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Meter))
        return Fitted(trainer, meter.seconds_so_far, meter.seconds_before, head_start)

    def _trainer(
        self,
        run: ResolvedRun,
        loaded: Loaded,
        encoded: Parts,
        arguments: TrainingArguments,
        callbacks: Sequence[TrainerCallback],
    ) -> RegularizedTrainer:
        config, tokenizer = run.config, loaded.tokenizer
        selection = {} if encoded.selection is None else columns_of(encoded.selection)
        in_memory = self.checkpoint_seconds is not None and run.chooses_epoch
        trainer = (BestInMemoryTrainer if in_memory else RunTrainer)(
            loaded.model,
            arguments,
            regularizer=run.method,
            train_dataset=encoded.train,
            reward_dataset=encoded.reward,
            eval_dataset=encoded.selection,
            data_collator=run.task.head.collator(tokenizer),
            processing_class=tokenizer,
            compute_metrics=lambda found: _scores(config, run.task, found, selection, tokenizer),
            compute_reward_metrics=lambda found: _scores(
                config, run.task, found, {"labels": found.label_ids}, tokenizer
            ),
            compute_loss_func=run_loss(config, run.task, encoded.train["labels"][:]),
            head=run.task.head,
            callbacks=[*self._callbacks(config, encoded), *callbacks, *self.callbacks],
        )
        silence(trainer)
        keep_in_folder(trainer)
        return trainer

    def _callbacks(self, config: RunConfig, encoded: Parts) -> list[TrainerCallback]:
        """Make the callbacks that the options ask for."""
        own: list[TrainerCallback] = [Meter()]
        if config.patience is not None and encoded.selection is not None:
            own.append(EarlyStoppingCallback(config.patience))
        if config.save_steps is not None:
            own.append(SaveEvery(config.save_steps))
        if config.logging_steps is not None:
            own.append(LogEvery(config.logging_steps))
        if self.checkpoint_seconds is not None:
            own.append(SaveBySeconds(self.checkpoint_seconds))
        return own


def _scores(
    config: RunConfig,
    task: Task,
    found: EvalPrediction,
    encoded: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, float]:
    refuse_diverged(config, found.predictions)
    outputs = task.head.row_outputs(np.asarray(found.predictions), encoded, tokenizer)
    return compute_scores(task, outputs, task.head.references(encoded))


def _tune_contrastively(loaded: Loaded, run: ResolvedRun) -> None:
    """Train the encoder on pairs of the training rows."""
    from attendrop.runs.head_start import tune_contrastively  # loads sentence-transformers

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise AttendropError("head-start 'contrastive' trains in one process; start one, or use 'frozen'.")
    head = run.task.head
    rows = head.training_rows(run.parts.train)
    tune_contrastively(loaded.model, loaded.tokenizer, head.texts(rows), head.strata_of(rows), run.config)
