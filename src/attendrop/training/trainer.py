"""``transformers.Trainer`` with a method that regularises training."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import EvalPrediction, TrainOutput

from attendrop.attention.module_hooks import is_compiled
from attendrop.errors import AttendropError
from attendrop.files.output_files import disk_errors
from attendrop.methods.core.base import FineTune, Method, MethodState
from attendrop.methods.core.context import LabelledData, Processes, RunningStatistics, TrainingContext, tokens_of
from attendrop.methods.core.registry import check_method
from attendrop.model_support.batches import ANSWER_MASK, ROW_INDEX, Batch
from attendrop.model_support.devices import gathered, sharding_mesh
from attendrop.model_support.models import freeze_unsaved
from attendrop.training.checkpoints import (
    delete_oldest,
    delete_unfinished,
    last_checkpoint,
    load_method_state,
    load_state,
    mark_unfinished,
    own_names,
    packed,
    reading,
    save_method_state,
    seal,
    trainer_state,
    unpacked,
)
from attendrop.training.labelled_data import (
    ColumnCollator,
    EpochSampler,
    IndexedRows,
    LabelledRows,
    is_stream,
    row_lengths,
    set_aside,
)
from attendrop.training.model_call import replaced_attribute
from attendrop.training.regularization import Regularization
from attendrop.training.trainer_hooks import CheckpointAfterStep, SaveAfterEvaluation, TrainerHooks, TrainingClock
from attendrop.training.trainer_loss import TrainerLoss


class RegularizedTrainer(TrainerHooks):
    """``transformers.Trainer`` with one more argument: what regularises training.

    All other arguments, callbacks and training arguments work as they do there, and so does a subclass's own
    ``compute_loss``, which must call the model once. Five things differ:

    - The metrics of the method are logged beside the loss: see :meth:`Regularization.logs`.
    - The order of batches depends on the data seed and the epoch alone, so that a run that was killed and resumed
      continues exactly, and all methods see the same batches. ``train_sampling_strategy="group_by_length"`` groups
      global batches of similar length and shuffles these.
    - Each checkpoint contains the method's state and a manifest. ``train(resume_from_checkpoint=True)`` takes the
      newest checkpoint that is complete, and starts over if there is none.
    - Under gradient accumulation and DDP, losses that are a mean over the micro-batch (those of classification heads,
      and of any ``compute_loss`` or ``compute_loss_func`` that ignores ``num_items_in_batch``) give the gradient of the
      mean over the whole batch. The stock trainer multiplies it by the number of micro-batches, and such a loss of an
      evaluation by the number of processes.
    - Parameters that the model's class leaves out of its files, Marian's computed positions, are not trained: a resumed
      run, and the saved model, would lose what they learnt.

    Args:
        *args: As for ``transformers.Trainer``.
        regularizer: A method, such as ``ADDrop()``. None is plain fine-tuning.
        reward_dataset: Labelled rows, not trained on, on which a method may score models during training. By default,
            depending on the method, a fraction of ``train_dataset`` is held out, or ``eval_dataset`` is used.
        compute_reward_metrics: Function for metrics of batches of these rows, for methods that use metrics as rewards;
            by default ``compute_metrics``, and called in the same way.
        **kwargs: As for ``transformers.Trainer``.

    Attributes:
        method_state: The state of the method, during and after training.

    Raises:
        AttendropError: Several GPUs in one process (DataParallel), DeepSpeed or FSDP; a model that ``torch.compile``
            wrapped; reentrant activation checkpointing with a method that acts within the model; or, when training
            starts, a model that the method cannot act on, or a ``compute_loss`` or ``training_step`` of a subclass that
            leaves it no call of the model to act on.
    """

    def __init__(
        self,
        *args: Any,
        regularizer: Method | None = None,
        reward_dataset: Any = None,
        compute_reward_metrics: Callable[..., dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        # What `regularized` made a subclass take whose __init__ does not hand these on.
        own = vars(self).pop("_own_arguments", {})
        regularizer = own.get("regularizer", regularizer)
        reward_dataset = own.get("reward_dataset", reward_dataset)
        compute_reward_metrics = own.get("compute_reward_metrics", compute_reward_metrics)
        self.regularizer = FineTune() if regularizer is None else check_method(regularizer)
        super().__init__(*args, **kwargs)
        self.reward_dataset = reward_dataset
        metrics: Callable[..., dict[str, float]] | None = compute_reward_metrics or self.compute_metrics
        self.compute_reward_metrics = metrics
        self._regularization: Regularization | None = None
        self._regularized_loss: Callable[..., Any] | None = None
        self._loss: TrainerLoss | None = None
        self.method_state: MethodState | None = None
        self._resumed: tuple[dict[str, Any], Path] | None = None
        self._start: bytes | None = None
        self._sampler: EpochSampler | None = None
        self._refuse_unsupported()
        if self.regularizer.info.skips_parameters and self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.find_unused_parameters = True
        self._divide_rows()
        self._refuse_streams()
        self.add_callback(TrainingClock(self))
        if isinstance(on_sigterm := self.pop_callback(JITCheckpointCallback), JITCheckpointCallback):
            self.add_callback(CheckpointAfterStep(on_sigterm))
        self.add_callback(SaveAfterEvaluation())

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, or resume from a checkpoint: a path, or True for the newest complete one (none: from the start).

        Raises:
            AttendropError: The checkpoint is incomplete, belongs to another method, has pickled weights or state that
                cannot be read; or the model is not supported.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(last_checkpoint(str(self.args.output_dir)) or "")
        checkpoint = str(resume_from_checkpoint or "")
        self._resumed = self._start = None
        if checkpoint:
            self._resumed = load_state(Path(checkpoint), self.regularizer), Path(checkpoint)
            self._refuse_to_skip_rows(Path(checkpoint))
        try:
            return super().train(checkpoint or None, *args, **kwargs)
        finally:
            self._end()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As in ``transformers.Trainer``, without what the model does not save."""
        freeze_unsaved(self.model)
        return super().create_optimizer(*args, **kwargs)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As in ``transformers.Trainer``, with all passes of the method in what ``compute_loss`` computes.

        That may be the ``compute_loss`` of a subclass: it calls the model, and the method acts on that call.
        """
        if self._regularization is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self._regularization.batches += 1
        with replaced_attribute(self, "compute_loss", self._regularized_loss):
            return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in ``transformers.Trainer``, with the metrics of the method beside the training loss."""
        if self._regularization is not None and "loss" in logs:
            logs |= self._regularization.logs()
        if self._regularization is not None and "train_runtime" in logs:  # the last ones, also if training stops early
            self._regularization.finish()
            self._log_metrics()
        super().log(logs, start_time)

    def may_be_best(self) -> bool:
        """Return False for a model that the method will discard."""
        return self._regularization is None or not self._regularization.method_state.searching()

    def is_mean_loss(self, inputs: dict[str, Any]) -> bool:
        """Return whether the loss is a mean over a batch; see :meth:`TrainerLoss.is_mean`."""
        self._loss = self._loss or TrainerLoss(self, self.regularizer)
        return self._loss.is_mean(inputs)

    def begin_training(self) -> None:
        """Apply the method to the model that the trainer has prepared."""
        self._end()
        self._loss = trainer_loss = TrainerLoss(self, self.regularizer)
        self._regularization = Regularization(
            self._training_context(trainer_loss), self.regularizer, compiles=is_compiled(self.model_wrapped)
        )
        self._regularized_loss = partial(trainer_loss.regularized, self._regularization)
        self.method_state = self._regularization.method_state
        if self._resumed is not None:
            state, checkpoint = self._resumed
            with reading(checkpoint, "the state of its method"):
                statistics = {} if self.args.process_index else state["statistics"]  # those of all processes
                self._regularization.load_state_dict(
                    state | {"statistics": statistics},
                    load_method_state(checkpoint, self.args.process_index, self.args.world_size),
                )
                self.set_unlogged_loss(state["loss"]["sum"], state["loss"]["since_step"])
        elif self._start is not None:  # a restart after an out-of-memory error, with weights of later steps
            self.method_state.load_state_dict(*unpacked(self._start))
        elif self.args.auto_find_batch_size:
            self._start = packed(self._regularization.method_state_dicts())
        self._regularization.warn_of_inactive_epochs(self.state.num_train_epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch, which begins, for the order of rows and for the method."""
        if self._sampler is not None:
            self._sampler.epoch = epoch
        if self._regularization is not None:
            self._regularization.set_epoch(epoch)

    def begin_step(self, steps_taken: int) -> None:
        """Tell the method how many optimizer steps were taken."""
        if self._regularization is not None:
            self._regularization.begin_step(steps_taken)

    def end_step(self, is_last: bool) -> None:
        """Update the method after an optimizer step."""
        if self._regularization is None:
            return
        if not (self._regularization.idle or self._regularization.sequences):
            raise AttendropError(
                f"{type(self).__name__}.training_step took a step without compute_loss, so the method could not act; "
                "have it call super().training_step."
            )
        self._regularization.step()
        if is_last:
            self._regularization.finish()
        self._log_metrics()

    def end_training(self) -> None:
        """Warn of methods without effect, and detach the method."""
        if self._regularization is not None:
            self._regularization.warn_of_no_effect()
        self._end()

    def _end(self) -> None:
        """Detach the method from the model. Idempotent."""
        if self._regularization is not None:
            self._regularization.close()
        self._regularization = self._regularized_loss = None

    def place_in_stream(self) -> tuple[int, int] | None:
        """Return the epoch and the batches in it that a checkpoint of training on a stream knows."""
        if self._resumed is None:
            return None
        state = self._resumed[0]
        return state["epoch"], 0 if self.args.ignore_data_skip else state["batches"]

    def _training_context(self, trainer_loss: TrainerLoss) -> TrainingContext:
        return TrainingContext(
            model=self.accelerator.unwrap_model(self.model),
            evaluate=trainer_loss.evaluate,
            seed=self.args.seed,
            processes=Processes(self.args.process_index, self.args.world_size, self._over_processes, self._gather),
            total_steps=self.state.max_steps,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            max_grad_norm=self.args.max_grad_norm or None,
            scaler=self.accelerator.scaler,
            reward_data=self._labelled(self.reward_dataset) if self.regularizer.rewarded_on() is not None else None,
            train_data=self._labelled(self.train_dataset),
            metric=self._metric if self.compute_reward_metrics and self._metric_name() else None,
            **tokens_of(self.processing_class),
        )

    def _divide_rows(self) -> None:
        """Find the rows that the method scores models on, if none were passed."""
        if self.reward_dataset is not None or self.train_dataset is None:
            return
        match self.regularizer.rewarded_on():
            case "split":
                fraction = self.regularizer.rewarded_fraction()
                self.train_dataset, self.reward_dataset = set_aside(self.train_dataset, fraction, self.args.seed)
            case "eval":
                if self.eval_dataset is None or isinstance(self.eval_dataset, dict):
                    raise AttendropError(
                        f"{self.regularizer.rewarded_by} needs one eval_dataset; or pass reward_dataset."
                    )
                self.reward_dataset = self.eval_dataset

    def _refuse_streams(self) -> None:
        """Refuse streams where rows are chosen one by one; others are trained on in their own order."""
        if self.args.train_sampling_strategy == "group_by_length" and is_stream(self.train_dataset):
            raise AttendropError(
                "train_sampling_strategy='group_by_length' needs the lengths of all training rows, and these are a "
                "stream; leave it out, or pass a data set with random access."
            )
        if self.regularizer.needs_rows and is_stream(self.train_dataset):
            raise AttendropError(
                f"Method '{self.regularizer.name}' needs stable row indices; a streaming dataset has none. Pass "
                "a data set with random access."
            )
        makes_batches: Any = super().get_train_dataloader
        if self.regularizer.needs_rows and makes_batches.__func__ is not Trainer.get_train_dataloader:
            raise AttendropError(
                f"Method '{self.regularizer.name}' needs stable row indices, and {type(self).__name__} makes its own "
                "batches, which have none; use another method or option."
            )
        if self.regularizer.rewarded_on() is not None and is_stream(self.reward_dataset):
            raise AttendropError(
                f"{self.regularizer.rewarded_by} scores models on labelled rows that are drawn at random, and those "
                "given are a stream; pass a reward_dataset with random access."
            )

    def _refuse_to_skip_rows(self, checkpoint: Path) -> None:
        """Refuse what skips too few rows of an epoch: accelerate takes the batches of a process for those of all."""
        epoch = trainer_state(checkpoint).epoch or 0.0
        dispatch: Any = self.args.accelerator_config
        if self.args.world_size == 1 or not dispatch.dispatch_batches or dispatch.split_batches:
            return
        if not float(epoch).is_integer() and not self.args.ignore_data_skip and not is_stream(self.train_dataset):
            raise AttendropError(
                f"'{checkpoint}' is of the middle of an epoch, whose rows accelerate cannot skip in several processes "
                "with dispatch_batches=True: resume without it."
            )

    def _labelled(self, rows: Any) -> LabelledData | None:
        if rows is None or is_stream(rows) or isinstance(rows, Mapping):  # several data sets, by name
            return None
        return LabelledRows(*self.readable(rows), self.args.device)

    def _metric_name(self) -> str:
        """Return the name of the metric that selects the best model in ``compute_metrics``; "" if it has none there."""
        name = str(self.args.metric_for_best_model or "").removeprefix("eval_")
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else ()
        name = name.removeprefix(next((f"{each}_" for each in sets if name.startswith(f"{each}_")), ""))
        return "" if name == "loss" else name

    def _metric(self, logits: Tensor, batch: Batch) -> float:
        """Compute the metric that selects the best model, with a sign such that more is better.

        It is computed for one batch, from what ``compute_metrics`` gets when ``transformers.Trainer`` evaluates.
        """
        assert self.compute_reward_metrics is not None
        by_batch, given = self.args.batch_eval_metrics, {"predictions": logits, "label_ids": batch["labels"]}
        if self.preprocess_logits_for_metrics is not None:
            given["predictions"] = self.preprocess_logits_for_metrics(logits, batch["labels"])
        if "inputs" in self.args.include_for_metrics:
            given["inputs"] = batch if by_batch else batch[getattr(self.model, "main_input_name", "input_ids")]
        if by_batch:
            metrics = self.compute_reward_metrics(EvalPrediction(**given), compute_result=True)
        else:
            arrays = nested_numpify(given)  # type: ignore[no-untyped-call]
            metrics = self.compute_reward_metrics(EvalPrediction(**arrays))
        found = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        name = self._metric_name()
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
        indexed = needed and rows is not None
        with (
            replaced_attribute(self, "data_collator", ColumnCollator(self.data_collator, (ANSWER_MASK,), indexed)),
            replaced_attribute(self, "train_dataset", IndexedRows(rows) if indexed else rows),
            self.keeping_columns((ANSWER_MASK, ROW_INDEX) if needed else (ANSWER_MASK,)),
        ):
            return super().get_train_dataloader()

    def train_sampler(self, rows: Any) -> Sampler[int] | None:
        """Make a sampler whose order is a function of the seed and the epoch; None for streams, and other orders."""
        rows, original = (each.rows if isinstance(each, IndexedRows) else each for each in (rows, self.train_dataset))
        strategy = self.args.train_sampling_strategy
        if rows is None or not hasattr(rows, "__len__") or strategy not in ("random", "group_by_length"):
            return None
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        global_batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        lengths: Sequence[int] | None = None
        if strategy == "group_by_length":
            lengths = row_lengths(rows, original, self.args.length_column_name)
        self._sampler = EpochSampler(len(rows), seed, global_batch, lengths)
        return self._sampler

    @contextmanager
    def saving(self, checkpoint: Path) -> Iterator[None]:
        """Complete a checkpoint by a manifest; older ones are deleted after that, and an interrupted one at once."""
        if self.args.should_save:
            mark_unfinished(checkpoint)
        try:
            with (
                replaced_attribute(self.args, "save_total_limit", None),
                disk_errors(checkpoint),
                own_names(self.accelerator.unwrap_model(self.model)),
            ):
                yield
                if self._regularization is not None:
                    self.complete_checkpoint(checkpoint, self._regularization)
        except BaseException:
            if self.args.should_save:  # on a full disk, an incomplete checkpoint would take up space
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        if self._regularization is not None and self.args.should_save:
            delete_unfinished(checkpoint.parent)
            delete_oldest(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)

    def complete_checkpoint(self, checkpoint: Path, regularization: Regularization) -> None:
        """Add the state of the method, the loss since it was last logged, and then the manifest."""
        processes = (self.args.process_index, self.args.world_size)
        save_method_state(checkpoint, *regularization.method_state_dicts(), *processes)
        total, since_step = self.unlogged_loss()
        loss = {"sum": self._over_processes(total).item() / self.args.world_size, "since_step": since_step}
        state = regularization.state_dict()
        statistics = RunningStatistics.merged(self._gather(state["statistics"])).state_dict()
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(checkpoint, self.regularizer, state | {"statistics": statistics, "loss": loss})

    def _over_processes(self, counts: Tensor) -> Tensor:
        if self.args.world_size == 1:
            return counts
        total: Tensor = self.accelerator.reduce(counts.to(self.accelerator.device), "sum")
        return total

    def _gather(self, value: Any) -> list[Any]:
        return [value] if self.args.world_size == 1 else gathered(value)

    def _refuse_unsupported(self) -> None:
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
                "arguments, or compile it in place: model.compile()."
            )
        # The second run of a block, in the backward pass, would not be that of the first with a method in it.
        within = [
            part.name
            for part in self.regularizer.parts
            if part.info.uses_attention or {*part.info.acts_on} - {"gradients", "inputs", "loss"}
        ]
        given = vars(self.args)
        name = "activation" if "activation_checkpointing" in given else "gradient"  # before transformers 5.23
        keywords = given[f"{name}_checkpointing_kwargs"]
        reentrant = given[f"{name}_checkpointing"] and isinstance(keywords, dict) and keywords.get("use_reentrant")
        if reentrant and within:
            raise AttendropError(
                f"Method '{within[0]}' acts within the model, where reentrant activation checkpointing is not "
                f"supported; set {name}_checkpointing_kwargs={{'use_reentrant': False}}."
            )


def regularized(trainer: type[Trainer]) -> type[RegularizedTrainer]:
    """Return a class of trainers that takes ``regularizer=``, as :class:`RegularizedTrainer` does, made from another.

    Example:
        >>> trainer = regularized(SFTTrainer)(model=model, train_dataset=rows, args=args, regularizer=ADDrop())

    Everything else about the trainer is unchanged. Its loss must come from one call of a transformers model, unless the
    method acts on weights or gradients only. Tested with ``trl.SFTTrainer`` and ``trl.DPOTrainer``, whose losses build
    no logits, so that methods that compare predictions are refused (AD-DROP needs ``target="loss"`` for the second);
    with ``trl.RewardTrainer``; and with ``sentence_transformers.SentenceTransformerTrainer``, which calls its model
    once for each text of a row, so that only methods on weights and gradients work. A subclass of
    :class:`RegularizedTrainer` is returned as it is, unless its ``__init__`` takes no ``regularizer``.

    Args:
        trainer: A subclass of ``transformers.Trainer``.

    Raises:
        AttendropError: It is not one.
    """
    if not (isinstance(trainer, type) and issubclass(trainer, Trainer)):
        raise AttendropError(
            f"{trainer!r} is not a subclass of transformers.Trainer; pass the class, such as SFTTrainer."
        )
    if issubclass(RegularizedTrainer, trainer):
        return RegularizedTrainer
    name, members = f"Regularized{trainer.__name__}", {"__doc__": trainer.__doc__}
    if not issubclass(trainer, RegularizedTrainer):
        return type(name, (RegularizedTrainer, trainer), members)
    own = {"regularizer", "reward_dataset", "compute_reward_metrics"}
    parameters = inspect.signature(trainer.__init__).parameters.values()
    left = own - {each.name for each in parameters}
    if not left or any(each.kind is each.VAR_KEYWORD for each in parameters):
        return trainer

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self._own_arguments = {name: kwargs.pop(name) for name in left & kwargs.keys()}
        trainer.__init__(self, *args, **kwargs)

    return type(name, (trainer,), members | {"__init__": __init__})
