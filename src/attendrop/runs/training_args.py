"""Training arguments of transformers, for runs and for fine-tuning of pruned models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainingArguments

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.resolved_run import ResolvedRun
from attendrop.runs.run_folder import number_of_processes
from attendrop.support.models import compute_device
from attendrop.training.checkpoints import trainer_state


def run_arguments(run: ResolvedRun, rows: int, place: Path, *, save_epochs: bool = True) -> TrainingArguments:
    """Make the arguments of a run; raises AttendropError if its options conflict on this machine."""
    config, selecting = run.config, run.parts.selection is not None
    return _arguments(
        config,
        output_dir=str(place.absolute()),  # in which a folder '~', as of --output-dir=./~/run, is not replaced
        num_train_epochs=num_epochs(config, rows),
        max_steps=config.max_steps or -1,
        per_device_eval_batch_size=config.eval_batch_size,
        eval_strategy="epoch" if selecting else "no",
        save_strategy="epoch" if save_epochs else "no",
        save_total_limit=2,
        load_best_model_at_end=run.chooses_epoch and save_epochs,
        metric_for_best_model=f"eval_{run.task.metric}",  # methods may score models by it, too
        greater_is_better=True,
        report_to=config.report_to,
        run_name=Path(config.output_dir).name,
    )


def recovery_arguments(config: RunConfig, folder: str, epochs: int) -> TrainingArguments:
    """Make the arguments for fine-tuning a pruned model, with the options of its run."""
    return _arguments(config, output_dir=folder, num_train_epochs=epochs, save_strategy="no", report_to="none")


def _arguments(config: RunConfig, **own: Any) -> TrainingArguments:
    """Make training arguments from a run's resolved options and additional ones."""
    assert config.batch_size is not None and config.learning_rate is not None
    try:
        arguments = TrainingArguments(
            per_device_train_batch_size=config.batch_size,
            gradient_accumulation_steps=config.gradient_accumulation,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            lr_scheduler_type=config.schedule,
            warmup_steps=config.warmup,
            train_sampling_strategy="group_by_length",
            logging_strategy="epoch",
            seed=config.seed,
            data_seed=config.seed,
            # Without this argument, the trainer does not start DDP on CPUs.
            use_cpu=compute_device(config.device).type == "cpu",
            bf16=config.bf16,
            fp16=config.fp16,
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            **own,
        )
    except ValueError as error:  # such as half precision on a device without it
        raise AttendropError(
            f"These options cannot be combined on this machine: {str(error).splitlines()[0]}"
        ) from error
    if arguments.n_gpu > 1:  # otherwise the trainer would divide batches among all that this process sees
        arguments._n_gpu = 1
    return arguments


def num_epochs(config: RunConfig, rows: int) -> int:
    """Count the epochs of a run, including a partial last one."""
    if config.max_steps is None:
        assert config.epochs is not None
        return config.epochs
    assert config.batch_size is not None
    batches = math.ceil(rows / (config.batch_size * number_of_processes()))
    return math.ceil(config.max_steps / math.ceil(batches / config.gradient_accumulation))


def has_stopped(config: RunConfig, checkpoint: Path, stop_after: int | None) -> bool:
    """Return whether a run had stopped early at a checkpoint, so that it takes no more steps if it is resumed."""
    state = trainer_state(checkpoint)
    stopping: Any = state.stateful_callbacks.get(EarlyStoppingCallback.__name__, {})
    waited = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
    stopped = config.patience is not None and waited >= config.patience
    return stopped or (stop_after is not None and state.global_step >= stop_after)
