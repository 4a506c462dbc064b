"""Runs: train one model on one task by the honest protocol, resume it, evaluate it, predict with it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState, PrinterCallback

import attendrop
from attendrop.attention import find_sites
from attendrop.runs.card import model_card
from attendrop.checkpoints import last_checkpoint, write_json
from attendrop.runs.config import RunConfig
from attendrop.errors import AttendropError
from attendrop.methods import Method
from attendrop.runs.models import load_model_and_tokenizer
from attendrop.runs.folder import METRICS, check_folder, is_main_process, open_folder, read_metrics, read_run
from attendrop.sites import select_sites
from attendrop.tasks import Task, TaskData, compute_scores, encode, few_shot, hold_out, load_files, load_task, subset
from attendrop.trainer import RegularizedTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The rows of a run, divided: what trains, what chooses the epoch (or None), and what is reported, by name."""

    train: Dataset
    selection: Dataset | None
    report: dict[str, Dataset]


def train(
    config: RunConfig, *, resume: bool = False, overwrite: bool = False, callbacks: Sequence[TrainerCallback] = ()
) -> dict[str, Any]:
    """Train a model, and leave it, its card and ``metrics.json`` in ``config.output_dir``.

    Nothing is written before the data, the model and the method have been found good. ``metrics.json`` comes last: a
    folder that has it holds a finished run.

    Args:
        config: What to do.
        resume: Go on from the newest complete checkpoint; without one, start over. A finished run is left alone.
        overwrite: Delete the run that the folder holds.
        callbacks: Watch the training.

    Returns:
        The content of ``metrics.json``.

    Raises:
        AttendropError: Anything that the user can put right.
    """
    folder = Path(config.output_dir)
    if is_main_process():
        check_folder(folder, config, resume=resume, overwrite=overwrite)
    finished = read_metrics(folder) if resume else None
    if finished is not None:
        logger.info("The run in %s is finished already; nothing is left to do.", folder)
        return finished
    method = config.build_method()
    data = _load_data(config)
    parts = _divide(config, data)
    set_seed(config.seed)
    model, tokenizer = load_model_and_tokenizer(config.model, data.task)
    _check_method(model, method)
    encoded = _encode(config, data, parts, tokenizer)
    _announce(config, method, data, parts)
    begun = resume and read_run(folder) is not None
    checkpoint = last_checkpoint(folder) if begun else None
    arguments = _arguments(config, data, parts, checkpoint)
    if is_main_process():
        open_folder(folder, config, _fingerprint(parts), resume=resume)
    if checkpoint is not None:
        logger.info("Going on from %s.", checkpoint)
    elif begun:
        logger.info("There is no complete checkpoint in %s: the run starts over.", folder)
    trainer = _trainer(config, method, data, model, tokenizer, encoded, arguments, callbacks)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    scores = _report(trainer, data.task, encoded)
    metrics = _metrics(config, method, data, parts, trainer, scores)
    if trainer.is_world_process_zero():
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(metrics), encoding="utf-8")
        write_json(folder / METRICS, metrics)
    trainer.accelerator.wait_for_everyone()
    return metrics


# Data -----------------------------------------------------------------------------------------------------------------


def _load_data(config: RunConfig) -> TaskData:
    if config.task is not None:
        return load_task(config.task, data_dir=config.data_dir)
    return load_files(
        train_file=config.train_file,
        eval_file=config.eval_file,
        text_columns=config.text_columns,
        label_column=config.label_column,
        label_type=config.label_type,
    )


def _divide(config: RunConfig, data: TaskData) -> Parts:
    """Limit the training rows first, then set the selection split aside from what is left."""
    rows = data.splits["train"]
    report = {name: split for name, split in data.splits.items() if name != "train"}
    if config.shots is not None:
        rows = few_shot(rows, data.task, config.shots, config.seed)
    if config.max_train_samples is not None:
        rows = subset(rows, config.max_train_samples, config.seed)
    if config.protocol == "paper":
        return Parts(rows, report["dev"], report)
    kept, held_out = hold_out(rows, data.task, config.selection_fraction, config.seed)
    return Parts(kept, held_out, report)


def _encode(config: RunConfig, data: TaskData, parts: Parts, tokenizer: PreTrainedTokenizerBase) -> Parts:
    def encoded(rows: Dataset) -> Dataset:
        return encode(rows, data.task, tokenizer, config.max_length)

    selection = None if parts.selection is None else encoded(parts.selection)
    return Parts(encoded(parts.train), selection, {name: encoded(rows) for name, rows in parts.report.items()})


