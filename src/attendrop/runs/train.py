"""Training of one model on one task, from options to results."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction

from attendrop.attention.adapter import find_attention_layers
from attendrop.batches import to_device
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.model_files import lasting_name
from attendrop.output_files import write_json, write_text
from attendrop.peft_models import has_adapter, transformers_model
from attendrop.pruning.saved_adapter import save_adapter
from attendrop.runs.announcements import (
    SKIPPED,
    announce_data,
    announce_fit,
    announce_one_class,
    announce_refit,
    announce_run,
)
from attendrop.runs.callbacks import AfterFirstStep, LogEvery, Meter, SaveEvery, StopAfter, silence
from attendrop.runs.class_weights import run_loss
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, encode_parts, fingerprint, sampled_rows
from attendrop.runs.data_report import data_report
from attendrop.runs.diverged_training import refuse_diverged
from attendrop.runs.experiment_tracking import check_integration, keep_in_folder
from attendrop.runs.head_start import start_head
from attendrop.runs.lora import add_adapter
from attendrop.runs.model_card import model_card
from attendrop.runs.model_loading import Loaded, load_for
from attendrop.runs.owned_files import SELECTION
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_file import RUN_FILE, run_file
from attendrop.runs.run_folder import (
    METRICS,
    SAMPLED_ROWS,
    begin_run,
    check_data,
    clear_unfinished,
    delete_checkpoints,
    is_main_process,
    note_in_run,
    read_metrics,
    read_run,
    replace_run,
    results,
    run_folder,
)
from attendrop.runs.run_metrics import (
    reset_peak_memory,
    run_metrics,
    score_report,
    selection_report,
    selection_scores,
    training_fit,
)
from attendrop.runs.run_trainer import RunTrainer
from attendrop.runs.small_data_recipe import decided
from attendrop.runs.timed_checkpoints import BestInMemoryTrainer, SaveBySeconds
from attendrop.runs.training_args import on_cpu, run_arguments
from attendrop.tasks.bad_rows import write_skipped
from attendrop.tasks.base import Task
from attendrop.tasks.heads.mean_pooling import pools_mean
from attendrop.tasks.metrics import compute_scores
from attendrop.tasks.tokenization import columns_of
from attendrop.training.checkpoints import last_checkpoint
from attendrop.training.trainer import RegularizedTrainer

logger = logging.getLogger(__name__)


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    keep_model: bool = True,
    checkpoint_seconds: float | None = None,
) -> dict[str, Any]:
    """Train a model, and save it with its card and ``metrics.json`` in ``config.output_dir``.

    Nothing is written before the data, the model and the method are checked and the first step is taken.
    ``metrics.json`` is written last: a folder that has it holds a finished run, whose checkpoints are deleted. The
    folder is locked throughout, so that no other process can train in it.

    Args:
        config: Options of the run.
        resume: Resume from the newest complete checkpoint, or start over without one. A finished run is kept.
        overwrite: Replace the run in the folder; it is deleted when this one is complete.
        callbacks: Callbacks of the trainer.
        keep_model: False keeps ``metrics.json`` and the options only.
        checkpoint_seconds: Seconds between checkpoints, instead of a checkpoint after each epoch.

    Returns:
        The content of ``metrics.json``.

    Raises:
        AttendropError: The options, the data or the model are invalid.
    """
    if config.fp16 and on_cpu(config.device):
        raise AttendropError("fp16 needs a GPU, and there is none here, or device is 'cpu'; use bf16, or neither.")
    with run_folder(config, resume=resume, overwrite=overwrite) as place:
        return _train(config, place, resume, callbacks, keep_model, checkpoint_seconds)


def _train(
    config: RunConfig,
    place: Path,
    resume: bool,
    callbacks: Sequence[TrainerCallback],
    keep_model: bool,
    checkpoint_seconds: float | None,
) -> dict[str, Any]:
    finished = read_metrics(place) if resume else None
    if finished is not None:
        logger.info("The run in %s is finished already; nothing is left to do.", config.output_dir)
        return finished
    began = time.monotonic()
    reset_peak_memory()
    check_integration(config.report_to)
    begun = (read_run(place) if resume else None) or {}
    run = resolve_run(config, begun.get("decided"))
    rows = fingerprint(run.parts)
    if begun:
        check_data(place, rows)
    loaded = _load(run)
    encoded = encode_parts(run.config, run.task, run.parts, loaded.tokenizer)
    announce_run(run)
    report = data_report(run.data, run.parts, encoded, loaded.tokenizer, config.max_length)
    announce_data(report, run.task.head)
    if not begun and is_main_process():
        clear_unfinished(place)
    start = partial(begin_run, place, config, rows, decided=decided(run.config))
    final, selected = run, begun.get("selected")
    earlier = 0.0 if selected is None else float(selected["seconds"])
    if run.config.refit:
        if selected is None:
            fitted = _fit(
                run, loaded, encoded, place, start, callbacks, begun, checkpoint_seconds, checkpoints=place / SELECTION
            )
            earlier = fitted.seconds_before
            selected = selection_report(run, fitted.trainer, encoded, fitted.seconds)
            _end_selection(fitted.trainer, place, selected)
            begun, loaded = {}, _load(run)
        final = run.on_all_rows(selected["planned_steps"])
        encoded = encode_parts(final.config, run.task, final.parts, loaded.tokenizer)
        announce_refit(len(final.parts.train), selected)
    fitted = _fit(
        final,
        loaded,
        encoded,
        place,
        start,
        callbacks,
        begun,
        checkpoint_seconds,
        stop_after=(selected or {}).get("steps"),
    )
    trainer = fitted.trainer
    scores = score_report(trainer, run.task, encoded) or selection_scores(selected)
    announce_one_class(scores)
    fit = training_fit(trainer, run.task, encoded.train)
    announce_fit(fit)
    metrics = run_metrics(run, final, trainer, scores, fitted.seconds, selected)
    metrics |= {"head_start": fitted.head_start, "train_fit": fit}
    random_head = None if run.task.head.pretrained else "random"
    metrics["training"]["head_start"] = random_head if fitted.head_start is None else "frozen"
    metrics["data"]["report"] = report
    metrics |= _final_report(trainer, encoded)
    metrics["total_seconds"] = round(time.monotonic() - began + earlier + fitted.seconds_before, 3)
    if trainer.is_world_process_zero():
        with results(place) as files:
            if keep_model:
                _save(trainer, run, loaded.tokenizer, metrics, files)
            write_json(files / METRICS, metrics)
            if not (place / RUN_FILE).exists():  # the process that began the run died before it was written
                write_text(files / RUN_FILE, run_file(config))
            if config.shots is not None or config.max_train_samples is not None:
                write_json(files / SAMPLED_ROWS, sampled_rows(run.parts))
            if run.data.skipped:
                write_skipped(files / SKIPPED, run.data.skipped)
        delete_checkpoints(place)  # a run with metrics.json is never resumed
        replace_run(Path(config.output_dir))
    trainer.accelerator.wait_for_everyone()
    return metrics


def _load(run: ResolvedRun) -> Loaded:
    """Load the model as each training of a run begins with it."""
    set_seed(run.config.seed)
    loaded = load_for(run.config.model, run.task, run.config.pooling)
    _check_method(loaded.model, run.method)
    return loaded


@dataclass(frozen=True)
class _Fitted:
    """Trained model, in its trainer.

    Attributes:
        trainer: The trainer.
        seconds: Seconds that training took.
        seconds_before: Those of them in earlier processes, before a resumption.
        head_start: How the head started; None: at random.
    """

    trainer: RegularizedTrainer
    seconds: float
    seconds_before: float
    head_start: dict[str, Any] | None


def _fit(
    run: ResolvedRun,
    loaded: Loaded,
    encoded: Parts,
    place: Path,
    start: Callable[[], None],
    callbacks: Sequence[TrainerCallback],
    begun: Mapping[str, Any],
    checkpoint_seconds: float | None,
    *,
    checkpoints: Path | None = None,
    stop_after: int | None = None,
) -> _Fitted:
    """Train a model, or go on from its last checkpoint.

    Args:
        run: The run, whose config and method are used.
        loaded: The model.
        encoded: Rows.
        place: Folder of the run.
        start: Writes the record of the run, after the first step, if there is none.
        callbacks: Callbacks of the trainer.
        begun: Record of the run if this training may have begun before, otherwise empty.
        checkpoint_seconds: As for :func:`train`.
        checkpoints: Folder of checkpoints; None: that of the run.
        stop_after: Number of steps after which to stop, if not after all.
    """
    checkpoints = checkpoints or place
    checkpoint = last_checkpoint(checkpoints) if begun else None
    arguments = run_arguments(
        run, checkpoints, checkpoint, save_epochs=checkpoint_seconds is None, stop_after=stop_after
    )
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
        head_start = begun.get("head_start")
    else:
        if begun:
            logger.info("There is no complete checkpoint in %s: the run starts over.", checkpoints)
        run.method.prepare(loaded.model, run.config.seed)
        head_start = start_head(loaded.model, loaded.tokenizer, loaded.new, run.task.head, encoded.train, run.config)

    def note() -> None:
        if read_run(place) is None:
            start()
        note_in_run(place, head_start=head_start)

    own: list[TrainerCallback] = [] if stop_after is None else [StopAfter(stop_after)]
    own += [AfterFirstStep(note)] if checkpoint is None and is_main_process() else []
    if run.config.adapter is not None:
        model = add_adapter(loaded.model, loaded.new, run.task.head, run.config.adapter)
        loaded = replace(loaded, model=model)
    trainer = _trainer(run, loaded, encoded, arguments, [*own, *callbacks], checkpoint_seconds)
    if run.config.max_steps == 0:
        note()
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    refuse_diverged(run.config, *(parameter.detach() for parameter in loaded.model.parameters()))
    meter = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Meter))
    return _Fitted(trainer, meter.seconds_so_far, meter.seconds_before, head_start)


def _end_selection(trainer: RegularizedTrainer, place: Path, selected: dict[str, Any]) -> None:
    """Record what the selection found, and delete its checkpoints."""
    if trainer.is_world_process_zero():
        note_in_run(place, selected=selected)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(place / SELECTION, ignore_errors=True)


def _save(
    trainer: RegularizedTrainer,
    run: ResolvedRun,
    tokenizer: PreTrainedTokenizerBase,
    metrics: dict[str, Any],
    files: Path,
) -> None:
    """Write the model of a finished run, or its adapter, its tokenizer and its card."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if has_adapter(model):
        save_adapter(model, files, lasting_name(run.config.model))
    else:
        model.save_pretrained(files)
    tokenizer.save_pretrained(files)
    for name, tensors in {} if trainer.method_state is None else trainer.method_state.tensors().items():
        save_file(tensors, files / f"{name}.safetensors")
    stock = not pools_mean(transformers_model(model))
    (files / "README.md").write_text(model_card(metrics, run.task.head, stock=stock), encoding="utf-8")


