"""Trainer of runs; and their metrics: scores, history, and the content of ``metrics.json``."""

from __future__ import annotations

import logging
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

import attendrop
from attendrop.attention.hooks import in_full_precision, replaced_attribute
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import Processes
from attendrop.runs.config import RunConfig
from attendrop.runs.data import DECIDED, Parts, ResolvedRun
from attendrop.runs.run_folder import TENSORBOARD, number_of_processes
from attendrop.support.files import finite, first_line
from attendrop.support.models import compute_device, named_outputs, to_device
from attendrop.tasks.base import Task
from attendrop.tasks.error_analysis import ROWS_FOR_TEMPERATURE, best_temperature, choose_threshold, error_analysis
from attendrop.tasks.metrics import compute_scores, constant_scores, new_rows, row_scores, units_of
from attendrop.tasks.tokenization import columns_of, texts_of
from attendrop.tasks.types.base import Array, TaskType
from attendrop.training.checkpoints import reading
from attendrop.training.trainer import RegularizedTrainer
from attendrop.wording import counted

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RunCallback(TrainerCallback, ExportableState):
    """Callback of a run, one for all, since the trainer warns of two callbacks of a class."""

    save_steps: int | None = None  # between checkpoints, besides those at the end of an epoch
    log_steps: int | None = None
    save_seconds: float | None = None  # between checkpoints, or more: writing takes at most 2 % of the time
    stop_after: int | None = None  # number of steps after which training ends, of a longer schedule
    begun: Callable[[], None] | None = None  # called after the first step: before that, invalid settings are refused
    seconds_so_far: float = 0.0  # of training, once it has ended, with those of earlier processes, from a checkpoint
    seconds_before: float = 0.0  # of training in earlier processes
    start: float = field(default_factory=time.monotonic)  # of this training

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.start = self.last_save = time.monotonic()
        self.seconds_before, self.pause, self.saves = self.seconds_so_far, self.save_seconds, False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.begun is not None:
            self.begun()
            self.begun = None
        for flag, steps in (("should_save", self.save_steps), ("should_log", self.log_steps)):
            if steps and state.global_step % steps == 0 and not float(state.epoch or 0).is_integer():
                setattr(control, flag, True)
        self.saves = self.pause is not None and time.monotonic() - self.last_save >= self.pause
        if self.saves:
            control.should_save, self.last_save = True, time.monotonic()
        if self.stop_after is not None and state.global_step >= self.stop_after:
            control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.save_seconds and self.saves:
            self.pause, self.saves = max(self.save_seconds, 50 * (time.monotonic() - self.last_save)), False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds_so_far += time.monotonic() - self.start

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"args": {}, "attributes": {"seconds_so_far": self.seconds_so_far + time.monotonic() - self.start}}


def silence(trainer: RegularizedTrainer) -> None:
    """Remove the printing callbacks of the trainer."""
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)


class RunTrainer(RegularizedTrainer):
    """Trainer whose evaluation starts with the longest rows.

    Metrics, and callers of ``predict``, get predictions and labels in the order of the rows, so that these can be
    compared with columns of the rows that the trainer does not see.
    """

    head_init: dict[str, Any] | None = None  # how the head started, see `init_head`; None: at random, or as it was
    head_is_new = True  # whether the model came without a head for the task
    meter: RunCallback  # which measures the time of the run

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
        places = np.argsort(list(self.eval_sampler(dataloader.dataset)), kind="stable")
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
        order: Any = np.argsort(-np.asarray(self.task_type.lengths(columns_of(rows))), kind="stable").tolist()
        return order  # type: ignore[no-any-return] # any sized iterable of indices will do


