"""Runs: train one model on one task by the honest protocol, resume it, evaluate it, predict with it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import EvalPrediction

from attendrop.attention.adapter import find_attention_layers
from attendrop.batches import to_device
from attendrop.errors import AttendropError
from attendrop.methods.base import Method
from attendrop.output_files import write_json, write_text
from attendrop.runs.callbacks import AfterFirstStep, LogEvery, Meter, SaveEvery
from attendrop.runs.class_weights import run_loss
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, encode_parts, fingerprint, load_data
from attendrop.runs.data_report import data_report, report_table, report_warnings
from attendrop.runs.diverged_training import refuse_diverged
from attendrop.runs.experiment_tracking import check_integration, keep_in_folder
from attendrop.runs.metrics import SetScores, run_metrics, score_report
from attendrop.runs.model_card import model_card
from attendrop.runs.model_loading import load_model_and_tokenizer
from attendrop.runs.run_file import RUN_FILE, run_file
from attendrop.runs.run_folder import (
    METRICS,
    begin_run,
    check_data,
    clear_unfinished,
    is_main_process,
    read_metrics,
    read_run,
    replace_run,
    results,
    run_folder,
)
from attendrop.tasks.bad_rows import write_skipped
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.metrics import compute_scores
from attendrop.training.checkpoints import last_checkpoint
from attendrop.training.trainer import RegularizedTrainer

SKIPPED = "skipped_rows.jsonl"
logger = logging.getLogger(__name__)


def train(
    config: RunConfig, *, resume: bool = False, overwrite: bool = False, callbacks: Sequence[TrainerCallback] = ()
) -> dict[str, Any]:
    """Train a model, and leave it, its card and ``metrics.json`` in ``config.output_dir``.

    Nothing is written before the data, the model and the method have been found good, and the first step was taken.
    ``metrics.json`` comes last: a folder that has it holds a finished run. From the first check to the end the folder
    is locked: no other process can train in it.

    Args:
        config: What to do.
        resume: Go on from the newest complete checkpoint; without one, start over. A finished run is left alone.
        overwrite: Replace the run that the folder holds; it is deleted when this one is complete.
        callbacks: Watch the training.

    Returns:
        The content of ``metrics.json``.

    Raises:
        AttendropError: Anything that the user can put right.
    """
    if config.fp16 and on_cpu(config.device):
        raise AttendropError("fp16 needs a GPU, and there is none here, or device is 'cpu'; use bf16, or neither.")
    with run_folder(config, resume=resume, overwrite=overwrite) as place:
        return _train(config, place, resume=resume, callbacks=callbacks)


def _train(config: RunConfig, place: Path, *, resume: bool, callbacks: Sequence[TrainerCallback]) -> dict[str, Any]:
    finished = read_metrics(place) if resume else None
    if finished is not None:
        logger.info("The run in %s is finished already; nothing is left to do.", config.output_dir)
        return finished
    check_integration(config.report_to)
    method = config.build_method()
    data = load_data(config)
    parts = divide(config, data)
    rows = fingerprint(parts)
    set_seed(config.seed)
    model, tokenizer = load_model_and_tokenizer(config.model, data.task)
    _check_method(model, method)
    encoded = encode_parts(config, data, parts, tokenizer)
    _announce(config, method, data, parts)
    report = data_report(data, parts, encoded, tokenizer, config.max_length)
    _announce_data(report)
    begun = resume and read_run(place) is not None
    if begun:
        check_data(place, rows)
    checkpoint = last_checkpoint(place) if begun else None
    arguments = _arguments(config, place, data, parts, checkpoint)
    if checkpoint is not None:
        logger.info("Going on from %s.", checkpoint)
    elif begun:
        logger.info("There is no complete checkpoint in %s: the run starts over.", place)
    elif is_main_process():
        clear_unfinished(place)
        callbacks = [AfterFirstStep(lambda: begin_run(place, config, rows)), *callbacks]
    trainer = _trainer(config, method, data, model, tokenizer, encoded, arguments, callbacks)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    refuse_diverged(config, *(parameter.detach() for parameter in model.parameters()))
    meter = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Meter))
    scores = score_report(trainer, data.task, encoded)
    _announce_one_class(scores)
    metrics = run_metrics(config, method, data, parts, trainer, scores, meter.seconds_so_far)
    metrics["data"]["report"] = report
    metrics |= _conclude(trainer, encoded)
    if trainer.is_world_process_zero():
        with results(place) as files:
            _save(trainer, tokenizer, metrics, files)
            if not (place / RUN_FILE).exists():  # a process died before it was written
                write_text(files / RUN_FILE, run_file(config))
            if data.skipped:
                write_skipped(files / SKIPPED, data.skipped)
        replace_run(Path(config.output_dir))
    trainer.accelerator.wait_for_everyone()
    return metrics


def _save(
    trainer: RegularizedTrainer, tokenizer: PreTrainedTokenizerBase, metrics: dict[str, Any], files: Path
) -> None:
    """Write what a finished run leaves."""
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(files)
    tokenizer.save_pretrained(files)
    for name, tensors in {} if trainer.method_state is None else trainer.method_state.tensors().items():
        save_file(tensors, files / f"{name}.safetensors")
    (files / "README.md").write_text(model_card(metrics), encoding="utf-8")
    write_json(files / METRICS, metrics)


# Training -------------------------------------------------------------------------------------------------------------


def _check_method(model: PreTrainedModel, method: Method) -> None:
    """Refuse, before training, a model that the method cannot act on, and layers that it does not have."""
    if not method.uses_attention:
        return
    method.chosen(find_attention_layers(model))


def _announce(config: RunConfig, method: Method, data: TaskData, parts: Parts) -> None:
    counts = [f"{len(parts.train)} rows to train on"]
    if parts.selection is not None and config.protocol == "honest":
        counts.append(f"{len(parts.selection)} more to choose the best epoch")
    if config.rewarded_on() == "split" and parts.reward is not None:
        counts.append(f"{len(parts.reward)} more to reward the method on")
    counts += [f"{len(rows)} to report on ({name})" for name, rows in parts.report.items()]
    logger.info("Task %s, %s: %s.", data.task.name, data.source, ", ".join(counts))
    if config.protocol == "paper":
        logger.warning("Protocol 'paper': the best epoch is chosen on the set that is reported, so the score flatters.")
    if config.rewarded_on() == "eval":
        logger.warning(
            "The method scores models on the development set during training (reward_data), so the score on it "
            "flatters."
        )
    if parts.selection is None:
        logger.info("No selection split: the last epoch is kept.")
    for part in method.parts:
        _announce_epochs(part, _epochs(config, parts))


def _announce_data(report: dict[str, Any]) -> None:
    """Say what the data are, and what is odd about them."""
    logger.info("%s", report_table(report))
    if report["skipped"]:
        logger.warning("Bad rows left out: %d; the run's %s lists them.", report["skipped"], SKIPPED)
    for warning in report_warnings(report):
        logger.warning("%s", warning)


def _announce_one_class(scores: Mapping[str, SetScores]) -> None:
    for name, found in scores.items():
        if len(found.predicted) == 1 and found.rows > 1:
            answer = next(iter(found.predicted))
            logger.warning("The model predicts %r for all %d rows of %s.", answer, found.rows, name)


def _announce_epochs(method: Method, total: int) -> None:
    epochs = method.regularized_epochs(total)
    if epochs is None:
        logger.info("Method %s: nothing is regularised.", method.name)
    elif epochs:  # if there are none, the trainer warns
        logger.info("Method %s will regularise %s.", method.name, _listed(epochs, total))


def _epochs(config: RunConfig, parts: Parts) -> int:
    """How many epochs the run takes, the last one perhaps in part."""
    if config.max_steps is None:
        return config.epochs
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    batches = math.ceil(len(parts.train) / (config.batch_size * processes))
    return math.ceil(config.max_steps / math.ceil(batches / config.gradient_accumulation))


def _listed(epochs: list[int], total: int) -> str:
    """Epochs counted from 0, as people count them."""
    if len(epochs) == total:
        return f"all {total} epochs"
    names = [str(epoch + 1) for epoch in epochs]
    shown = names if len(names) <= 8 else [*names[:3], "...", names[-1]]
    return f"epoch{'s' if len(names) > 1 else ''} {', '.join(shown)} of {total}"


def _arguments(
    config: RunConfig, place: Path, data: TaskData, parts: Parts, checkpoint: Path | None
) -> TrainingArguments:
    selecting = parts.selection is not None
    try:
        return TrainingArguments(
            output_dir=str(place),
            num_train_epochs=_epochs(config, parts),
            max_steps=_steps(config, checkpoint),
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
            report_to=config.report_to,
            run_name=Path(config.output_dir).name,
        )
    except ValueError as error:  # such as half precision on a device without it
        raise AttendropError(f"These options do not go together here: {str(error).splitlines()[0]}") from error


def _steps(config: RunConfig, checkpoint: Path | None) -> int:
    """How many steps there are, if not counted in epochs (-1): also those of a resumed run that had stopped early."""
    steps = config.max_steps or -1
    if checkpoint is None or config.patience is None:
        return steps
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    stopping: Any = state.stateful_callbacks.get(EarlyStoppingCallback.__name__, {})
    waited = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return state.global_step if waited >= config.patience else steps


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
    own: list[TrainerCallback] = [Meter()]
    if config.patience is not None and encoded.selection is not None:
        own.append(EarlyStoppingCallback(config.patience))
    if config.save_steps is not None:
        own.append(SaveEvery(config.save_steps))
    if config.logging_steps is not None:
        own.append(LogEvery(config.logging_steps))
    trainer = RegularizedTrainer(
        model,
        arguments,
        regularizer=method,
        train_dataset=encoded.train,
        reward_dataset=encoded.reward,
        eval_dataset=encoded.selection,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: _scores(config, data.task, found),
        compute_loss_func=run_loss(config, data.task, encoded.train["labels"][:]),
        preprocess_logits_for_metrics=only_logits,
        callbacks=[*own, *callbacks],
    )
    silence(trainer)
    keep_in_folder(trainer)
    return trainer


def _scores(config: RunConfig, task: Task, found: EvalPrediction) -> dict[str, float]:
    refuse_diverged(config, found.predictions)
    return compute_scores(task, np.asarray(found.predictions), np.asarray(found.label_ids))


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


def _conclude(trainer: RegularizedTrainer, encoded: Parts) -> dict[str, Any]:
    """What the method has to tell of the finished run."""
    if trainer.method_state is None:
        return {}
    rows = encoded.train if encoded.selection is None else encoded.selection
    batches = (to_device(batch, trainer.args.device) for batch in trainer.get_eval_dataloader(rows))
    return trainer.method_state.conclude(batches)
