"""Training of one model on one task, from options to results."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from attendrop.errors import AttendropError
from attendrop.files.model_files import lasting_name
from attendrop.files.output_files import write_json, write_text
from attendrop.methods.core.registry import decided_by_data
from attendrop.model_support.devices import compute_device
from attendrop.model_support.models import has_adapter, transformers_model
from attendrop.pruning.serialization import save_adapter
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, encode_parts, fingerprint, sampled_rows
from attendrop.runs.data_report import SKIPPED, data_report, report_table, report_warnings
from attendrop.runs.fitting import fit, load_model
from attendrop.runs.model_card import CARD, model_card
from attendrop.runs.model_loading import Loaded
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_file import RUN_FILE, run_file
from attendrop.runs.run_folder import (
    METRICS,
    SAMPLED_ROWS,
    SELECTION,
    begin_run,
    check_processes,
    check_unchanged,
    clear_unfinished,
    delete_checkpoints,
    is_main_process,
    note_in_run,
    number_of_processes,
    read_metrics,
    read_run,
    replace_run,
    results,
    run_folder,
)
from attendrop.runs.run_metrics import (
    SetScores,
    held_out_temperature,
    reset_peak_memory,
    run_metrics,
    score_model,
    selection_report,
)
from attendrop.runs.run_trainer import RunTrainer, check_integration
from attendrop.runs.small_data_recipe import decided
from attendrop.runs.training_args import num_epochs
from attendrop.tasks.class_names import names_told, unlabelled_told
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.model_classes import pools_mean
from attendrop.tasks.row_scores import PREDICTIONS, write_predictions
from attendrop.tasks.table import write_skipped
from attendrop.wording import counted

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
        resume: Resume from the newest complete checkpoint, or start over without one. A finished run is kept, if its
            training rows and its model are the same.
        overwrite: Replace the run in the folder; it is deleted when this one is complete.
        callbacks: Callbacks of the trainer.
        keep_model: False keeps ``metrics.json`` and the options only.
        checkpoint_seconds: Seconds between checkpoints, instead of a checkpoint after each epoch.

    Returns:
        The content of ``metrics.json``.

    Raises:
        AttendropError: The options, the data or the model are invalid.
    """
    if config.fp16 and compute_device(config.device).type == "cpu":
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
    began = time.monotonic()
    reset_peak_memory()
    check_integration(config.report_to)
    # Resolve the options, and load the data.
    begun = (read_run(place) if resume else None) or {}
    run = resolve_run(config, begun.get("decided"))
    rows = fingerprint(run.parts)
    if begun:
        check_unchanged(place, config, rows)
    finished = read_metrics(place) if resume else None
    if finished is not None:
        logger.info("The run in %s is finished already; nothing is left to do.", config.output_dir)
        if is_main_process():
            delete_checkpoints(place)
        return finished
    check_processes(place, begun)
    # Load the model.
    loaded = load_model(run)
    encoded = encode_parts(run.config, run.task, run.parts, loaded.tokenizer)
    announce_run(run, len(encoded.train))
    report = data_report(run.data, run.parts.real, encoded.real, loaded.tokenizer, config.max_length)
    announce_data(report, run.task.head)
    if not begun and is_main_process():
        clear_unfinished(place)
    # Fit it; if held-out rows are to be trained on, too, once without and once with them.
    found = decided(run.config) | {"options": run.config.options}
    begin = partial(begin_run, place, config, rows, decided=found, processes=number_of_processes())
    fit_here = partial(fit, place=place, begin=begin, callbacks=callbacks, checkpoint_seconds=checkpoint_seconds)
    final, selected, seconds_before = run, begun.get("selected"), 0.0
    if run.config.refit:
        if selected is None:
            selected, seconds_before = _select(fit_here, place, run, loaded, encoded, begun)
            begun, loaded = {}, load_model(run)
        else:
            seconds_before = float(selected["seconds"])
        final = run.on_all_rows(selected["planned_steps"])
        encoded = encode_parts(final.config, run.task, final.parts, loaded.tokenizer)
        trained_on, steps = final.parts.trained_on(config.label_names), counted(selected["steps"], "step")
        logger.info("Training again on all %s, for %s.", trained_on, steps)
    trainer = fit_here(final, loaded, encoded, begun=begun, stop_after=(selected or {}).get("steps"))
    seconds_before += trainer.meter.seconds_before
    temperature = _calibrate(run, trainer, encoded, selected) if config.calibrate else None
    # Score it, and write the results.
    scores = score_model(run, trainer, encoded, selected)
    metrics = run_metrics(run, final, trainer, encoded, scores, selected)
    announce_scores(scores, metrics["train_fit"])
    metrics["data"]["report"] = report
    metrics["temperature"] = temperature
    metrics["total_seconds"] = round(time.monotonic() - began + seconds_before, 3)
    if trainer.is_world_process_zero():
        predictions = scores["dev"].predictions if "dev" in scores else None
        _write(trainer, run, metrics, predictions, place, model=keep_model)
    trainer.accelerator.wait_for_everyone()
    return metrics


