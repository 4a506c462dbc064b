"""Everything that this library uses of the private parts of ``transformers.Trainer``, and its callbacks.

Callbacks and public methods (``training_step``, ``log``, ``get_train_dataloader``, ...) serve everything else. A new
release of transformers may change the private parts; ``tests/training/test_trainer_hooks.py`` compares them with the
installed one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import IntervalStrategy, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from attendrop.model_support.devices import gathered
from attendrop.model_support.models import transformers_model
from attendrop.training.checkpoints import reading, refuse_pickled_weights
from attendrop.training.model_call import replaced_attribute

# What trainers of TRL record in each call of compute_loss, and log as means or sums.
_RECORDS = ("_metrics", "_total_train_tokens")


@contextmanager
def unrecorded(trainer: Trainer) -> Iterator[None]:
    """Undo what a trainer records within the block, of a pass that it would not have run itself."""
    kept = {name: deepcopy(value) for name, value in vars(trainer).items() if name in _RECORDS}
    try:
        yield
    finally:
        vars(trainer).update(kept)


def _is_stock(method: Any) -> bool:
    """Whether a method of a trainer is that of ``transformers.Trainer``."""
    return method.__func__ is getattr(Trainer, method.__name__)


def is_stock_loss(trainer: Trainer, compute_loss: Any) -> bool:
    """Whether a trainer's loss is the one that transformers computes."""
    return getattr(compute_loss, "__func__", None) is Trainer.compute_loss and trainer.compute_loss_func is None


def countable(labels: Any) -> Any:
    """Replace numbers to predict by zeros, since -100 is one of them: losses of transformers leave out no number."""
    return torch.zeros_like(labels) if isinstance(labels, Tensor) and labels.is_floating_point() else labels


