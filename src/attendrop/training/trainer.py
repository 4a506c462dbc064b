"""``transformers.Trainer`` with a method that regularises training, and the order and columns of its rows.

The private parts of ``transformers.Trainer`` that the library uses are all used here. A new release of transformers may
change them; ``tests/training/test_trainer.py`` compares them with the installed one.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler, Subset
from transformers import (
    IntervalStrategy,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalPrediction, TrainOutput

from attendrop.attention.hooks import ModuleHooks, is_compiled, replaced_attribute
from attendrop.attention.padding import leave_out_padding
from attendrop.errors import AttendropError
from attendrop.methods.core.base import FineTune, Method, MethodState
from attendrop.methods.core.context import LabelledRows, Processes, RunningStatistics, TrainingContext, tokens_of
from attendrop.methods.core.registry import check_method
from attendrop.support.files import disk_errors
from attendrop.support.models import ANSWER_MASK, ROW_INDEX, Batch, freeze_unsaved, gathered, sharding_mesh
from attendrop.training import checkpoints
from attendrop.training.regularization import Regularization, is_stream
from attendrop.training.trainer_loss import TrainerLoss, countable, is_stock_loss

# Batches of which the rows are sorted by length together.
_BATCHES_IN_GROUP = 8


class RegularizedTrainer(Trainer):
    """``transformers.Trainer`` with one more argument: what regularises training.

    All other arguments, callbacks and training arguments work as they do there, and so does a subclass's own
    ``compute_loss``, which must call the model once. Five things differ:

    - The metrics of the method are logged beside the loss: see :meth:`Regularization.logs`.
    - The order of batches depends on the data seed and the epoch alone, so that a resumed run continues exactly, and
      all methods see the same batches. ``train_sampling_strategy="group_by_length"`` shuffles global batches of similar
      length.
    - Each checkpoint contains the method's state and a manifest. ``train(resume_from_checkpoint=True)`` takes the
      newest checkpoint that is complete, and starts over if there is none.
    - Under gradient accumulation and DDP, losses that are a mean over the micro-batch (those of classification heads,
      and of any ``compute_loss`` or ``compute_loss_func`` that ignores ``num_items_in_batch``) give the gradient of the
      mean over the whole batch. The stock trainer multiplies it by the number of micro-batches, and such a loss of an
      evaluation by the number of processes.
    - Parameters that the model's class leaves out of its files, Marian's computed positions, are not trained.
    - On a CPU, linear layers of models that answer with one vector a row leave out padding: the same steps up to
      rounding, in less time.

    Args:
        *args: As for ``transformers.Trainer``.
        regularizer: A method, such as ``ADDrop()``. None is plain fine-tuning.
        reward_dataset: Labelled rows, not trained on, on which a method may score models during training. By default,
            depending on the method, a fraction of ``train_dataset`` is held out, or ``eval_dataset`` is used.
        compute_reward_metrics: Function for metrics of batches of these rows, for methods that use metrics as rewards,
            of an ``EvalPrediction`` without inputs; by default ``compute_metrics``.
        **kwargs: As for ``transformers.Trainer``.

    Attributes:
        method_state: The state of the method, during and after training.
        kept_columns: Columns of the data that reach the collator, beside those that the model reads.
        has_stopped: Whether training had ended before its last step at the checkpoint that it is resumed from.

    Raises:
        AttendropError: Several GPUs in one process (DataParallel), DeepSpeed or FSDP; a model that ``torch.compile``
            wrapped; reentrant activation checkpointing; ``auto_find_batch_size``, ``enable_jit_checkpoint`` or
            ``dataloader_persistent_workers``; or, when training starts, a model that the method cannot act on, or a
            ``compute_loss`` or ``training_step`` of a subclass that leaves it no call of the model to act on.
    """

    kept_columns: Sequence[str] = ()
    has_stopped = False
    _evaluates = False

    def __init__(
        self,
        *args: Any,
        regularizer: Method | None = None,
        reward_dataset: Any = None,
        compute_reward_metrics: Callable[..., dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.regularizer = FineTune() if regularizer is None else check_method(regularizer)
        super().__init__(*args, **kwargs)
        self.reward_dataset = reward_dataset
        metrics: Callable[..., dict[str, float]] | None = compute_reward_metrics or self.compute_metrics
        self.compute_reward_metrics = metrics
        self._regularization: Regularization | None = None
        self._padding = ModuleHooks()
        self._loss: TrainerLoss | None = None
        self.method_state: MethodState | None = None
        self._resumed: tuple[dict[str, Any], Path] | None = None
        self._sampler: EpochSampler | None = None
        if self.regularizer.info.skips_parameters and self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.find_unused_parameters = True
        if self.args.n_gpu > 1:
            raise AttendropError(
                f"{self.args.n_gpu} GPUs in one process would train under DataParallel, which is not supported. Start "
                "one process for each with `torchrun --nproc-per-node`, or set CUDA_VISIBLE_DEVICES to one. To train "
                "on one and give another to a method's second model, start `torchrun --nproc-per-node 1`."
            )
        divided = isinstance(self.model, nn.Module) and sharding_mesh(self.model) is not None
        if self.is_deepspeed_enabled or self.is_fsdp_enabled or divided:
            raise AttendropError(
                "RegularizedTrainer supports neither DeepSpeed nor FSDP; train with DDP (torchrun, accelerate launch), "
                "or divide the model by fully_shard (FSDP2) and train it in a loop of your own, with regularize(...)."
            )
        if hasattr(self.model, "_orig_mod"):
            raise AttendropError(
                "The model is wrapped by torch.compile: columns would be lost, and it would be saved under names that "
                "from_pretrained does not know. Pass the model itself, with torch_compile=True in the training "
                "arguments."
            )
        # These begin or end within a step, or draw random numbers that a resumed run would not.
        for name in ("auto_find_batch_size", "enable_jit_checkpoint", "dataloader_persistent_workers"):
            if getattr(self.args, name, False):
                raise AttendropError(f"RegularizedTrainer does not support {name}; leave it out.")
        # The second run of a block, in the backward pass, would not be that of the first with a method in it.
        given = vars(self.args)
        name = "activation" if "activation_checkpointing" in given else "gradient"  # before transformers 5.23
        keywords = given[f"{name}_checkpointing_kwargs"]
        reentrant = given[f"{name}_checkpointing"] and isinstance(keywords, dict) and keywords.get("use_reentrant")
        if reentrant and self.regularizer != FineTune():
            raise AttendropError(
                f"Method '{self.regularizer.name}' does not support reentrant activation checkpointing; set "
                f"{name}_checkpointing_kwargs={{'use_reentrant': False}}."
            )
        method, by_length = self.regularizer, self.args.train_sampling_strategy == "group_by_length"
        rewarded_by = f"reward_data={method.rewarded_on()!r}"
        if self.reward_dataset is None and self.train_dataset is not None:
            match method.rewarded_on():
                case "split":
                    fraction, seed = method.rewarded_fraction(), self.args.seed
                    self.train_dataset, self.reward_dataset = set_aside(self.train_dataset, fraction, seed)
                case "eval":
                    if self.eval_dataset is None or isinstance(self.eval_dataset, dict):
                        raise AttendropError(f"{rewarded_by} needs one eval_dataset; or pass reward_dataset.")
                    self.reward_dataset = self.eval_dataset
        for chooses, rows, why in (
            (by_length, self.train_dataset, "train_sampling_strategy='group_by_length' sorts rows by their lengths"),
            (method.needs_rows, self.train_dataset, f"Method '{method.name}' needs row indices"),
            (method.rewarded_on(), self.reward_dataset, f"{rewarded_by} draws rows at random"),
        ):
            if chooses and is_stream(rows):
                raise AttendropError(f"{why}, and those given are a stream; pass a data set with random access.")
        makes_batches: Any = super().get_train_dataloader
        if method.needs_rows and makes_batches.__func__ is not Trainer.get_train_dataloader:
            raise AttendropError(
                f"Method '{method.name}' needs row indices, and {type(self).__name__} makes its own batches, which "
                "have none; use another method or option."
            )
        self.add_callback(TrainingClock(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, or resume from a checkpoint: a path, or True for the newest complete one (none: from the start).

        Raises:
            AttendropError: The checkpoint is incomplete, belongs to another method, has pickled weights or state that
                cannot be read; or the model is not supported.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(checkpoints.last_checkpoint(str(self.args.output_dir)) or "")
        checkpoint = str(resume_from_checkpoint or "")
        self._resumed = None
        if checkpoint:
            self._resumed = checkpoints.load_state(Path(checkpoint), self.regularizer), Path(checkpoint)
            given: Any = self.args.accelerator_config
            if self.args.world_size > 1 and given.dispatch_batches and not is_stream(self.train_dataset):
                # It takes the batches of a process for those of all.
                raise AttendropError(
                    "In several processes with dispatch_batches=True, accelerate skips too few rows of the epoch; "
                    "resume without it."
                )
        try:
            return super().train(checkpoint or None, *args, **kwargs)
        finally:
            self._end()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As in ``transformers.Trainer``, without what the model (perhaps anew from ``model_init``) does not save."""
        freeze_unsaved(self.model)
        return super().create_optimizer(*args, **kwargs)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As in ``transformers.Trainer``, with all passes of the method in what ``compute_loss`` computes."""
        if self._regularization is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self._regularization.batches += 1
        assert self._loss is not None
        with replaced_attribute(self, "compute_loss", partial(self._loss.regularized, self._regularization)):
            return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in ``transformers.Trainer``, with the metrics of the method beside the training loss."""
        if self._regularization is not None and "loss" in logs:
            logs |= self._regularization.logs()
        if self._regularization is not None and "train_runtime" in logs:  # the last ones, also if training stops early
            self._regularization.finish()
            self._log_metrics()
        super().log(logs, start_time)

    def begin_training(self) -> None:
        """Apply the method to the model that the trainer has prepared."""
        self._end()
        self._loss = trainer_loss = TrainerLoss(self, self.regularizer, shifts_labels=bool(self._loss_shifts_labels))
        name = str(self.args.metric_for_best_model or "").removeprefix("eval_")
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else ()
        name = name.removeprefix(next((f"{each}_" for each in sets if name.startswith(f"{each}_")), ""))
        scores = self.compute_reward_metrics is not None and name not in ("", "loss")
        run = self.model_wrapped if is_compiled(self.model_wrapped) else None
        training = TrainingContext(
            model=self.accelerator.unwrap_model(self.model),
            evaluate=trainer_loss.evaluate,
            seed=self.args.seed,
            processes=Processes(self.args.process_index, self.args.world_size, self._over_processes, gathered),
            total_steps=self.state.max_steps,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            max_grad_norm=self.args.max_grad_norm or None,
            scaler=self.accelerator.scaler,
            reward_data=None if self.regularizer.rewarded_on() is None else self.labelled(self.reward_dataset),
            train_data=self.labelled(self.train_dataset),
            metric=partial(self._metric, name) if scores else None,
            # A loss of one's own may read hidden states at padding.
            leaves_out_padding=run is None and getattr(self.compute_loss, "__func__", None) is Trainer.compute_loss,
            **tokens_of(self.processing_class),
        )
        self._regularization = Regularization(training, self.regularizer, run)
        if training.leaves_out_padding:
            self._padding = leave_out_padding(training.model)
        self.method_state = self._regularization.method_state
        if self._resumed is not None:
            state, checkpoint = self._resumed
            with checkpoints.reading(checkpoint, "the state of its method"):
                statistics = {} if self.args.process_index else state["statistics"]  # those of all processes
                self._regularization.load_state_dict(
                    state | {"statistics": statistics},
                    checkpoints.load_method_state(checkpoint, self.args.process_index, self.args.world_size),
                )
                # The loss since it was last logged; the mean over all steps is that of those to come.
                self._tr_loss += state["loss"]["sum"]
                self._total_loss_scalar -= state["loss"]["sum"]
                self._globalstep_last_logged = state["loss"]["since_step"]
        self._regularization.warn_of_inactive_epochs(self.state.num_train_epochs)

    def _end(self) -> None:
        """Detach the method from the model. Idempotent."""
        if self._regularization is not None:
            self._regularization.close()
        self._regularization = None
        self._padding.close()

    def labelled(self, rows: Any) -> LabelledRows | None:
        """Make batches of rows of only the columns that the model reads; None for streams and several data sets."""
        if rows is None or is_stream(rows) or isinstance(rows, Mapping):  # several data sets, by name
            return None
        collate = self.data_collator
        if not hasattr(rows, "column_names"):  # of the package datasets, which need not be installed
            collate = self._get_collator_with_removed_columns(collate, description="method")
        else:
            self._set_signature_columns_if_needed()
            labels = {"label", "label_ids", *self.label_names}
            # If the model reads none but labels, the collator makes its inputs from the other columns.
            if ({*self._signature_columns} - labels) & {*rows.column_names}:
                rows = self._remove_unused_columns(rows, description="method")
        return LabelledRows(rows, collate, self.args.device)

    def _metric(self, name: str, logits: Tensor, batch: Batch) -> float:
        """Compute the metric that selects the best model, of one batch, with a sign such that more is better."""
        assert self.compute_reward_metrics is not None
        if self.preprocess_logits_for_metrics is not None:
            logits = self.preprocess_logits_for_metrics(logits, batch["labels"])
        arrays = nested_numpify({"predictions": logits, "label_ids": batch["labels"]})  # type: ignore[no-untyped-call]
        metrics = self.compute_reward_metrics(EvalPrediction(**arrays))
        found = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        if name not in found:
            raise AttendropError(
                f"metric_for_best_model={self.args.metric_for_best_model!r} is none of the metrics that were computed: "
                f"{', '.join(found)}; name one of these."
            )
        value = float(found[name])
        return value if self.args.greater_is_better in (None, True) else -value

    def _log_metrics(self) -> None:
        assert self._regularization is not None
        metrics = self._regularization.metrics()
        if metrics:
            due = self.control.should_log  # logging unsets this, though the loss of the step is yet to be logged
            self.log(metrics)
            self.control.should_log = due

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As in ``transformers.Trainer``, with the mask of answers, and row indices if the method needs them."""
        rows, needed = self.train_dataset, self.regularizer.needs_rows
        with (
            replaced_attribute(self, "data_collator", ColumnCollator(self.data_collator)),
            replaced_attribute(self, "train_dataset", IndexedRows(rows) if needed and rows is not None else rows),
            replaced_attribute(self, "_signature_columns", self._signature_columns),
            replaced_attribute(self, "kept_columns", [*self.kept_columns, ANSWER_MASK, *[ROW_INDEX] * needed]),
        ):
            return super().get_train_dataloader()

    def _over_processes(self, counts: Tensor) -> Tensor:
        if self.args.world_size == 1:
            return counts
        total: Tensor = self.accelerator.reduce(counts.to(self.accelerator.device), "sum")
        return total

    def eval_sampler(self, rows: Any) -> Sampler[int] | None:
        """Make the sampler of rows to evaluate on or predict; None for that of ``transformers.Trainer``."""
        return None

    # What follows overrides private methods. DataLoaders are made with a sampler whose order is a function of the seed
    # and the epoch, except for streams and other orders. A sampler of the trainer that this is mixed into is not
    # replaced.

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        stock: Any = super()._get_train_sampler
        given: list[Any] = [self.train_dataset if train_dataset is None else train_dataset, self.train_dataset]
        rows, original = (each.rows if isinstance(each, IndexedRows) else each for each in given)
        strategy = self.args.train_sampling_strategy
        known = strategy in ("random", "group_by_length") and stock.__func__ is Trainer._get_train_sampler
        if rows is None or not hasattr(rows, "__len__") or not known:
            found: Sampler[int] | None = stock(train_dataset)
            return found
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        global_batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        lengths: Sequence[int] | None = None
        if strategy == "group_by_length":
            column = self.args.length_column_name
            for source in (rows, original):  # unused columns may have been removed from the first
                if column in (getattr(source, "column_names", None) or ()) and len(source) == len(rows):
                    lengths = lengths or [int(length) for length in source[column]]
            try:
                lengths = lengths or [len(rows[i]["input_ids"]) for i in range(len(rows))]
            except (KeyError, TypeError):
                raise AttendropError(
                    f"train_sampling_strategy='group_by_length' needs a column '{column}' or 'input_ids' in the data."
                ) from None
        self._sampler = EpochSampler(len(rows), seed, global_batch, lengths)
        return self._sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        stock: Any = super()._get_eval_sampler
        made = self.eval_sampler(eval_dataset) if stock.__func__ is Trainer._get_eval_sampler else None
        found: Sampler[int] | None = stock(eval_dataset) if made is None else made
        return found

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        known: Any = self._signature_columns
        if known is not None:
            self._signature_columns: Any = [*known, *(name for name in self.kept_columns if name not in known)]

    # What a checkpoint holds is read by PyTorch and safetensors, whose errors are not for users.

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        checkpoints.refuse_pickled_weights(Path(resume_from_checkpoint))
        with checkpoints.reading(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, *(() if model is None else (model,)))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights of another model, of which transformers only warns; called within what reads a checkpoint."""
        here, missing = self.model.state_dict(), {*load_result.missing_keys}  # type: ignore[union-attr]
        loaded = {value.data_ptr() for name, value in here.items() if name not in missing}  # weights may be shared
        missing = {name for name in missing if name not in here or here[name].data_ptr() not in loaded}
        if missing - {*(getattr(self.model, "_keys_to_ignore_on_save", None) or ())} or load_result.unexpected_keys:
            raise KeyError(f"the weights are those of another model: {load_result}")
        super()._issue_warnings_after_load(load_result)

    def _load_best_model(self) -> None:
        best = str(self.state.best_model_checkpoint)
        checkpoints.refuse_pickled_weights(Path(best))
        with checkpoints.reading(best, "the weights"):
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with checkpoints.reading(str(checkpoint), "the state of the optimizer or of its schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with checkpoints.reading(str(checkpoint), "the state of the gradient scaler"):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with checkpoints.reading(str(checkpoint), "the state of the random numbers"):
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
            states: Any = self.state.stateful_callbacks
            with checkpoints.reading(resume_from_checkpoint, "what callbacks had counted"):
                for name, saved in states.items():  # their arguments are those that they have now
                    callbacks = [each for each in self.callback_handler.callbacks if type(each).__name__ == name]
                    for callback, state in zip(callbacks, saved if isinstance(saved, list) else [saved], strict=False):
                        for attribute, value in state.get("attributes", {}).items():
                            setattr(callback, attribute, value)
            with checkpoints.reading(resume_from_checkpoint, TRAINER_STATE_NAME):
                recorded = TrainerState.load_from_json(str(Path(resume_from_checkpoint, TRAINER_STATE_NAME)))
            if recorded.best_model_checkpoint is not None:
                best = Path(resume_from_checkpoint).parent / Path(recorded.best_model_checkpoint).name
                if best.is_dir():
                    self.state.best_model_checkpoint = str(best)
                best = Path(self.state.best_model_checkpoint or best)
                if self.args.load_best_model_at_end and not checkpoints.is_complete(best):
                    raise AttendropError(
                        f"The best checkpoint, '{best}', with whose weights the run ends, is missing or not complete; "
                        "put it back, or train anew."
                    )
            if self.has_stopped or self.state.global_step >= max_steps:
                return num_train_epochs, 0
        if num_train_epochs == sys.maxsize and self._resumed is not None:  # a stream
            resumed = self._resumed[0]
            return resumed["epoch"], 0 if self.args.ignore_data_skip else resumed["batches"]
        return found

    # A checkpoint is complete with its manifest, which a callback cannot write last. Older ones are deleted after that,
    # an interrupted one at once, and it is pushed to the hub once complete. The next loss that is logged is a mean over
    # all steps since the last one, also in a resumed run: so the sum is kept. The files of some families (ViT, DeiT,
    # DINOv2) have other names of parameters, which from_pretrained converts. The trainer reads a checkpoint without
    # converting, and would leave such parameters as they are, so it has the names that they have in the model.

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        saved: Any = self.accelerator.unwrap_model(self.model)
        own_names: Any = nullcontext()
        if isinstance(saved, PreTrainedModel):  # not of PEFT
            save = partial(saved.save_pretrained, save_original_format=False)
            own_names = replaced_attribute(saved, "save_pretrained", save)
        regularization, rank, world_size = self._regularization, self.args.process_index, self.args.world_size
        assert regularization is not None
        try:
            with (
                replaced_attribute(self.args, "save_total_limit", None),
                replaced_attribute(self, "_push_from_checkpoint", lambda folder: None),
                disk_errors(checkpoint),
                own_names,
            ):
                super()._save_checkpoint(model, trial)
                checkpoints.save_method_state(checkpoint, *regularization.method_state_dicts(), rank, world_size)
                total = self._over_processes(self._tr_loss).item() / world_size
                state = regularization.state_dict()
                state["loss"] = {"sum": total, "since_step": self._globalstep_last_logged}
                state["statistics"] = RunningStatistics.merged(gathered(state["statistics"])).state_dict()
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    checkpoints.write_manifest(checkpoint, self.regularizer, state)
        except BaseException:
            if self.args.should_save:  # on a full disk, an incomplete checkpoint would take up space
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        if self.args.should_save:
            checkpoints.delete_old(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    # A callback sees the metrics, but cannot refuse a model that the method will discard.

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if self._regularization is not None and any(
            state.searching for state in self._regularization.method_state.parts
        ):
            return False
        return super()._determine_best_metric(metrics, trial)

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
        if self._evaluates and self.args.world_size > 1 and number is not None:
            self._loss = self._loss or TrainerLoss(self, self.regularizer, shifts_labels=bool(self._loss_shifts_labels))
            number = None if self._loss.is_mean(batch_samples[0]) else number
        return number


def regularized(trainer: type[Trainer]) -> type[RegularizedTrainer]:
    """Return a class of trainers that takes ``regularizer=``, as :class:`RegularizedTrainer` does, made from another.

    Example:
        >>> trainer = regularized(SFTTrainer)(model=model, train_dataset=rows, args=args, regularizer=ADDrop())

    Its loss must come from one call of a transformers model, unless the method acts on weights or gradients only.
    Tested with ``trl.SFTTrainer`` and ``trl.DPOTrainer``, whose losses build no logits, so that methods that compare
    predictions are refused (AD-DROP needs ``target="loss"`` for the second); with ``trl.RewardTrainer``; and with
    ``sentence_transformers.SentenceTransformerTrainer``, which calls its model once for each text of a row, so that
    only methods on weights and gradients work.

    Args:
        trainer: A subclass of ``transformers.Trainer``.

    Raises:
        AttendropError: It is not one.
    """
    if not (isinstance(trainer, type) and issubclass(trainer, Trainer)):
        raise AttendropError(
            f"{trainer!r} is not a subclass of transformers.Trainer; pass the class, such as SFTTrainer."
        )
    if issubclass(RegularizedTrainer, trainer) or issubclass(trainer, RegularizedTrainer):
        return trainer if issubclass(trainer, RegularizedTrainer) else RegularizedTrainer
    return type(f"Regularized{trainer.__name__}", (RegularizedTrainer, trainer), {"__doc__": trainer.__doc__})


@dataclass(eq=False)
class TrainingClock(TrainerCallback):
    """Callback that tells the method of a ``RegularizedTrainer`` when training, an epoch or a step begins or ends.

    Epochs count from 0; a resumed run continues its count. The checkpoint of an epoch's or the run's last step is saved
    only after evaluation and logs: a run resumed from it begins with the next epoch, or is at its end, and would skip
    these.
    """

    trainer: Any
    _next_epoch: int = 0
    _save_is_due: bool = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._next_epoch = math.floor(state.epoch or 0)
        self.trainer.begin_training()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._sampler is not None:
            self.trainer._sampler.epoch = self._next_epoch
        self.trainer._regularization.set_epoch(self._next_epoch)
        self._next_epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer._regularization.begin_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        regularization: Regularization = self.trainer._regularization
        if not (regularization.idle or regularization.sequences):
            raise AttendropError(
                f"{type(self.trainer).__name__}.training_step took a step without compute_loss, so the method could "
                "not act; have it call super().training_step."
            )
        regularization.step()
        if state.global_step == state.max_steps:
            regularization.finish()
        self.trainer._log_metrics()
        ends = state.global_step >= state.max_steps or (state.epoch is not None and float(state.epoch).is_integer())
        if control.should_save and ends and IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy):
            control.should_save = False
            self._save_is_due = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save = control.should_save or self._save_is_due
        self._save_is_due = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer._regularization.warn_of_no_effect()
        self.trainer._end()


def set_aside(rows: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Divide a data set at random into rows to train on, and ``fraction`` of it, at least one row, for rewards."""
    if is_stream(rows):
        raise AttendropError("Rows for rewards cannot be set aside from a stream; pass reward_dataset, or use 'eval'.")
    if len(rows) < 2:
        raise AttendropError(f"{len(rows)} training row cannot be divided; pass reward_dataset, or use 'eval'.")
    held = set(random.Random(seed).sample(range(len(rows)), max(1, int(len(rows) * fraction + 1e-6))))
    parts = ([i for i in range(len(rows)) if i not in held], sorted(held))
    if hasattr(rows, "select"):
        return rows.select(parts[0]), rows.select(parts[1])
    return Subset(rows, parts[0]), Subset(rows, parts[1])


@dataclass(frozen=True)
class ColumnCollator:
    """Wrapper of a collator, for the mask of answers, padded with -1, and the index of each row, where rows have them.

    Rows that are not mappings are left to the wrapped collator. It can be pickled.
    """

    collate: Callable[[list[Any]], Any]  # the wrapped one, which gets rows without these columns

    def __getattr__(self, name: str) -> Any:  # a trainer may read attributes of its own type of collator
        if name.startswith("__") or name == "collate":  # unpickling looks attributes up before this is set
            raise AttributeError(name)
        return getattr(self.collate, name)

    def __call__(self, rows: list[Any]) -> Any:
        """Make a batch of rows."""
        own = {ANSWER_MASK, ROW_INDEX} & {*rows[0]} if isinstance(rows[0], Mapping) else set()
        if not own:
            return self.collate(rows)
        batch = dict(self.collate([{key: value for key, value in row.items() if key not in own} for row in rows]))
        if ANSWER_MASK in own:
            masks = [torch.as_tensor(row[ANSWER_MASK]) for row in rows]
            batch[ANSWER_MASK] = pad_sequence(masks, batch_first=True, padding_value=-1)
        if ROW_INDEX in own:
            batch[ROW_INDEX] = torch.tensor([row[ROW_INDEX] for row in rows])
        return batch


@dataclass(eq=False)
class IndexedRows:
    """Rows of a data set with random access, each with its index in the column ``ROW_INDEX``."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        if not isinstance(row, Mapping):
            raise AttendropError(f"Rows are mappings of the model's inputs, and not a {type(row).__name__}.")
        return {**row, ROW_INDEX: index}


@dataclass(eq=False)
class EpochSampler(Sampler[int]):
    """Shuffles ``size`` rows by the seed and the number of the ``epoch`` alone.

    With the length of each row in tokens, it groups rows of similar length in a global batch of ``batch_size``: rows
    are shuffled, sorted within groups of eight batches, and the batches are shuffled. A partial batch stays last.
    """

    size: int
    seed: int
    batch_size: int
    lengths: Sequence[int] | None = None
    epoch: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order: list[int] = torch.randperm(self.size, generator=generator).tolist()
        if self.lengths is None:
            yield from order
            return
        lengths, ordered = self.lengths, list[int]()
        size = self.batch_size * _BATCHES_IN_GROUP
        whole = self.size // self.batch_size * self.batch_size
        for start in range(0, whole, size):
            group = order[start : min(start + size, whole)]
            ordered += sorted(group, key=lambda row: lengths[row], reverse=True)
        batches = [ordered[start : start + self.batch_size] for start in range(0, whole, self.batch_size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        yield from (row for number in shuffled for row in batches[number])
        yield from order[whole:]