def _select(
    fit_here: Callable[..., RunTrainer],
    place: Path,
    run: ResolvedRun,
    loaded: Loaded,
    encoded: Parts,
    begun: Mapping[str, Any],
) -> tuple[dict[str, Any], float]:
    """Train with held-out rows, to determine the number of epochs for the training on all rows.

    Returns:
        :func:`selection_report`, and the seconds of this training in earlier processes.
    """
    trainer = fit_here(run, loaded, encoded, begun=begun, checkpoints=place / SELECTION)
    selected = selection_report(run, trainer, encoded)
    if trainer.is_world_process_zero():
        note_in_run(place, selected=selected)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(place / SELECTION, ignore_errors=True)
    return selected, trainer.meter.seconds_before


def _calibrate(run: ResolvedRun, trainer: RunTrainer, encoded: Parts, selected: Mapping[str, Any] | None) -> float:
    """Divide the model's logits by the temperature fitted on held-out rows, in this or the previous training."""
    if selected is None:
        assert encoded.selection is not None
        temperature = held_out_temperature(run, trainer, encoded.selection)
    else:
        temperature = float(selected["temperature"])
    divide_logits(trainer.accelerator.unwrap_model(trainer.model), temperature)
    logger.info("Logits are divided by %.2f, a temperature fitted on held-out rows.", temperature)
    return temperature


def divide_logits(model: PreTrainedModel, temperature: float) -> None:
    """Divide the logits of a model by a temperature, in the weights of its last layer.

    So every program that loads the model, including stock transformers and ONNX files, computes the calibrated
    probabilities. The predicted classes do not change; above 1, the model becomes less confident.

    Raises:
        AttendropError: The model has no linear layer with an output for each class at its end.

    Source: Guo, Pleiss, Sun, Weinberger (2017), On Calibration of Modern Neural Networks, section 4.2.
    """
    outputs = model.config.num_labels
    found = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == outputs]
    last = next((layer for layer in reversed(found) if layer.weight.requires_grad), None)
    if last is None:
        raise AttendropError("calibrate: the model has no linear layer at its end that could be scaled; omit it.")
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.div_(temperature)


def _write(
    trainer: RunTrainer,
    run: ResolvedRun,
    metrics: dict[str, Any],
    predictions: list[Any] | None,
    place: Path,
    *,
    model: bool,
) -> None:
    """Write the files of a finished run, ``metrics.json`` and its options at least, and put it in its folder."""
    config = run.given
    with results(place) as files:
        if model:
            _save(trainer, run, metrics, files)
        write_json(files / METRICS, metrics)
        if predictions is not None:
            write_predictions(files / PREDICTIONS, predictions)
        if not (place / RUN_FILE).exists():  # the process that began the run died before it was written
            write_text(files / RUN_FILE, run_file(config))
        if config.shots is not None or config.max_train_samples is not None:
            write_json(files / SAMPLED_ROWS, sampled_rows(run.parts))
        if run.data.skipped:
            write_skipped(files / SKIPPED, run.data.skipped)
    delete_checkpoints(place)  # a run with metrics.json is never resumed
    replace_run(Path(config.output_dir))


def _save(trainer: RunTrainer, run: ResolvedRun, metrics: dict[str, Any], files: Path) -> None:
    """Write the model of a finished run, or its adapter, its tokenizer and its card."""
    tokenizer: Any = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    stock = not pools_mean(transformers_model(model))
    if has_adapter(model) and stock:
        save_adapter(model, files, lasting_name(run.config.model))
    else:  # transformers and PEFT would put an adapter on a class of their own
        whole = model.merge_and_unload() if has_adapter(model) else model
        whole.save_pretrained(files)
    tokenizer.save_pretrained(files)
    for name, tensors in {} if trainer.method_state is None else trainer.method_state.tensors().items():
        save_file(tensors, files / f"{name}.safetensors")
    (files / CARD).write_text(model_card(metrics, run.task.head, stock=stock), encoding="utf-8")