def _fingerprint(parts: Parts) -> str:
    """A hash of the rows that shape the weights: a run that is resumed must find the same."""
    digest = hashlib.sha256()
    for rows in (parts.train, parts.selection):
        digest.update(json.dumps([] if rows is None else rows.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()


# Training -------------------------------------------------------------------------------------------------------------


def _check_method(model: PreTrainedModel, method: Method) -> None:
    """Refuse, before training, a model that the method cannot act on, and layers that it does not have."""
    if method.regularized_epochs(1) is None:
        return
    sites = find_sites(model)
    if "layers" in method.options():
        select_sites(sites, method.options()["layers"])


def _announce(config: RunConfig, method: Method, data: TaskData, parts: Parts) -> None:
    counts = [f"{len(parts.train)} rows to train on"]
    if parts.selection is not None and config.protocol == "honest":
        counts.append(f"{len(parts.selection)} more to choose the best epoch")
    counts += [f"{len(rows)} to report on ({name})" for name, rows in parts.report.items()]
    logger.info("Task %s, %s: %s.", data.task.name, data.source, ", ".join(counts))
    if config.protocol == "paper":
        logger.warning("Protocol 'paper': the best epoch is chosen on the set that is reported, so the score flatters.")
    elif parts.selection is None:
        logger.info("No selection split: the last epoch is kept.")
    epochs = method.regularized_epochs(config.epochs)
    if epochs is None:
        logger.info("Method %s: nothing is regularised.", method.name)
    elif epochs:
        logger.info("Method %s will regularise %s.", method.name, _listed(epochs, config.epochs))
    else:
        logger.warning(
            "Method %s would regularise none of the %d epoch(s): with cross-tuning it acts in epochs 2, 4, 6, ... "
            "Train for more epochs, or set cross_tuning=false.",
            method.name,
            config.epochs,
        )


def _listed(epochs: list[int], total: int) -> str:
    """Epochs counted from 0, as people count them."""
    if len(epochs) == total:
        return f"all {total} epochs"
    names = [str(epoch + 1) for epoch in epochs]
    shown = names if len(names) <= 8 else [*names[:3], "...", names[-1]]
    return f"epoch{'s' if len(names) > 1 else ''} {', '.join(shown)} of {total}"


def _arguments(config: RunConfig, data: TaskData, parts: Parts, checkpoint: Path | None) -> TrainingArguments:
    selecting = parts.selection is not None
    try:
        return TrainingArguments(
            output_dir=config.output_dir,
            num_train_epochs=config.epochs,
            max_steps=_steps_of_stopped_run(config, checkpoint),
            per_device_train_batch_size=config.batch_size,
            per_device_eval_batch_size=config.eval_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            lr_scheduler_type=config.schedule,
            warmup_steps=config.warmup,
            train_sampling_strategy="group_by_length",
            eval_strategy="epoch" if selecting else "no",
            logging_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=selecting,
            metric_for_best_model=f"eval_{data.task.metric}" if selecting else None,
            greater_is_better=True if selecting else None,
            seed=config.seed,
            data_seed=config.seed,
            use_cpu=on_cpu(config.device),
            bf16=config.bf16,
            fp16=config.fp16,
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
        )
    except ValueError as error:  # such as half precision on a device without it
        raise AttendropError(f"These options do not go together here: {str(error).splitlines()[0]}") from error


def _steps_of_stopped_run(config: RunConfig, checkpoint: Path | None) -> int:
    """The step at which the run that is resumed had stopped early, so that it trains no further; else -1."""
    if checkpoint is None or config.patience is None:
        return -1
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    stopping: Any = state.stateful_callbacks.get(EarlyStoppingCallback.__name__, {})
    waited = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return state.global_step if waited >= config.patience else -1


def _trainer(
    config: RunConfig,
    method: Method,
    data: TaskData,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Parts,
    arguments: TrainingArguments,
    callbacks: Sequence[TrainerCallback],
) -> RegularizedTrainer:
    own: list[TrainerCallback] = [_Meter()]
    if config.patience is not None and encoded.selection is not None:
        own.append(EarlyStoppingCallback(config.patience))
    if config.save_steps is not None:
        own.append(_SaveEvery(config.save_steps))
    trainer = RegularizedTrainer(
        model,
        arguments,
        regularizer=method,
        train_dataset=encoded.train,
        eval_dataset=encoded.selection,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: compute_scores(data.task, found.predictions, found.label_ids),
        preprocess_logits_for_metrics=only_logits,
        callbacks=[*own, *callbacks],
    )
    silence(trainer)
    return trainer


def on_cpu(device: str) -> bool:
    """Whether to compute on the CPU. The trainer must be told: it starts DDP on CPUs only where they were asked for."""
    return device == "cpu" or not torch.accelerator.is_available()


def only_logits(outputs: Any, labels: torch.Tensor) -> Any:
    """Some models return more than logits; only these are scored."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def silence(trainer: Trainer) -> None:
    """Take away the trainer's own printing."""
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)


class _Meter(TrainerCallback, ExportableState):
    """Counts the seconds of training, also those before a run was resumed."""

    def __init__(self) -> None:
        self.seconds_so_far = 0.0
        self.start = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.start = time.monotonic()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds_so_far = self.seconds()

    def seconds(self) -> float:
        return self.seconds_so_far + time.monotonic() - self.start

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seconds_so_far": self.seconds()}}


class _SaveEvery(TrainerCallback):
    """Asks for a checkpoint every so many optimizer steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        ends_epoch = float(state.epoch or 0).is_integer()  # has a checkpoint anyway, after its evaluation
        if state.global_step % self.steps == 0 and not ends_epoch:
            control.should_save = True


# Results --------------------------------------------------------------------------------------------------------------


def _report(trainer: RegularizedTrainer, task: Task, encoded: Parts) -> dict[str, dict[str, float]]:
    """Score the model on the sets to report on: the one time that they are looked at under the honest protocol."""
    scores = {}
    for name, rows in encoded.report.items():
        found = trainer.predict(rows)
        scores[name] = compute_scores(task, np.asarray(found.predictions), np.asarray(found.label_ids))
    return scores


def _metrics(
    config: RunConfig,
    method: Method,
    data: TaskData,
    parts: Parts,
    trainer: RegularizedTrainer,
    scores: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """The content of ``metrics.json``, given the scores of the sets to report on."""
    meter = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, _Meter))
    history = _history(trainer.state.log_history, method, data)
    best = trainer.state.best_metric if parts.selection is not None else None
    chosen = [entry["epoch"] for entry in history if best is not None and entry["selection"][data.task.metric] == best]
    selected_on = None if parts.selection is None else "dev" if config.protocol == "paper" else "selection"
    return {
        "task": data.task.name,
        "model": config.model,
        "method": method.name,
        "options": method.options(),
        "seed": config.seed,
        "protocol": config.protocol,
        "metric": data.task.metric,
        "selection_score": best,
        "score": scores["dev"][data.task.metric] if "dev" in scores else None,
        "all_scores": scores,
        "best_epoch": chosen[0] if chosen else len(history),
        "history": history,
        "steps": trainer.state.global_step,
        "train_seconds": round(meter.seconds_so_far, 3),
        "peak_memory_bytes": _peak_memory(trainer.args.device),
        "data": {
            "source": data.source,
            "text_columns": list(data.task.text_columns),
            "classes": list(data.task.label_names),
            "selected_on": selected_on,
            "rows": {"train": len(parts.train)}
            | ({"selection": len(parts.selection)} if selected_on == "selection" and parts.selection else {})
            | {name: len(rows) for name, rows in parts.report.items()},
        },
        "config": config.as_dict(),
        "output_dir": config.output_dir,
        "world_size": trainer.args.world_size,
        "device": str(trainer.args.device),
        "versions": _versions(),
    }


def _history(log: list[dict[str, float]], method: Method, data: TaskData) -> list[dict[str, Any]]:
    """One entry per epoch, counted from 1: loss, selection scores, and what the method did."""
    acts_in = method.regularized_epochs(math.ceil(max((entry["epoch"] for entry in log), default=0))) or []
    names = (data.task.metric, *data.task.other_metrics)
    history: dict[int, dict[str, Any]] = {}
    for entry in log:
        number = math.ceil(entry["epoch"])
        if "loss" in entry:
            history[number] = {
                "epoch": number,
                "train_loss": entry["loss"],
                "selection": {},
                "regularized": number - 1 in acts_in,
                "dropped": entry.get(f"{method.name.replace('-', '_')}/dropped"),
            }
        elif "eval_loss" in entry and number in history:
            history[number]["selection"] = {name: entry[f"eval_{name}"] for name in names}
    return list(history.values())


def _peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU what tensors took at most, else what the process did; 0 where that is not known (Windows)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _versions() -> dict[str, str]:
    others = {package: version(package) for package in ("torch", "transformers", "accelerate", "datasets")}
    return {"attendrop": attendrop.__version__, "python": sys.version.split()[0], **others}
