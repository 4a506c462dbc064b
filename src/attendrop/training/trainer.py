"""A ``transformers.Trainer`` that regularises."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (
    Trainer,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalPrediction, TrainOutput, rotate_checkpoints

from attendrop.attention.isolation import evaluating, forked_rng
from attendrop.attention.model_outputs import named_outputs
from attendrop.attention.plan import Plan
from attendrop.attribution.label_positions import refuse_misplaced_smoothing
from attendrop.batches import Batch, number_of_rows
from attendrop.errors import AttendropError
from attendrop.methods.base import Method, MethodState
from attendrop.methods.context import LabelledData, Processes, TrainingContext, tokens_of
from attendrop.methods.finetune import FineTune
from attendrop.output_files import disk_errors
from attendrop.training.callbacks import Clock, warn_of_rest
from attendrop.training.checkpoints import (
    last_checkpoint,
    load_method_state,
    load_state,
    save_method_state,
    seal,
    unseal,
)
from attendrop.training.labelled_data import LabelledRows, set_aside, with_columns
from attendrop.training.model_call import ModelCall, columns_given, shadowed
from attendrop.training.regularization import Regularization
from attendrop.training.sampler import EpochSampler


class RegularizedTrainer(Trainer):
    """``transformers.Trainer`` with one more argument: what regularises training.

    Every other argument, callback and training argument means what it means there, and so does a subclass's own
    ``compute_loss``, which must call the model once. Four things differ:

    - While it trains, the method's figures are logged beside the loss: see :meth:`Regularization.logs`.
    - The order of batches is a function of the data seed and the epoch alone, so that a run that was killed and
      resumed goes on exactly, and so that all methods see the same batches.
      ``train_sampling_strategy="group_by_length"`` groups global batches of similar length and shuffles these.
    - Each checkpoint carries the method's state and a manifest. ``train(resume_from_checkpoint=True)`` takes the newest
      checkpoint that is complete, and starts over if there is none.
    - Under gradient accumulation and DDP, losses that are a mean over the micro-batch (those of classification heads,
      and of any ``compute_loss`` or ``compute_loss_func`` that ignores ``num_items_in_batch``) give the gradient of the
      mean over the whole batch. The stock trainer multiplies it by the number of micro-batches.

    Args:
        *args: As for ``transformers.Trainer``.
        regularizer: A method, such as ``ADDrop(p=0.3, q=0.3)``. None is plain fine-tuning.
        reward_dataset: Labelled rows, not trained on, that a method may score models on while it trains.
            By default the method sets a fraction of ``train_dataset`` aside, or takes ``eval_dataset``, as it says.
        **kwargs: As for ``transformers.Trainer``.

    Attributes:
        method_state: What the method keeps while it trains; after training, what it has kept.

    Raises:
        AttendropError: Several GPUs in one process (DataParallel), DeepSpeed or FSDP; reentrant activation
            checkpointing; or, when training starts, a model that the method cannot act on, or a ``compute_loss`` or
            ``training_step`` of a subclass's that leaves it no call of the model to act on.
    """

    def __init__(
        self, *args: Any, regularizer: Method | None = None, reward_dataset: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.regularizer = regularizer or FineTune()
        self.reward_dataset = reward_dataset
        self._regularization: Regularization | None = None
        self.method_state: MethodState | None = None
        self._resumed: tuple[dict[str, Any], Any] | None = None
        self._sampler: EpochSampler | None = None
        self._averages: bool | None = None
        self._refuse_unsupported()
        if self.regularizer.skips_parameters and self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.find_unused_parameters = True
        self._divide_rows()
        self.add_callback(Clock(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, or go on from a checkpoint: a path, or True for the newest complete one (none: from the start).

        Raises:
            AttendropError: The checkpoint is incomplete or belongs to another method, or the model is not supported.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(last_checkpoint(str(self.args.output_dir)) or "")
        checkpoint = str(resume_from_checkpoint or "")
        self._resumed = None
        if checkpoint:
            state = load_state(Path(checkpoint), self.regularizer)
            self._resumed = state, load_method_state(Path(checkpoint), self.args.process_index)
            # Early stopping counts on from where it was.
            self.args.restore_callback_states_from_checkpoint = True
        try:
            return super().train(checkpoint or None, *args, **kwargs)
        finally:
            self._end()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As in ``transformers.Trainer``; what ``compute_loss`` computes is computed with all passes of the method.

        That may be the one of a subclass: whatever it does, it calls the model, and the method acts on that call. Where
        the method takes an earlier step again, its micro-batches are those of that step.
        """
        if self._regularization is None:
            return super().training_step(model, inputs, num_items_in_batch)
        calls: int = self.current_gradient_accumulation_steps
        parts, count = self._regularization.replayed(inputs, num_items_in_batch, calls)
        total = torch.zeros((), device=self.args.device)
        self.current_gradient_accumulation_steps = count or calls
        with shadowed(self, "compute_loss", partial(self._regularized_loss, self.compute_loss)):
            for batch, items in parts:
                total = total + super().training_step(model, dict(batch), items)
        self.current_gradient_accumulation_steps = calls
        return total

    def _regularized_loss(
        self,
        own: Callable[..., Any],
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a training step, of which ``own``, the trainer's ``compute_loss``, computes each pass."""
        regularization = self._regularization
        assert regularization is not None
        self._look_at(own, model, inputs)
        rescale = num_items_in_batch is not None and self._averages_alone(own, inputs)

        def one_pass(batch: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
            # Of a batch whose rows a method repeats, each copy counts for its part.
            copies = number_of_rows(batch) // number_of_rows(inputs)
            items = None if num_items_in_batch is None else num_items_in_batch * copies
            given = None if rescale else items
            if other is None:
                loss, outputs = self._loss_and_outputs(own, model, batch, plan, given)
            else:
                loss, outputs = self._loss_of_a_copy(own, other, batch, given)
            if rescale:
                loss = loss * self._loss_weight(batch, items).to(loss.dtype)
            return loss, outputs

        counted = num_items_in_batch is not None and "labels" in inputs and self.loss_is_scaled_for_ga is not False
        regularization.loss_weight = self._loss_weight(inputs, num_items_in_batch).float() if counted else 1.0
        regularization.accumulation_steps = 1 if counted else self.current_gradient_accumulation_steps
        loss, outputs = regularization.compute(inputs, one_pass)
        return (loss, outputs) if return_outputs else loss

    def _loss_and_outputs(
        self,
        own: Callable[..., Any],
        model: nn.Module,
        inputs: Batch,
        plan: Plan | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> tuple[Tensor, Any]:
        """The loss that ``own`` computes, and what the model returned to it."""
        assert self._regularization is not None
        call = ModelCall(plan, once=self._regularization.reads_outputs)
        with call.watched(model):
            loss = own(model, dict(inputs), num_items_in_batch=num_items_in_batch)
        outputs = named_outputs(call.outputs, inputs)
        is_stock = getattr(own, "__func__", None) is Trainer.compute_loss and self.compute_loss_func is None
        if is_stock and self.label_smoother is not None:
            refuse_misplaced_smoothing(self.accelerator.unwrap_model(model), outputs.logits, inputs)
        return loss, outputs

    def _loss_of_a_copy(
        self,
        own: Callable[..., Any],
        model: nn.Module,
        inputs: Batch,
        num_items_in_batch: Tensor | int | None = None,
    ) -> tuple[Tensor, Any]:
        """As :meth:`_loss_and_outputs`, of a model in which accelerate did not build mixed precision."""
        with self.accelerator.autocast():
            return self._loss_and_outputs(own, model, inputs, None, num_items_in_batch)

    def _look_at(self, own: Callable[..., Any], model: nn.Module, inputs: dict[str, Any]) -> None:
        """Find out, in the first step, what ``own`` gives the model."""
        assert self._regularization is not None
        if self._regularization.idle or self._regularization.model_columns is not None:
            return
        with torch.no_grad(), forked_rng(model):
            given = columns_given(lambda: own(model, self._known(inputs)), model)
        made = sorted(name for name, value in given.items() if isinstance(value, Tensor) and name not in inputs)
        if made and any(method.uses_attention for method in self.regularizer.parts):
            raise AttendropError(
                f"compute_loss gives the model {made[0]!r}, which the batch does not hold, so the method cannot run "
                "the model itself; have the data collator put it into the batch."
            )
        self._regularization.model_columns = set(given)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in ``transformers.Trainer``, with the method's figures beside the training loss."""
        if self._regularization is not None and "loss" in logs:
            logs |= self._regularization.logs()
        super().log(logs, start_time)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """As in ``transformers.Trainer``; a model that the method will give up is not the best."""
        if self._regularization is not None and self._regularization.method_state.searching():
            return False
        return super()._determine_best_metric(metrics, trial)

    def _begin(self) -> None:
        """Called when training begins, with the model that it will train."""
        self._end()
        self._regularization = Regularization(self._training(), self.regularizer)
        self.method_state = self._regularization.method_state
        if self._resumed is not None:
            self._regularization.load_state_dict(*self._resumed)
            self._resume_loss(**self._resumed[0]["loss"])
        if self.is_world_process_zero():
            parts, epochs = self.regularizer.parts, self.state.num_train_epochs
            self._regularization.warned = {method for method in parts if warn_of_rest(method, epochs)}

    def _resume_loss(self, sum: float, since_step: int) -> None:
        """Let the loss that is logged next be the mean since it was last logged, also before training was resumed."""
        self._tr_loss += sum
        self._total_loss_scalar -= sum  # the trainer's own mean is that of the steps after
        self._globalstep_last_logged = since_step

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Which epoch to begin with, and how many batches of it to skip.

        Of data without a length the stock trainer counts all steps as those of the first epoch.
        """
        found: tuple[int, int] = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if self._resumed is None or num_train_epochs < sys.maxsize:
            return found
        state = self._resumed[0]
        return state["epoch"], 0 if self.args.ignore_data_skip else state["batches"]

    def _training(self) -> TrainingContext:
        return TrainingContext(
            model=self.accelerator.unwrap_model(self.model),
            evaluate=partial(self._loss_of_a_copy, self.compute_loss),
            seed=self.args.seed,
            processes=Processes(self.args.process_index, self.args.world_size, self._over_processes),
            total_steps=self.state.max_steps,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            max_grad_norm=self.args.max_grad_norm or None,
            scaler=self.accelerator.scaler,
            reward_data=self._labelled(self.reward_dataset) if self.regularizer.rewarded_on() is not None else None,
            train_data=self._labelled(self.train_dataset),
            metric=self._metric if self.compute_metrics is not None and self.args.metric_for_best_model else None,
            **tokens_of(self.processing_class),
        )

    def _divide_rows(self) -> None:
        """Find the rows that the method scores models on, where none were given."""
        if self.reward_dataset is not None or self.train_dataset is None:
            return
        match self.regularizer.rewarded_on():
            case "split":
                fraction = self.regularizer.rewarded_fraction()
                self.train_dataset, self.reward_dataset = set_aside(self.train_dataset, fraction, self.args.seed)
            case "eval" | "selection":
                if self.eval_dataset is None or isinstance(self.eval_dataset, dict):
                    raise AttendropError(
                        f"{self.regularizer.rewarded_by} needs one eval_dataset; or pass reward_dataset."
                    )
                self.reward_dataset = self.eval_dataset

    def _labelled(self, rows: Any) -> LabelledData | None:
        if rows is None or not hasattr(rows, "__len__"):
            return None
        collate = self.data_collator
        if hasattr(rows, "column_names"):  # of the package datasets, which need not be installed
            rows = self._remove_unused_columns(rows, description="method")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="method")
        return LabelledRows(rows, collate, self.args.device)

    def _metric(self, logits: Any, labels: Any) -> float:
        """The metric that chooses the best model, such that more is better."""
        assert self.compute_metrics is not None
        found = self.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))
        value = float(found[str(self.args.metric_for_best_model).removeprefix("eval_")])
        return value if self.args.greater_is_better in (None, True) else -value

    def _end(self) -> None:
        if self._regularization is not None:
            self._regularization.close()
        self._regularization = None

    def _after_step(self, is_last: bool) -> None:
        if self._regularization is None:
            return
        if not (self._regularization.idle or self._regularization.loss_computed):
            raise AttendropError(
                f"{type(self).__name__}.training_step took a step without compute_loss, so the method could not act; "
                "have it call super().training_step."
            )
        self._regularization.step()
        if is_last:
            self._regularization.finish()
        self._log_metrics()

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in ``transformers.Trainer``; first the method finishes, also where training ended before its last step."""
        if self._regularization is not None:
            self._regularization.finish()
            self._log_metrics()
        return super()._finalize_training(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]

    def _log_metrics(self) -> None:
        assert self._regularization is not None
        metrics = self._regularization.metrics()
        if metrics:
            due = self.control.should_log  # which logging unsets, though the loss of the step is yet to be logged
            self.log(metrics)
            self.control.should_log = due

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As in ``transformers.Trainer``, with the columns that the method reads."""
        self._set_signature_columns_if_needed()
        collate, known = self.data_collator, self._signature_columns
        self.data_collator = with_columns(collate, tuple(self.regularizer.columns))
        if known is not None:
            self._signature_columns = [*known, *self.regularizer.columns]
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator, self._signature_columns = collate, known

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = self.args.train_sampling_strategy
        if dataset is None or not hasattr(dataset, "__len__") or strategy not in ("random", "group_by_length"):
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        global_batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        lengths = self._lengths(dataset) if strategy == "group_by_length" else None
        self._sampler = EpochSampler(len(dataset), seed, global_batch, lengths)
        return self._sampler

    def _lengths(self, dataset: Any) -> list[int]:
        """The length of each row, from the length column (which ``dataset`` may have lost by now) or the tokens."""
        column = self.args.length_column_name
        sources: tuple[Any, Any] = (dataset, self.train_dataset)
        for source in sources:
            if column in (getattr(source, "column_names", None) or ()) and len(source) == len(dataset):
                return [int(length) for length in source[column]]
        try:
            return [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
        except (KeyError, TypeError):
            raise AttendropError(
                f"train_sampling_strategy='group_by_length' needs a column '{column}' or 'input_ids' in the data."
            ) from None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save as ``transformers.Trainer`` does; older checkpoints go only when the new one is complete."""
        folder = Path(self._get_output_dir(trial=trial))
        checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            unseal(checkpoint)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with disk_errors(checkpoint):
                super()._save_checkpoint(model, trial)
                self._complete_checkpoint(checkpoint)
        except BaseException:
            if self.args.should_save:  # on a full disk, the rest of it would be in the way
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        finally:
            self.args.save_total_limit = limit
        if self._regularization is not None and self.args.should_save:
            rotate_checkpoints(str(folder), limit, self.state.best_model_checkpoint, use_mtime=False)

    def _complete_checkpoint(self, checkpoint: Path) -> None:
        """Add what the method keeps and the loss since it was last logged, and then the manifest."""
        if self._regularization is None:
            return
        save_method_state(checkpoint, *self._regularization.method_state_dicts(), self.args.process_index)
        loss = {"sum": self._over_processes(self._tr_loss).item() / self.args.world_size}
        loss["since_step"] = self._globalstep_last_logged
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(checkpoint, self.regularizer, self._regularization.state_dict() | {"loss": loss})

    def _averages_alone(self, own: Callable[..., Any], inputs: dict[str, Any]) -> bool:
        """Whether the loss is a mean over the micro-batch, though the trainer holds it for a sum over all that is due.

        Stock trainer and model disagree there: it passes ``num_items_in_batch``, which most heads but those of language
        models ignore, as do many a ``compute_loss`` and ``compute_loss_func``. Asked of the loss itself, once, and only
        where it makes a difference and nobody says how it is.
        """
        if self.args.gradient_accumulation_steps == self.args.world_size == 1 or "labels" not in inputs:
            return False
        if self.loss_is_scaled_for_ga is not None:
            return False
        if self._averages is None:
            model = self.accelerator.unwrap_model(self.model)
            with torch.no_grad(), forked_rng(model), evaluating(model):
                counts = (torch.tensor(count, device=self.args.device) for count in (1, 2))
                losses = [own(model, self._known(inputs), num_items_in_batch=count) for count in counts]
            self._averages = torch.equal(losses[0], losses[1])
        return self._averages

    def _known(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A copy of a batch without the columns that are for the method alone."""
        return {name: value for name, value in inputs.items() if name not in self.regularizer.columns}

    def _loss_weight(self, batch: Batch, num_items_in_batch: Tensor | int | None) -> Tensor:
        """The weight of a micro-batch's mean: its labels over those of the step, times the processes averaged over."""
        labels = batch["labels"][..., 1:] if self._loss_shifts_labels else batch["labels"]
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1
        weight: Tensor = labels.ne(-100).sum().double() * processes / num_items_in_batch
        return weight

    def _over_processes(self, counts: Tensor) -> Tensor:
        if self.args.world_size == 1:
            return counts
        total: Tensor = self.accelerator.reduce(counts.to(self.accelerator.device), "sum")
        return total

    def _refuse_unsupported(self) -> None:
        if self.args.n_gpu > 1:
            raise AttendropError(
                f"{self.args.n_gpu} GPUs in one process would train under DataParallel, which is not supported. Start "
                "one process for each with `torchrun --nproc-per-node`, or set CUDA_VISIBLE_DEVICES to one."
            )
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise AttendropError("DeepSpeed and FSDP are not supported; train with DDP (torchrun, accelerate launch).")
        keywords = self.args.activation_checkpointing_kwargs
        if self.args.activation_checkpointing and isinstance(keywords, dict) and keywords.get("use_reentrant"):
            raise AttendropError(
                "Reentrant activation checkpointing is not supported; set "
                "activation_checkpointing_kwargs={'use_reentrant': False}."
            )
