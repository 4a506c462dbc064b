"""Trainer of runs, which predicts in the order of the rows; its callback, arguments and loss."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

from attendrop.attention.hooks import replaced_attribute
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.resolved_run import ResolvedRun
from attendrop.runs.run_folder import TENSORBOARD, number_of_processes
from attendrop.support.models import compute_device, named_outputs, to_device
from attendrop.tasks.base import Task
from attendrop.tasks.tokenization import columns_of
from attendrop.tasks.types.base import TaskType
from attendrop.training.checkpoints import reading
from attendrop.training.trainer import RegularizedTrainer


def check_integration(name: str) -> None:
    """Raise AttendropError if the package that ``report_to`` needs is not installed."""
    packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)  # any of them suffices
    if name != "none" and not any(importlib.util.find_spec(package) for package in packages):
        raise AttendropError(f"report-to {name} needs the package {packages[0]}; run `pip install {packages[0]}`.")


class RunCallback(TrainerCallback, ExportableState):
    """Callback of a run: time, additional checkpoints and logs, the record of its begin, and its end.

    One does all, since the trainer warns of two callbacks of a class. ``save_steps`` and ``log_steps`` are optimizer
    steps between checkpoints and logs, besides those at the end of an epoch; ``save_seconds`` the time between
    checkpoints; training ends after ``stop_after`` steps of a longer schedule. ``begun`` is called after the first
    step, since methods and models refuse invalid settings before that.

    Attributes:
        seconds_so_far: Seconds of training, once it has ended, with those of earlier processes, from a checkpoint.
        seconds_before: Seconds of training in earlier processes.
    """

    def __init__(
        self,
        *,
        save_steps: int | None = None,
        log_steps: int | None = None,
        save_seconds: float | None = None,
        stop_after: int | None = None,
        begun: Callable[[], None] | None = None,
    ) -> None:
        self.steps = {"should_save": save_steps, "should_log": log_steps}
        self.save_seconds, self.stop_after, self.begun = save_seconds, stop_after, begun
        self.seconds_so_far = self.seconds_before = 0.0
        self.start = self.last_save = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.start = self.last_save = time.monotonic()
        self.seconds_before = self.seconds_so_far

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.begun is not None:
            self.begun()
            self.begun = None
        for flag, steps in self.steps.items():
            if steps and state.global_step % steps == 0 and not float(state.epoch or 0).is_integer():
                setattr(control, flag, True)
        if self.save_seconds is not None and time.monotonic() - self.last_save >= self.save_seconds:
            control.should_save = True
        if self.stop_after is not None and state.global_step >= self.stop_after:
            control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last_save = time.monotonic()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds_so_far += time.monotonic() - self.start

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"args": {}, "attributes": {"seconds_so_far": self.seconds_so_far + time.monotonic() - self.start}}


def silence(trainer: Trainer) -> None:
    """Remove the printing callbacks of the trainer."""
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)


class RunTrainer(RegularizedTrainer):
    """Trainer whose evaluation starts with the longest rows.

    Metrics, and callers of ``predict``, get predictions and labels in the order of the rows, so that these can be
    compared with columns of the rows that the trainer does not see.

    Attributes:
        head_init: How the head started, see :func:`attendrop.runs.head_init.init_head`; None: at random.
    """

    head_init: dict[str, Any] | None = None

    def __init__(self, *args: Any, task_type: TaskType, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task_type = task_type
        # The collator may give targets other names than columns have.
        self.kept_columns = ("labels",)
        silence(self)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback):  # a fixed folder, which belongs to the run
                callback.logging_dir = str(Path(str(self.args.output_dir)) / TENSORBOARD)
        if task_type.generates:
            self.compute_reward_metrics = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """As in ``transformers.Trainer``, without a warm-up of less than a step: its learning rate would be 0."""
        warmup = self.args.warmup_steps
        with replaced_attribute(self.args, "warmup_steps", warmup if num_training_steps * warmup >= 1 else 0.0):
            return super().create_scheduler(num_training_steps, optimizer)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """As in ``transformers.Trainer``, with the raw outputs of the head instead of the logits."""
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        if logits is not None:
            batch, unwrapped = to_device(inputs, self.args.device), self.accelerator.unwrap_model(model)
            outputs = named_outputs(logits if isinstance(logits, tuple) else (logits,), batch)
            with torch.no_grad():
                logits = self.task_type.raw_outputs(unwrapped, batch, outputs)
        return loss, logits, labels

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in ``transformers.Trainer``, but for the order of the outputs."""
        places = np.argsort(self._longest_first(dataloader.dataset), kind="stable")
        compute = self.compute_metrics

        def compute_in_order(found: EvalPrediction) -> dict[str, float]:
            assert compute is not None
            return compute(EvalPrediction(_ordered(found.predictions, places), _ordered(found.label_ids, places)))

        with replaced_attribute(self, "compute_metrics", None if compute is None else compute_in_order):
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        return output._replace(
            predictions=_ordered(output.predictions, places), label_ids=_ordered(output.label_ids, places)
        )

    def eval_sampler(self, rows: Any) -> Sampler[int]:
        """Begin with the longest rows."""
        order: Any = self._longest_first(rows).tolist()  # any sized iterable of indices will do
        return order  # type: ignore[no-any-return]

    def _longest_first(self, rows: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.argsort(-np.asarray(self.task_type.lengths(columns_of(rows))), kind="stable")

    @property
    def meter(self) -> RunCallback:
        """The callback of the run, which measures its time."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, RunCallback))


def _ordered(values: Any, places: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Reorder an array of rows, or each array of a tuple; None stays None."""
    if values is None:
        return None
    if isinstance(values, tuple | list):
        return tuple(_ordered(each, places) for each in values)
    return values[places]


# Arguments ------------------------------------------------------------------------------------------------------------


def run_arguments(run: ResolvedRun, rows: int, place: Path, *, timed: bool = False) -> TrainingArguments:
    """Make the arguments of a run; raises AttendropError if its options conflict on this machine.

    There is a checkpoint of each epoch, or in a ``timed`` run only of those that were the best so far.
    """
    config, selecting = run.config, run.parts.selection is not None
    saved = "epoch" if not timed else "best" if run.chooses_epoch else "no"
    return training_arguments(
        config,
        output_dir=str(place.absolute()),  # in which a folder '~', as of --output-dir=./~/run, is not replaced
        num_train_epochs=num_epochs(config, rows),
        max_steps=config.max_steps or -1,
        per_device_eval_batch_size=config.eval_batch_size,
        eval_strategy="epoch" if selecting else "no",
        save_strategy=saved,
        save_total_limit=2,
        load_best_model_at_end=run.chooses_epoch,
        metric_for_best_model=f"eval_{run.task.metric}",  # methods may score models by it, too
        greater_is_better=True,
        report_to=config.report_to,
        run_name=Path(config.output_dir).name,
    )


def training_arguments(config: RunConfig, **own: Any) -> TrainingArguments:
    """Make training arguments from a run's resolved options and its ``own``; also to fine-tune a pruned model."""
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
    with reading(checkpoint, TRAINER_STATE_NAME):
        state: Any = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    stopping: Any = state.stateful_callbacks.get(EarlyStoppingCallback.__name__, {})
    waited = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
    stopped = config.patience is not None and waited >= config.patience
    return stopped or (stop_after is not None and state.global_step >= stop_after)


# Loss -----------------------------------------------------------------------------------------------------------------


def balanced_loss(labels: Sequence[int], num_classes: int) -> Callable[..., Tensor]:
    """Make a ``compute_loss_func`` for the trainer: cross-entropy, each row weighted by its class.

    A class of ``count`` rows among the ``labels`` of ``n`` training rows has weight ``n / (num_classes * count)``,
    scikit-learn's "balanced", so that every class has the same total weight and the mean weight is 1; one without rows
    has weight 0. The sum over a batch is divided by the number of rows of the whole step, so that the gradient does not
    depend on how a step is split into micro-batches.
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
    if not task.type.num_classes:
        raise AttendropError(f"class-weights='balanced' needs classes; the labels are {task.type.labels_are}.")
    return balanced_loss(labels, task.type.num_classes)
