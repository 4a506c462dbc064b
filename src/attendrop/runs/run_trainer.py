"""Trainer of runs, with predictions in the order of the rows; and callbacks for extra checkpoints and logs."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    EvalPrediction,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from attendrop.attention.hooks import replaced_attribute
from attendrop.errors import AttendropError
from attendrop.runs.run_folder import TENSORBOARD
from attendrop.support.models import named_outputs, to_device, trained_tensors
from attendrop.tasks.heads.base import Head
from attendrop.tasks.tokenization import columns_of
from attendrop.training.checkpoints import reading
from attendrop.training.regularization import Regularization
from attendrop.training.trainer import RegularizedTrainer


def check_integration(name: str) -> None:
    """Raise AttendropError if the package that ``report_to`` needs is not installed."""
    packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)  # any of them suffices
    if name != "none" and not any(importlib.util.find_spec(package) for package in packages):
        raise AttendropError(f"report-to {name} needs the package {packages[0]}; run `pip install {packages[0]}`.")


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


class EverySteps(TrainerCallback):
    """Save a checkpoint every ``save`` optimizer steps, and log every ``log``, besides what each epoch's end does.

    One does both: the trainer warns of two callbacks of a class.
    """

    def __init__(self, *, save: int | None, log: int | None) -> None:
        self.steps = {"should_save": save, "should_log": log}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for flag, steps in self.steps.items():
            if steps and state.global_step % steps == 0 and not float(state.epoch or 0).is_integer():
                setattr(control, flag, True)


class StopAfter(TrainerCallback):
    """Stop after ``steps`` optimizer steps of a longer schedule."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop |= state.global_step >= self.steps


class AfterFirstStep(TrainerCallback):
    """Call ``do`` after the first step, since methods and models refuse invalid settings before that."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.do is not None:
            self.do()
            self.do = None


class SaveBySeconds(TrainerCallback):
    """Save a checkpoint at the first step that ends ``seconds`` or more after the last one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if time.monotonic() - self.last >= self.seconds:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = time.monotonic()


def silence(trainer: Trainer) -> None:
    """Remove the printing callbacks of the trainer."""
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)


class RunTrainer(RegularizedTrainer):
    """Trainer whose evaluation starts with the longest rows.

    Metrics, and callers of ``predict``, get predictions and labels in the order of the rows, so that these can be
    compared with columns of the rows that the trainer does not see.

    Attributes:
        head_start: How the head started, see :func:`attendrop.runs.head_start.start_head`; None: at random.
    """

    head_start: dict[str, Any] | None = None

    def __init__(self, *args: Any, head: Head, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head = head
        # The collator may give targets other names than columns have.
        self.kept_columns = ("labels",)
        silence(self)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback):  # a fixed folder, which belongs to the run
                callback.logging_dir = str(Path(str(self.args.output_dir)) / TENSORBOARD)
        if head.rewarded_by_loss:
            self.compute_reward_metrics = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """As in ``transformers.Trainer``, without a warm-up of less than a step: its learning rate would be 0."""
        warmup = self.args.warmup_steps
        with replaced_attribute(self.args, "warmup_steps", warmup if num_training_steps * warmup >= 1 else 0.0):
            return super().create_scheduler(num_training_steps, optimizer)

    def found_best(self) -> None:
        """Note the step, which transformers does only if it saves a checkpoint then."""
        self.state.best_global_step = self.state.global_step

    @property
    def meter(self) -> Meter:
        """The timer among the callbacks, which runs have."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, Meter))

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """As in ``transformers.Trainer``, with the raw outputs of the head instead of the logits."""
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        if logits is not None:
            batch, unwrapped = to_device(inputs, self.args.device), self.accelerator.unwrap_model(model)
            outputs = named_outputs(logits if isinstance(logits, tuple) else (logits,), batch)
            with torch.no_grad():
                logits = self.head.raw_outputs(unwrapped, batch, outputs)
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
        return np.argsort(-np.asarray(self.head.lengths(columns_of(rows))), kind="stable")


def _ordered(values: Any, places: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Reorder an array of rows, or each array of a tuple; None stays None."""
    if values is None:
        return None
    if isinstance(values, tuple | list):
        return tuple(_ordered(each, places) for each in values)
    return values[places]


_BEST = "best_weights.safetensors"


class BestInMemoryTrainer(RunTrainer):
    """Trainer that keeps the weights of the best epoch in memory, since checkpoints may not have them.

    When training ends, the model has these weights. Each checkpoint has them beside the latest ones.
    """

    best_weights: dict[str, Tensor] | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in ``RegularizedTrainer``."""
        if isinstance(resume_from_checkpoint, str) and (Path(resume_from_checkpoint) / _BEST).exists():
            with reading(resume_from_checkpoint, _BEST):
                kept = load_file(Path(resume_from_checkpoint) / _BEST)
                model = self.accelerator.unwrap_model(self.model)
                self.best_weights = {name: kept[name] for name in trained_tensors(model)}
        found = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.best_weights is not None:
            with torch.no_grad():
                for name, tensor in trained_tensors(self.accelerator.unwrap_model(self.model)).items():
                    tensor.copy_(self.best_weights[name])
        return found

    def found_best(self) -> None:
        """As in ``RunTrainer``, and keep a copy of the weights."""
        super().found_best()
        model = self.accelerator.unwrap_model(self.model)
        tensors = trained_tensors(model).items()
        self.best_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}

    def complete_checkpoint(self, checkpoint: Path, regularization: Regularization) -> None:
        """As in ``RegularizedTrainer``, after adding the best weights."""
        if self.best_weights is not None and self.args.should_save:
            save_file(self.best_weights, checkpoint / _BEST)
        super().complete_checkpoint(checkpoint, regularization)