def _ordered(values: Any, places: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Reorder an array of rows, or each array of a tuple; None stays None."""
    if isinstance(values, tuple | list):
        return tuple(_ordered(each, places) for each in values)
    return None if values is None else values[places]


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
    constant = config.schedule == "constant"  # which, in transformers, has no warm-up
    try:
        arguments = TrainingArguments(
            per_device_train_batch_size=config.batch_size,
            gradient_accumulation_steps=config.gradient_accumulation,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            lr_scheduler_type="constant_with_warmup" if constant and config.warmup else config.schedule,
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
        raise AttendropError(f"These options cannot be combined on this machine: {first_line(error)}.") from error
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


# Metrics --------------------------------------------------------------------------------------------------------------


def set_scores(
    run: ResolvedRun,
    name: str,
    outputs: Array,
    references: Array,
    train_references: Array | None = None,
    *,
    train: Dataset | None = None,
) -> dict[str, Any]:
    """Score outputs for a set of a run, of a model of the rows ``train``, by default those of the run.

    Returns, as JSON values, ``scores`` by all metrics of the task; ``baseline``, the ``answer`` and ``scores`` of a
    constant prediction, None without ``train_references``; ``predicted``, the number of predictions of each class;
    ``rows``. For "dev" and "ood" also ``by_row``, the score of the task's metric divided among the rows, their
    ``predictions``, and the ``report`` of errors; for "dev" the least confidence to ``accept``, if asked for, by the
    rows whose text is not in ``train``.
    """
    task, task_type = run.task, run.task.type
    constant = None if train_references is None else constant_scores(task, train_references, references)
    found: dict[str, Any] = {
        "scores": compute_scores(task, outputs, references),
        "baseline": None if constant is None else {"answer": constant[0], "scores": constant[1]},
        "predicted": task_type.predicted_counts(outputs),
        "rows": len(references),
    }
    if name in ("dev", "ood"):
        rows, train = run.parts.report[name], run.parts.real.train if train is None else train
        by_row = row_scores(task, outputs, references, rows)
        found["by_row"] = None if by_row is None else by_row.as_dict()
        found["predictions"] = task_type.decode(task_type.checked(outputs))
        found["report"] = error_analysis(task, outputs, references, rows, train)
        if name == "dev" and run.config.accept is not None:
            new, units = new_rows(rows, train, task), units_of(rows, task)
            chosen = (task_type.checked(outputs)[new], references[new], run.config.accept, [units[row] for row in new])
            found["accept"] = choose_threshold(*chosen) | {"trained_on": len(rows) - len(new)}
    return found


def scored_run(
    run: ResolvedRun,
    method: str,
    options: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, int],
    *,
    selection_score: float | None,
    selected_on: str | None = None,
) -> dict[str, Any]:
    """Make what ``metrics.json`` holds of any run, of a method or of a baseline."""
    config, task, dev, shifted = run.config, run.task, scores.get("dev", {}), scores.get("ood")
    return {
        "task": task.name,
        "model": config.model,
        "method": method,
        "options": dict(options),
        "seed": config.seed,
        "protocol": config.protocol,
        "metric": task.metric,
        "selection_score": selection_score,
        "score": dev["scores"][task.metric] if dev else None,
        "all_scores": {name: found["scores"] for name, found in scores.items() if name in run.parts.report},
        "row_scores": dev.get("by_row"),
        "ood": shifted and {"score": shifted["scores"][task.metric], "row_scores": shifted["by_row"]},
        "baseline": {name: found["baseline"] for name, found in scores.items() if found["baseline"] is not None},
        "predicted": {name: found["predicted"] for name, found in scores.items()},
        "report": dev.get("report"),
        **({"accept": dev.get("accept")} if config.accept is not None else {}),
        "data": {
            "source": run.data.source,
            "text_columns": list(task.text_columns),
            "classes": list(task.label_names),
            "selected_on": selected_on,
            **({"looks_grouped": run.data.looks_grouped} if run.data.looks_grouped else {}),
            "rows": dict(rows) | {name: len(part) for name, part in run.parts.report.items()},
            **({"names_left_out": list(run.parts.names_left_out)} if run.parts.names_left_out else {}),
            **({"unlabelled": dict(run.parts.unlabelled_numbers)} if run.parts.unlabelled_numbers else {}),
        },
        "config": run.given.as_dict(),
        "output_dir": config.output_dir,
        "versions": {
            "attendrop": attendrop.__version__,
            "python": sys.version.split()[0],
            **{package: version(package) for package in ("torch", "transformers", "accelerate", "datasets")},
        },
    }


def training_rows(train: Dataset, parts: Parts) -> dict[str, Any]:
    """Count training rows for ``metrics.json``: of the data, and if there are any, names of classes."""
    found: dict[str, Any] = {"train": len(train) - parts.names}
    return found | ({"label_names": parts.names} if parts.names else {})


def score_model(
    run: ResolvedRun, trainer: RunTrainer, encoded: Parts, selected: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Score the model on the reported sets, which the held-out protocol uses only here.

    If there are none, score it on the selection split, or return the scores that :func:`selection_report` found.
    """
    if not encoded.report and selected is not None:
        return {"selection": selected["scores"]}
    sets = encoded.report or ({} if encoded.selection is None else {"selection": encoded.selection})
    return {name: _score(run, trainer, encoded, rows, name) for name, rows in sets.items()}


def _score(run: ResolvedRun, trainer: RunTrainer, encoded: Parts, rows: Dataset, name: str) -> dict[str, Any]:
    references = (run.task.type.references(columns_of(part)) for part in (rows, encoded.real.train))
    return set_scores(run, name, _outputs(trainer, run.task, rows)[0], *references)


def _outputs(trainer: RunTrainer, task: Task, rows: Dataset) -> tuple[Array, float]:
    """Compute the outputs of the trained model for encoded rows, and its mean loss, in the precision of its weights."""
    assert trainer.model is not None
    with replaced_attribute(trainer, "compute_metrics", None), in_full_precision(trainer.model):
        found = trainer.predict(rows)
    tokenizer: Any = trainer.processing_class
    outputs = task.type.row_outputs(np.asarray(found.predictions), columns_of(rows), tokenizer)
    return outputs, float((found.metrics or {})["test_loss"])


def selection_report(run: ResolvedRun, trainer: RunTrainer, encoded: Parts) -> dict[str, Any]:
    """Report on a training with rows held out, before the final one on all rows, as JSON values.

    ``steps`` are those after which the kept ``epoch`` ended, of ``planned_steps``; ``score`` and ``scores`` are on the
    held-out rows.
    """
    log = trainer.state.log_history
    ended = {entry["step"]: math.ceil(entry["epoch"]) for entry in log if f"eval_{run.task.metric}" in entry}
    steps = trainer.state.best_global_step if run.chooses_epoch else max(ended)
    assert encoded.selection is not None and steps is not None
    return {
        "steps": steps,
        "planned_steps": trainer.state.max_steps,
        "epoch": ended[int(steps)],
        "score": _selection_score(run, trainer),
        "scores": _score(run, trainer, encoded, encoded.selection, "selection"),
        "history": _history(log, run.method, run.task),
        "seconds": round(trainer.meter.seconds_so_far, 3),
    } | ({"temperature": held_out_temperature(run, trainer, encoded.selection)} if run.config.calibrate else {})


def held_out_temperature(run: ResolvedRun, trainer: RunTrainer, rows: Dataset) -> float:
    """Fit a temperature to a model's logits on held-out rows; warn if these are few."""
    task_type, outputs = run.task.type, _outputs(trainer, run.task, rows)[0]
    references = task_type.references(columns_of(rows))
    if (texts := len(references)) < ROWS_FOR_TEMPERATURE:  # which may have several windows each
        told = "Probabilities are calibrated on %s; with fewer than %d, they may be worse: raise --selection-fraction."
        logger.warning(told, counted(texts, "row"), ROWS_FOR_TEMPERATURE)
    return best_temperature(task_type.checked(outputs), references)


def _selection_score(run: ResolvedRun, trainer: RunTrainer) -> float | None:
    """Return the score of the kept epoch on the selection split; None if there is none, or no step was taken."""
    if run.chooses_epoch:
        return trainer.state.best_metric
    found = [entry[f"eval_{run.task.metric}"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return float(found[-1]) if found else None


def run_metrics(
    run: ResolvedRun,
    final: ResolvedRun,
    trainer: RunTrainer,
    encoded: Parts,
    scores: Mapping[str, Mapping[str, Any]],
    selected: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the content of ``metrics.json``, except for the data report and the total time."""
    config, method, parts, state = run.config, run.method, run.parts, trainer.state
    history = _history(state.log_history, final.method, run.task)
    best = selected["score"] if selected is not None else _selection_score(run, trainer)
    if best is None and "selection" in scores:
        best = scores["selection"]["scores"][run.task.metric]
    chosen = (entry["epoch"] for entry in history if run.chooses_epoch and entry["step"] == state.best_global_step)
    held_out = parts.selection if config.protocol == "held-out" else None
    rows = training_rows(final.parts.train, final.parts)
    rows |= {"selection": len(held_out)} if held_out is not None else {}
    if config.rewarded_on == "split" and final.parts.reward is not None:
        rows["reward"] = len(final.parts.reward)
    selected_on = None if not run.chooses_epoch else "dev" if config.protocol == "paper" else "selection"
    started = "linear-probe" if trainer.head_init is not None else "random" if trainer.head_is_new else "kept"
    found = scored_run(run, method.name, method.options(), scores, rows, selection_score=best, selected_on=selected_on)
    if "unlabelled" in found["data"]:
        found["data"]["unlabelled"] |= (trainer.head_init or {}).get("unlabelled") or {"used": False}
    found["data"]["rewarded_on"] = {"split": "reward", "eval": "dev"}.get(config.rewarded_on or "")
    # The fit: scores of the training rows, or of 1,000 of them, at random: if classes alternate, rows taken at regular
    # steps may all be of one class.
    texts, task_type = texts_of(encoded.train), run.task.type
    numbers = random.Random(0).sample(range(len(texts)), min(len(texts), 100 if task_type.generates else 1000))
    kept = [texts[number] for number in sorted(numbers)]
    sample = encoded.train.select(list(chain(*kept)))
    outputs, loss = _outputs(trainer, run.task, sample)
    metric, least = task_type.fitted_at or (run.task.metric, -math.inf)
    score = task_type.metrics[metric].score(task_type.references(columns_of(sample)), task_type.checked(outputs))
    parameters, peak = list(trainer.accelerator.unwrap_model(trainer.model).parameters()), 0
    if trainer.args.device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(trainer.args.device))
    elif sys.platform != "win32":  # where it is not known
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return found | {
        "best_epoch": len(history) if selected is not None else next(chosen, len(history)),
        "history": history,
        "dropout_steps": method.dropout_steps(state.log_history),
        "training": {name: getattr(config, name) for name in DECIDED}
        | {"head_init": None if run.task.type.generates else started},
        "selection": None if selected is None else {"rows": len(held_out or [])} | dict(selected),
        "steps": state.global_step,
        "planned_steps": state.max_steps,
        "train_seconds": round(trainer.meter.seconds_so_far + (selected["seconds"] if selected else 0), 3),
        "peak_memory_bytes": peak,
        "parameters": {
            "total": sum(each.numel() for each in parameters),
            "trained": sum(each.numel() for each in parameters if each.requires_grad),
        },
        "world_size": trainer.args.world_size,
        "device": str(trainer.args.device),
        "head_init": trainer.head_init,
        "train_fit": {"rows": len(kept), "loss": loss, "metric": metric, "score": score, "fitted": score >= least},
        **learnt(trainer, encoded),
    }


def learnt(trainer: RunTrainer, encoded: Parts) -> dict[str, Any]:
    """Collect what the method learnt in the finished run."""
    if trainer.method_state is None:
        return {}
    rows = encoded.train if encoded.selection is None else encoded.selection
    # All rows in each process: the trainer's own loader would give each a part, filled up with rows of others.
    data = trainer.labelled(rows)
    assert data is not None  # the rows of a run are no stream
    return trainer.method_state.final_report(data.iter_batches(trainer.args.eval_batch_size, Processes()))


def _history(log: list[dict[str, float]], method: Method, task: Task) -> list[dict[str, Any]]:
    """Make one entry per epoch, counted from 1: losses, selection scores, and what the method did."""
    acts_in = method.regularized_epochs(math.ceil(max((entry["epoch"] for entry in log), default=0))) or []
    dropped = {part.name: f"{part.source}/dropped" for part in method.parts}
    sources = [part.source for part in method.parts]
    history: dict[int, dict[str, Any]] = {}
    for number in dict.fromkeys(math.ceil(entry["epoch"]) for entry in log if "loss" in entry):
        metrics, figures = epoch_metrics(log, number), {}
        for name, value in metrics.items():  # of the method, other than the fractions that it dropped
            source, _, what = name.partition("/")
            if source in sources and what != "active" and not what.startswith("dropped"):
                figures[name] = value
        history[number] = {
            "epoch": number,
            "step": max(entry["step"] for entry in log if "loss" in entry and math.ceil(entry["epoch"]) == number),
            "train_loss": metrics["loss"],
            "selection_loss": None,
            "selection": {},
            "regularized": number - 1 in acts_in,
            "dropped": {part: metrics[name] for part, name in dropped.items() if name in metrics},
            "figures": figures,
        }
    for entry in log:
        if "eval_loss" in entry and math.ceil(entry["epoch"]) in history:
            found = {name: entry[f"eval_{name}"] for name in (task.metric, *task.other_metrics)}
            history[math.ceil(entry["epoch"])] |= {"selection": found, "selection_loss": finite(entry["eval_loss"])}
    return list(history.values())


def epoch_metrics(log: Sequence[dict[str, float]], epoch: int) -> dict[str, float]:
    """Average what was logged beside the loss in an epoch, counted from 1, weighted by steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    last_step = 0.0
    for entry in log:
        if "loss" in entry:
            entry = entry | {"steps": entry["step"] - last_step}
            last_step = entry["step"]
            for name, value in entry.items() if math.ceil(entry["epoch"]) == epoch else ():
                found.setdefault(name, []).append((value, entry["steps"]))
    averaged = {
        name: float(np.average([value for value, _ in pairs], weights=[steps for _, steps in pairs]))
        for name, pairs in found.items()
    }
    return averaged | {name: pairs[0][0] for name, pairs in found.items() if len(pairs) == 1}  # which is exact