class TrainerHooks(Trainer):
    """``transformers.Trainer`` with the hooks that it lacks, which subclasses override.

    Attributes:
        kept_columns: Columns of the data that reach the collator, beside those that the model reads.
        has_stopped: Whether training had ended before its last step at the checkpoint that it is resumed from.
    """

    kept_columns: Sequence[str] = ()
    has_stopped = False
    _evaluates = False

    def train_sampler(self, rows: Any) -> Sampler[int] | None:
        """Make the sampler of training rows; None for that of ``transformers.Trainer``."""
        return None

    def eval_sampler(self, rows: Any) -> Sampler[int] | None:
        """Make the sampler of rows to evaluate on or predict; None for that of ``transformers.Trainer``."""
        return None

    def place_in_stream(self) -> tuple[int, int] | None:
        """Return where to resume in data without a length, as an epoch and a number of batches; None at the start."""
        return None

    def saving(self, checkpoint: Path) -> AbstractContextManager[None]:
        """Return a context in which ``transformers.Trainer`` writes a checkpoint."""
        return nullcontext()

    def may_be_best(self) -> bool:
        """Return whether the model that was just evaluated can become the best one."""
        return True

    def is_mean_loss(self, inputs: dict[str, Any]) -> bool:
        """Return whether the loss is a mean over a batch, whatever number of items it is to be divided by."""
        return False

    def found_best(self) -> None:
        """Called when the model that was just evaluated is the best so far."""

    # DataLoaders are made with the sampler and the columns that these methods give. A sampler of the trainer that this
    # is mixed into is not replaced.

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        usual = _is_stock(super()._get_train_sampler)
        made = self.train_sampler(self.train_dataset if train_dataset is None else train_dataset) if usual else None
        return super()._get_train_sampler(train_dataset) if made is None else made

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        usual = _is_stock(super()._get_eval_sampler)
        made = self.eval_sampler(eval_dataset) if usual else None
        return super()._get_eval_sampler(eval_dataset) if made is None else made

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        known: Any = self._signature_columns
        if known is not None:
            self._signature_columns: Any = [*known, *(name for name in self.kept_columns if name not in known)]

    @contextmanager
    def keeping_columns(self, names: Sequence[str]) -> Iterator[None]:
        """Keep more columns within the block, in which a DataLoader is made."""
        with (
            replaced_attribute(self, "_signature_columns", self._signature_columns),
            replaced_attribute(self, "kept_columns", [*self.kept_columns, *names]),
        ):
            yield

    def readable(self, rows: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
        """Return the rows, and a collator, so that batches have only the columns that the model reads.

        If it reads none but labels, the collator makes the model's inputs from the other columns.
        """
        if hasattr(rows, "column_names"):  # of the package datasets, which need not be installed
            self._set_signature_columns_if_needed()
            labels = {"label", "label_ids", *self.label_names}
            if not ({*self._signature_columns} - labels) & {*rows.column_names}:
                return rows, self.data_collator
            return self._remove_unused_columns(rows, description="method"), self.data_collator
        return rows, self._get_collator_with_removed_columns(self.data_collator, description="method")

    # Each pass over a DataLoader draws the seed of its workers, but where these persist, only the first one of a
    # process does: a resumed run would draw other numbers afterwards than one that was not interrupted.

    def _get_dataloader(
        self, dataset: Any, description: str, batch_size: int, sampler_fn: Any = None, is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader[Any]:  # fmt: skip
        loader: DataLoader[Any] = super()._get_dataloader(
            dataset, description, batch_size, sampler_fn, is_training, dataloader_key
        )
        if self.args.dataloader_persistent_workers:
            prepared: Any = getattr(loader, "base_dataloader", loader)
            prepared.generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    # What a checkpoint holds is read by PyTorch and safetensors, whose errors are not for users.

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        refuse_pickled_weights(Path(resume_from_checkpoint))
        with reading(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, *(() if model is None else (model,)))

    def _load_best_model(self) -> None:
        best = str(self.state.best_model_checkpoint)
        refuse_pickled_weights(Path(best))
        with reading(best, "the weights"):
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading(str(checkpoint), "the state of the optimizer or of its schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with reading(str(checkpoint), "the state of the gradient scaler"):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading(str(checkpoint), "the state of the random numbers"):
            super()._load_rng_state(checkpoint)

    # The position at which a resumed run begins is a local variable of the training loop, which assigns all steps to
    # the first epoch if the length of the data is unknown. Callbacks keep no counts, such as epochs without
    # improvement, unless arguments are restored, too. The best checkpoint is recorded by its path: if the folder was
    # moved, or the path is relative to another folder, it would be lost, and the last weights kept. The loop takes a
    # step before it counts: from the last checkpoint, if that is in the middle of an epoch, one more than all.

    def _init_training_state(
        self, max_steps: Any, num_update_steps_per_epoch: Any, num_train_epochs: Any, resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:  # fmt: skip
        found: tuple[int, int] = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None:
            with reading(resume_from_checkpoint, "what callbacks had counted"):
                self._restore_counts()
            best = Path(resume_from_checkpoint).parent / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            if self.state.best_global_step and best.is_dir():
                self.state.best_model_checkpoint = str(best)
            if self.has_stopped or self.state.global_step >= max_steps:
                return num_train_epochs, 0
        return (self.place_in_stream() or found) if num_train_epochs == sys.maxsize else found

    def _restore_counts(self) -> None:
        """Restore what callbacks counted until the checkpoint; their arguments are those that they have now."""
        states: Any = self.state.stateful_callbacks
        for name, saved in states.items():
            callbacks = [each for each in self.callback_handler.callbacks if type(each).__name__ == name]
            for callback, state in zip(callbacks, saved if isinstance(saved, list) else [saved], strict=False):
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)

    # A callback sees neither the moment before a checkpoint is written, nor that before older ones are deleted. It is
    # pushed to the hub once it is complete.

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with self.saving(checkpoint), replaced_attribute(self, "_push_from_checkpoint", lambda folder: None):
            super()._save_checkpoint(model, trial)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    # A callback sees the metrics, but cannot refuse the model, and does not learn whether it is the best.

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if not self.may_be_best():
            return False
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best:
            self.found_best()
        return is_best

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of missing weights, but for those that no checkpoint has: tied ones, and fixed positions."""
        model: Any = transformers_model(self.model)
        unsaved: list[str] = getattr(model, "_keys_to_ignore_on_save", None) or []
        absent = {*getattr(model, "all_tied_weights_keys", ()), *unsaved}
        missing = [key for key in load_result.missing_keys if key not in absent]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name in missing:
                raise KeyError(name)  # which becomes a sentence, as all that is wrong with what a checkpoint holds
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    # Labels of -100 are not counted, not even among numbers to predict. The stock trainer multiplies the loss of an
    # evaluation by the number of processes if it passes the number of items of all, also where that is ignored.

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        with replaced_attribute(self, "_evaluates", True):
            return super().prediction_step(*args, **kwargs)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        counted = batch_samples
        if is_stock_loss(self, self.compute_loss):
            counted = [
                {**batch, "labels": countable(batch["labels"])} if "labels" in batch else batch
                for batch in batch_samples
            ]
        number: Tensor | int | None = super()._get_num_items_in_batch(counted, device)  # of all processes
        ignored = self._evaluates and self.args.world_size > 1 and number is not None
        return None if ignored and self.is_mean_loss(batch_samples[0]) else number

    # The loss since it was last logged is in no checkpoint, so the next loss logged would be a mean over fewer steps
    # than those since the last one.

    def unlogged_loss(self) -> tuple[Tensor, int]:
        """Return the sum of the losses of the steps since the loss was last logged, and the step of that."""
        return self._tr_loss, self._globalstep_last_logged

    def set_unlogged_loss(self, total: float, since_step: int) -> None:
        """Restore :meth:`unlogged_loss` when training begins; the mean over all steps is that of those to come."""
        self._tr_loss += total
        self._total_loss_scalar -= total
        self._globalstep_last_logged = since_step

    @property
    def loss_shifts_labels(self) -> bool:
        """Whether the loss predicts each label from the tokens before it."""
        return bool(self._loss_shifts_labels)


class TrainingClock(TrainerCallback):
    """Callback that tells a ``RegularizedTrainer`` when training, an epoch or an optimizer step begins or ends.

    Epochs count from 0; a resumed run continues its count.
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
    """Callback that saves the checkpoint of an epoch's or the run's last step only after evaluation and logs.

    A run resumed from such a checkpoint begins with the next epoch, or is at its end, and would skip these.
    """

    def __init__(self) -> None:
        self._save_is_due = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        more_to_come = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and _ends_epoch(state) and more_to_come:
            control.should_save = False
            self._save_is_due = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save = control.should_save or self._save_is_due
        self._save_is_due = False


def _ends_epoch(state: TrainerState) -> bool:
    """Return whether a step is the last of an epoch or of the run."""
    return state.global_step >= state.max_steps or (state.epoch is not None and float(state.epoch).is_integer())


class CheckpointAfterStep(JITCheckpointCallback):
    """The callback of ``transformers.Trainer`` that saves a checkpoint on SIGTERM, but never within a step.

    Where it stands among the callbacks, the method has been updated. Before the optimizer's step, which the stock
    callback does not wait for, the method has seen batches that are trained on again after a resumption. The trainer
    writes it, as any other: that of an epoch's last step after evaluation. In the middle of an epoch nothing is
    evaluated, which the resumed run would do again.
    """

    def __init__(self, stock: JITCheckpointCallback) -> None:
        self.trainer, self.jit_manager = stock.trainer, stock.jit_manager
        self._stopped_at: int | None = None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Wait for the end of the step."""

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait for the end of the step."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.jit_manager and _is_set_in_any(self.jit_manager.is_checkpoint_requested, args):
            self.jit_manager.is_checkpoint_requested = False
            control.should_save = control.should_training_stop = True
            self._stopped_at = state.global_step

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.on_step_end(args, state, control)
        if self._stopped_at == state.global_step and not _ends_epoch(state):
            control.should_evaluate = control.should_log = control.should_save = False


def _is_set_in_any(flag: bool, args: TrainingArguments) -> bool:
    """Return whether a flag is set in any process: a signal may reach each in another step, and all stop in one."""
    return flag if args.world_size == 1 else any(gathered(flag))