# Training -------------------------------------------------------------------------------------------------------------


def _check_method(model: PreTrainedModel, method: Method) -> None:
    """Refuse a model that the method cannot act on, and layers that it does not have."""
    if not method.uses_attention:
        return
    method.selected_layers(find_attention_layers(model))


def _trainer(
    run: ResolvedRun,
    loaded: Loaded,
    encoded: Parts,
    arguments: TrainingArguments,
    callbacks: Sequence[TrainerCallback],
    checkpoint_seconds: float | None,
) -> RegularizedTrainer:
    config, tokenizer = run.config, loaded.tokenizer
    own: list[TrainerCallback] = [Meter()]
    if config.patience is not None and encoded.selection is not None:
        own.append(EarlyStoppingCallback(config.patience))
    if config.save_steps is not None:
        own.append(SaveEvery(config.save_steps))
    if config.logging_steps is not None:
        own.append(LogEvery(config.logging_steps))
    if checkpoint_seconds is not None:
        own.append(SaveBySeconds(checkpoint_seconds))
    selection = {} if encoded.selection is None else columns_of(encoded.selection)
    in_memory = checkpoint_seconds is not None and run.chooses_epoch
    trainer = (BestInMemoryTrainer if in_memory else RunTrainer)(
        loaded.model,
        arguments,
        regularizer=run.method,
        train_dataset=encoded.train,
        reward_dataset=encoded.reward,
        eval_dataset=encoded.selection,
        data_collator=run.task.head.collator(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: _scores(config, run.task, found, selection, tokenizer),
        compute_reward_metrics=lambda found: _scores(config, run.task, found, {"labels": found.label_ids}, tokenizer),
        compute_loss_func=run_loss(config, run.task, encoded.train["labels"][:]),
        head=run.task.head,
        callbacks=[*own, *callbacks],
    )
    silence(trainer)
    keep_in_folder(trainer)
    return trainer


def _scores(
    config: RunConfig,
    task: Task,
    found: EvalPrediction,
    encoded: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, float]:
    refuse_diverged(config, found.predictions)
    outputs = task.head.row_outputs(np.asarray(found.predictions), encoded, tokenizer)
    return compute_scores(task, outputs, task.head.references(encoded))


def _final_report(trainer: RegularizedTrainer, encoded: Parts) -> dict[str, Any]:
    """Collect what the method learnt in the finished run."""
    if trainer.method_state is None:
        return {}
    rows = encoded.train if encoded.selection is None else encoded.selection
    batches = (to_device(batch, trainer.args.device) for batch in trainer.get_eval_dataloader(rows))
    return trainer.method_state.final_report(batches)
