"""A ``transformers.Trainer`` that regularises."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (
    IntervalStrategy,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalPrediction, TrainOutput, rotate_checkpoints

from attendrop.attention import PLAN_KEYWORD, Plan, evaluating, forked_rng
from attendrop.checkpoints import last_checkpoint, load_session, load_state, save_session, seal, unseal
from attendrop.errors import AttendropError
from attendrop.files import disk_errors
from attendrop.methods.base import Batch, FineTune, LabelledData, Method, Processes, Session, Setup, tokens_of
from attendrop.regularization import Regularization
from attendrop.rows import LabelledRows, number_of_rows, set_aside


class RegularizedTrainer(Trainer):
    """``transformers.Trainer`` with one more argument: what regularises training.

    Every other argument, callback and training argument means what it means there. Four things differ:

    - While it trains, the method's figures are logged beside the loss: see :meth:`Regularization.logs`.
    - The order of batches is a function of the data seed and the epoch alone, so that a run that was killed and
      resumed goes on exactly, and so that all methods see the same batches.
      ``train_sampling_strategy="group_by_length"`` groups global batches of similar length and shuffles these.
    - Each checkpoint carries the method's state and a manifest. ``train(resume_from_checkpoint=True)`` takes the newest
      checkpoint that is complete, and starts over if there is none.
    - Under gradient accumulation and DDP, heads that average over the micro-batch by themselves (classification) give
      the gradient of the mean over the whole batch. The stock trainer multiplies it by the number of micro-batches.

    Args:
        *args: As for ``transformers.Trainer``.
        regularizer: A method, such as ``ADDrop(p=0.3, q=0.3)``. None is plain fine-tuning.
        reward_dataset: Labelled rows, not trained on, that a method may score models on while it trains (AttendOut).
            By default the method sets a share of ``train_dataset`` aside, or takes ``eval_dataset``, as it says.
        **kwargs: As for ``transformers.Trainer``.

    Attributes:
        session: What the method keeps while it trains; after training, what it has kept.

    Raises:
        AttendropError: Several GPUs in one process (DataParallel), DeepSpeed or FSDP; reentrant activation
            checkpointing; or, when training starts, a model that the method cannot act on.
    """

    def __init__(
        self, *args: Any, regularizer: Method | None = None, reward_dataset: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.regularizer = regularizer or FineTune()
        self.reward_dataset = reward_dataset
        self._regularization: Regularization | None = None
        self.session: Session | None = None
        self._resumed: tuple[dict[str, Any], Any] | None = None
        self._sampler: EpochSampler | None = None
        self._averages: bool | None = None
        self._refuse_unsupported()
        if self.regularizer.skips_parameters and self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.find_unused_parameters = True
        self._divide_rows()
        self.add_callback(_Clock(self))

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
            self._resumed = state, load_session(Path(checkpoint), self.args.process_index)
            # Early stopping counts on from where it was.
            self.args.restore_callback_states_from_checkpoint = True
        try:
            return super().train(checkpoint or None, *args, **kwargs)
        finally:
            self._end()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As in ``transformers.Trainer``; on the micro-batches of an earlier step where the method takes it again."""
        if self._regularization is None:
            return super().training_step(model, inputs, num_items_in_batch)
        calls: int = self.current_gradient_accumulation_steps
        parts, count = self._regularization.replayed(inputs, num_items_in_batch, calls)
        total = torch.zeros((), device=self.args.device)
        self.current_gradient_accumulation_steps = count or calls
        for batch, items in parts:
            total = total + super().training_step(model, dict(batch), items)
        self.current_gradient_accumulation_steps = calls
        return total

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """As in ``transformers.Trainer``; while training, with the passes that the method needs."""
        if self._regularization is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        rescale = num_items_in_batch is not None and self._head_averages(inputs)

        def stock(batch: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
            given = dict(batch) if plan is None else {**batch, PLAN_KEYWORD: plan}
            # Of a batch whose rows a method repeats, each copy counts for its part.
            copies = number_of_rows(batch) // number_of_rows(inputs)
            items = None if num_items_in_batch is None else num_items_in_batch * copies
            loss, outputs = self._stock_loss(other or model, given, None if rescale else items)
            if rescale:
                loss = loss * self._share(batch, items).to(loss.dtype)
            return loss, outputs

        scaler = self.accelerator.scaler
        counted = num_items_in_batch is not None and "labels" in inputs
        self._regularization.share = self._share(inputs, num_items_in_batch).float() if counted else 1.0
        self._regularization.averaged = 1 if counted else self.current_gradient_accumulation_steps
        self._regularization.loss_scale = scaler.get_scale() if scaler is not None else 1.0
        loss, outputs = self._regularization.compute(inputs, stock)
        return (loss, outputs) if return_outputs else loss

    def _stock_loss(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> tuple[Tensor, Any]:
        """The loss as ``transformers.Trainer`` computes it, also of a copy of the model, and the model's outputs."""
        # The model that trains has mixed precision built in by accelerate; for it this changes nothing.
        with self.accelerator.autocast():
            result: Any = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss, outputs = result
        return loss, outputs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in ``transformers.Trainer``, with the method's figures beside the training loss."""
        if self._regularization is not None and "loss" in logs:
            logs |= self._regularization.logs()
        super().log(logs, start_time)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """As in ``transformers.Trainer``; a model that the method will give up is not the best."""
        if self._regularization is not None and self._regularization.session.searching():
            return False
        return super()._determine_best_metric(metrics, trial)

    def _begin(self) -> None:
        """Called when training begins, with the model that it will train."""
        self._end()
        self._regularization = Regularization(self._setup(), self.regularizer)
        self.session = self._regularization.session
        self._regularization.withholds_labels = self.label_smoother is not None or self.compute_loss_func is not None
        if self._resumed is not None:
            self._regularization.load_state_dict(*self._resumed)
            self._resume_loss(**self._resumed[0]["loss"])

    def _resume_loss(self, sum: float, since_step: int) -> None:
        """Let the loss that is logged next be the mean since it was last logged, also before training was resumed."""
        self._tr_loss += sum
        self._total_loss_scalar -= sum  # the trainer's own mean is that of the steps after
        self._globalstep_last_logged = since_step

    def _setup(self) -> Setup:
        return Setup(
            model=self.accelerator.unwrap_model(self.model),
            evaluate=lambda model, batch: self._stock_loss(model, dict(batch)),
            seed=self.args.seed,
            processes=Processes(self.args.process_index, self.args.world_size, self._over_processes),
            total_steps=self.state.max_steps,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            max_grad_norm=self.args.max_grad_norm or None,
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
                share = self.regularizer.reward_share()
                self.train_dataset, self.reward_dataset = set_aside(self.train_dataset, share, self.args.seed)
            case "eval" | "selection" as rows:
                if self.eval_dataset is None or isinstance(self.eval_dataset, dict):
                    raise AttendropError(
                        f"reward_data={rows!r} needs one eval_dataset; or pass reward_dataset, or use 'split'."
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
        self._regularization.step()
        if is_last:
            self._regularization.finish()
        self._log_figures()

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in ``transformers.Trainer``; first the method finishes, also where training ended before its last step."""
        if self._regularization is not None:
            self._regularization.finish()
            self._log_figures()
        return super()._finalize_training(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]

    def _log_figures(self) -> None:
        assert self._regularization is not None
        figures = self._regularization.figures()
        if figures:
            self.log(figures)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """As in ``transformers.Trainer``, with the columns that the method reads."""
        self._set_signature_columns_if_needed()
        collate, known = self.data_collator, self._signature_columns
        self.data_collator = _with_columns(collate, tuple(self.regularizer.columns))
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
        save_session(checkpoint, *self._regularization.session_state(), self.args.process_index)
        loss = {"sum": self._over_processes(self._tr_loss).item() / self.args.world_size}
        loss["since_step"] = self._globalstep_last_logged
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(checkpoint, self.regularizer, self._regularization.state_dict() | {"loss": loss})

    def _head_averages(self, inputs: Batch) -> bool:
        """Whether the loss is a mean over the micro-batch, though the trainer holds it for a sum over all that is due.

        Stock trainer and model disagree there: it passes ``num_items_in_batch``, which most heads but those of language
        models ignore. Asked of the model itself, once, and only where it makes a difference.
        """
        if self.args.gradient_accumulation_steps == self.args.world_size == 1 or "labels" not in inputs:
            return False
        if self.label_smoother is not None or self.compute_loss_func is not None or not self.model_accepts_loss_kwargs:
            return False
        if self._averages is None:
            model = self.accelerator.unwrap_model(self.model)
            with torch.no_grad(), forked_rng(model), evaluating(model):
                losses = [model(**inputs, num_items_in_batch=torch.tensor(count)).loss for count in (1, 2)]
            self._averages = losses[0] is not None and torch.equal(losses[0], losses[1])
        return self._averages

    def _share(self, batch: Batch, num_items_in_batch: Tensor | int | None) -> Tensor:
        """The weight of a micro-batch's mean: its labels over those of the step, times the processes averaged over."""
        labels = batch["labels"][..., 1:] if self._loss_shifts_labels else batch["labels"]
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1
        share: Tensor = labels.ne(-100).sum().double() * processes / num_items_in_batch
        return share

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


def _with_columns(collate: Callable[[list[Any]], Any], columns: Sequence[str]) -> Callable[[list[Any]], Any]:
    """A collator that also makes tensors of columns with numbers for each token, padded with -1."""
    if not columns:
        return collate

    def collated(rows: list[Any]) -> Any:
        present = [name for name in columns if name in rows[0]]
        batch = dict(collate([{key: value for key, value in row.items() if key not in present} for row in rows]))
        for name in present:
            values = [torch.as_tensor(row[name]) for row in rows]
            width = max(len(value) for value in values)
            padded = [functional.pad(v, (0, width - len(v)) * v.ndim, value=-1) for v in values]
            batch[name] = torch.stack(padded)
        return batch

    return collated


class EpochSampler(Sampler[int]):
    """Draws the order of the rows of an epoch from the seed and the number of the epoch alone.

    Args:
        size: Number of rows.
        seed: Seed of the data order.
        batch_size: Rows in a global batch.
        lengths: Length of each row in tokens. If given, rows of similar length come together in a global batch: rows
            are shuffled, sorted within groups of eight batches, and the batches are shuffled; a last, partial batch
            stays last.

    Attributes:
        epoch: The epoch whose order is drawn next.
    """

    _BATCHES_IN_GROUP = 8

    def __init__(self, size: int, seed: int, batch_size: int, lengths: Sequence[int] | None = None) -> None:
        self.size = size
        self.seed = seed
        self.batch_size = batch_size
        self.lengths = lengths
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.size, generator=generator).tolist()
        yield from order if self.lengths is None else self._grouped(order, self.lengths, generator)

    def _grouped(self, order: list[int], lengths: Sequence[int], generator: torch.Generator) -> list[int]:
        size = self.batch_size * self._BATCHES_IN_GROUP
        whole = self.size // self.batch_size * self.batch_size
        ordered: list[int] = []
        for start in range(0, whole, size):
            group = order[start : min(start + size, whole)]
            ordered += sorted(group, key=lambda row: lengths[row], reverse=True)
        batches = [ordered[start : start + self.batch_size] for start in range(0, whole, self.batch_size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [row for number in shuffled for row in batches[number]] + order[whole:]


class _Clock(TrainerCallback):
    """Tells the trainer's regularisation and sampler the time: start, epoch, step, end."""

    def __init__(self, trainer: RegularizedTrainer) -> None:
        self.trainer = trainer
        self.epoch = 0
        self.save_is_due = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.epoch = math.floor(state.epoch or 0)
        self.trainer._begin()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._sampler is not None:
            self.trainer._sampler.epoch = self.epoch
        if self.trainer._regularization is not None:
            self.trainer._regularization.set_epoch(self.epoch)
        self.epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.trainer._regularization is not None:
            self.trainer._regularization.begin_step(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell the method; put off a checkpoint that falls on an epoch's last step until the epoch was evaluated.

        The resumed run begins at the next epoch and would skip the evaluation, and the log.
        """
        self.trainer._after_step(state.global_step == state.max_steps)
        ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
        more_to_come = IntervalStrategy.EPOCH in (args.eval_strategy, args.logging_strategy)
        if control.should_save and ends_epoch and more_to_come:
            control.should_save = False
            self.save_is_due = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_save = control.should_save or self.save_is_due
        self.save_is_due = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer._end()