# What a run logs before and after training ----------------------------------------------------------------------------


def announce_run(run: ResolvedRun, rows: int) -> None:
    """Log the data, of ``rows`` encoded training rows, and when the method acts; warn of optimistic scores."""
    config, parts = run.config, run.parts
    counts = [f"{parts.trained_on(config.label_names)} to train on"]
    if parts.selection is not None and config.protocol == "honest":
        purpose = "choose the best epoch" if run.chooses_epoch else "score on"
        counts.append(f"{len(parts.selection)} more to {purpose}")
    if config.rewarded_on == "split" and parts.reward is not None:
        counts.append(f"{len(parts.reward)} more to reward the method on")
    counts += [f"{len(rows)} to report on ({name})" for name, rows in parts.report.items()]
    logger.info("Task %s, %s: %s.", run.task.name, run.data.source, ", ".join(counts))
    for told in names_told(parts.names, parts.names_left_out, config.label_names):
        logger.info("%s", told)
    for told in unlabelled_told(parts.unlabelled_numbers):
        logger.info("%s", told)
    if config.protocol == "paper":
        logger.warning("Protocol 'paper': the best epoch is chosen on the reported set, so the score is optimistic.")
    if config.rewarded_on == "eval":
        logger.warning("The method scores models on dev during training, so the score on it is optimistic.")
    if not run.chooses_epoch:
        logger.info("Nothing is chosen: the last epoch is kept.")
    logger.info("%s", _training(run))
    if decision := decided_by_data(run.method.name, run.given.options, run.method.options()):
        logger.info("The data have many classes with few rows each, so the method is %s.", decision)
    total = num_epochs(config, rows)
    for part in run.method.parts:
        epochs = part.regularized_epochs(total)
        if epochs is None:
            logger.info("Method %s: nothing is regularised.", part.name)
        elif epochs:  # if there are none, the trainer warns
            logger.info("Method %s will regularise %s.", part.name, _listed(epochs, total))
    if run.method.evidence:
        logger.info("Measured for %s: %s", run.method.name, run.method.evidence)


def _training(run: ResolvedRun) -> str:
    """Describe the training options, as given or as decided by the recipe."""
    config = run.config
    length = counted(config.epochs or 0, "epoch") if config.max_steps is None else counted(config.max_steps, "step")
    reads = ", on the mean over all tokens" if run.task.head.has_pooling and config.pooling == "mean" else ""
    head = "" if run.task.head.pretrained else " and the head"
    adapter = "" if config.adapter is None else f", of a LoRA adapter of rank {config.adapter.r}{head}"
    return (
        f"Training: {length} of batches of {config.batch_size}, learning rate {config.learning_rate:g}{reads}{adapter}."
    )


def _listed(epochs: list[int], total: int) -> str:
    """Format epochs, given from 0, counted from 1."""
    if len(epochs) == total:
        return f"all {total} epochs" if total > 1 else "the only epoch"
    names = [str(epoch + 1) for epoch in epochs]
    shown = names if len(names) <= 8 else [*names[:3], "...", names[-1]]
    return f"epoch{'s' if len(names) > 1 else ''} {', '.join(shown)} of {total}"


def announce_data(report: dict[str, Any], head: Head) -> None:
    """Log the report on the data, and its warnings."""
    logger.info("%s", report_table(report, head))
    if report["skipped"]:
        logger.warning(
            "Skipped %s (%s); %s in the run's folder lists them.",
            counted(report["skipped"], "invalid row"),
            report["skipped_places"],
            SKIPPED,
        )
    for warning in report_warnings(report, head):
        logger.warning("%s", warning)


def announce_scores(scores: Mapping[str, SetScores], fit: Mapping[str, Any]) -> None:
    """Warn of a model that predicts one class for all rows of a set, or has not fitted its training rows."""
    for name, found in scores.items():
        if len(found.predicted) == 1 and sum(found.predicted.values()) >= found.rows > 1:
            answer = next(iter(found.predicted))
            logger.warning("The model predicts %r for all %d rows of %s.", answer, found.rows, name)
    if not fit["fitted"]:
        logger.warning(
            "Training %s %.2f: the model has not fitted its training rows; raise max-steps or learning-rate.",
            fit["metric"],
            fit["score"],
        )
