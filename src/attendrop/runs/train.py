"""Training of one model on one task, from options to results, with one seed or several.

If rows are held out and are to be trained on in the end (``refit``), a run has two stages, which share data, options
and folder: a training without these rows, which chooses the number of steps (and the temperature of ``calibrate``), and
then one on all rows for as many steps, whose model is kept. ``run.json`` has what the first one found, so that a run
that is resumed goes on with the second.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedModel, TrainerCallback, set_seed

from attendrop.attention.adapter import find_attention_layers
from attendrop.errors import AttendropError
from attendrop.methods.core.registry import decided_by_data, flat_options
from attendrop.pruning.pruned_model import save_adapter
from attendrop.runs import data, run_folder, run_trainer
from attendrop.runs.config import AS_TRAINED, RUN_FILE, RunConfig, run_file
from attendrop.runs.data import Parts, ResolvedRun, cached, digest_of_model, resolve_run
from attendrop.runs.inference import over_rows
from attendrop.runs.model_card import CARD, model_card
from attendrop.runs.model_loading import Loaded, add_adapter, load_config, load_for
from attendrop.runs.run_folder import is_main_process, number_of_processes, read_run
from attendrop.support.files import disk_errors, lasting_name, write_json, write_text
from attendrop.support.models import compute_device, has_adapter, transformers_model
from attendrop.tasks import class_names, splits, table, tokenization
from attendrop.tasks.error_analysis import promise
from attendrop.tasks.metrics import PREDICTIONS, compute_scores, write_predictions
from attendrop.tasks.types.base import Array, TaskType
from attendrop.tasks.types.linear_models import LinearFit, self_trained
from attendrop.tasks.types.model_classes import pooling_of
from attendrop.tasks.types.modeling_mean_pooling import MeanPooling
from attendrop.training.checkpoints import last_checkpoint
from attendrop.wording import counted

# Scores of the runs of several seeds, beside their folders.
SUMMARY = "summary.json"
# Usual upper limits in fine-tuning; an option above its limit is named as the likely cause of a divergence.
_HIGHEST = {"learning_rate": 1e-3, "weight_decay": 1.0}
_ALSO = {"tensorboard": ("tensorboardX",)}  # that do for a package of ``report_to``
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

    ``resume`` continues from the newest complete checkpoint, or starts over without one; a finished run is kept, if its
    training rows and its model are the same. ``overwrite`` replaces the run in the folder, which is moved aside when
    this one is complete. ``callbacks`` are those of the trainer. ``keep_model=False`` keeps ``metrics.json`` and the
    options only. With ``checkpoint_seconds`` there is a checkpoint after this time, instead of after each epoch; if the
    epoch is chosen, there is one of the best epoch, too.

    Returns the content of ``metrics.json``. Raises AttendropError if the options, the data or the model are invalid.
    """
    if config.fp16 and compute_device(config.device).type == "cpu":
        raise AttendropError("fp16 needs a GPU, and there is none here, or device is 'cpu'; use bf16, or neither.")
    with run_folder.run_folder(config, resume=resume, overwrite=overwrite) as place:
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
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # the peak of this process, which may have trained others; Linux alone can reset it
        Path("/proc/self/clear_refs").write_text("5")
    package = config.report_to
    if package != "none" and not any(map(importlib.util.find_spec, (package, *_ALSO.get(package, ())))):
        raise AttendropError(f"report-to {package} needs the package {package}; run `pip install {package}`.")
    # Resolve the options, and load the data and the model.
    begun = (read_run(place) if resume else None) or {}
    run = resolve_run(config, begun.get("decided"))
    rows = data.fingerprint(run.parts)
    if begun:
        run_folder.check_unchanged(place, config, rows)
    if resume and (finished := run_folder.read_metrics(place)) is not None:
        logger.info("The run in %s is finished already; nothing is left to do.", config.output_dir)
        if is_main_process():  # which may have died before this
            run_folder.put_in_place(place, Path(config.output_dir))
        return finished
    loaded = load_model(run)
    encoded = data.encode_parts(run.config, run.task, run.parts, loaded.tokenizer)
    announce_run(run, len(encoded.train))
    # Of the rows that the model that is kept is trained on, those that are held out first among them.
    whole, encoded_whole = run, encoded
    if run.config.refit:
        whole = run.on_all_rows()
        encoded_whole = data.encode_parts(whole.config, run.task, whole.parts, loaded.tokenizer)
    rows_told = replace(whole.parts.real, selection=run.parts.selection)
    encoded_told = replace(encoded_whole.real, selection=encoded.selection)
    report = data.data_report(run.data, rows_told, encoded_told, loaded.tokenizer, config.max_length)
    if run.config.refit:
        del report["parts"]["selection"]["in_train"]
    logger.info("%s", data.report_table(report, run.task.type))
    of_names = whole.parts.train["label"][len(whole.parts.real.train) :]
    for warning in data.report_warnings(report, run.task.type, of_names):
        logger.warning("%s", warning)
    if not begun and is_main_process():
        run_folder.set_aside(place)
    found = {name: getattr(run.config, name) for name in (*data.DECIDED, "options")}
    begin = partial(run_folder.begin_run, place, config, rows, decided=found, processes=number_of_processes())
    fit_here = partial(fit, place=place, begin=begin, callbacks=callbacks, checkpoint_seconds=checkpoint_seconds)
    # Without the held-out rows, if they are to be trained on in the end.
    final, selected, seconds_before = run, begun.get("selected"), 0.0
    if run.config.refit and selected is None:
        trainer = fit_here(run, loaded, encoded, begun=begun, checkpoints=place / run_folder.SELECTION)
        selected, seconds_before = run_trainer.selection_report(run, trainer, encoded), trainer.meter.seconds_before
        if trainer.is_world_process_zero():
            run_folder.note_in_run(place, selected=selected)
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            shutil.rmtree(place / run_folder.SELECTION, ignore_errors=True)
        begun, loaded = {}, load_model(run)
    elif selected is not None:
        seconds_before = float(selected["seconds"])
    # The training whose model is kept.
    if selected is not None:
        final, encoded = replace(whole, config=whole.config.filled(max_steps=selected["planned_steps"])), encoded_whole
        trained_on, steps = final.parts.trained_on(config.label_names), counted(selected["steps"], "step")
        logger.info("Training again on all %s, for %s.", trained_on, steps)
    trainer = fit_here(final, loaded, encoded, begun=begun, stop_after=(selected or {}).get("steps"))
    temperature = None
    if config.calibrate:
        if selected is None:
            assert encoded.selection is not None
            temperature = run_trainer.held_out_temperature(run, trainer, encoded.selection)
        else:
            temperature = float(selected["temperature"])
        divide_logits(trainer.accelerator.unwrap_model(trainer.model), temperature)
        logger.info("Logits are divided by %.2f, a temperature fitted on held-out rows.", temperature)
    # Score it, and write the results.
    scores = run_trainer.score_model(final, trainer, encoded, selected)
    metrics = run_trainer.run_metrics(run, final, trainer, encoded, scores, selected)
    announce_scores(scores, metrics["train_fit"], metrics["training"]["head_init"])
    if config.accept is not None:
        logger.info("%s", promise(metrics["accept"]))
    metrics["data"]["report"] = report
    metrics["temperature"] = temperature
    metrics["total_seconds"] = round(time.monotonic() - began + seconds_before + trainer.meter.seconds_before, 3)
    if trainer.is_world_process_zero():
        with disk_errors(place):
            if keep_model:
                _save_model(trainer, run, metrics, place)
            if "dev" in scores and (predictions := scores["dev"]["predictions"]) is not None:
                write_predictions(place / PREDICTIONS, predictions)
            if config.shots is not None or config.max_train_samples is not None:
                write_json(place / run_folder.SAMPLED_ROWS, data.sampled_rows(run.parts))
            if run.data.skipped:
                table.write_skipped(place / data.SKIPPED, run.data.skipped)
            run_folder.finish_run(place, Path(config.output_dir), metrics)
    trainer.accelerator.wait_for_everyone()
    return metrics


def load_model(run: ResolvedRun) -> Loaded:
    """Load the model as each training of a run begins with it, and check that the method can act on it."""
    set_seed(run.config.seed)
    loaded = load_for(run.config.model, run.task, run.config.pooling)
    if run.method.info.uses_attention:
        run.method.selected_layers(find_attention_layers(loaded.model))
    return loaded


def fit(
    run: ResolvedRun,
    loaded: Loaded,
    encoded: data.Parts,
    place: Path,
    begin: Callable[[], None],
    *,
    begun: Mapping[str, Any],
    checkpoints: Path | None = None,
    stop_after: int | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    checkpoint_seconds: float | None = None,
) -> run_trainer.RunTrainer:
    """Train a model, or resume from its last checkpoint; return the trainer, which stores the head's start.

    After the first step, ``begin`` writes the record of the run in ``place``, if there is none. ``begun`` is that
    record if this training may have begun before, otherwise empty. ``checkpoints`` are in ``place`` by default, one
    after each epoch or ``checkpoint_seconds``. ``stop_after`` ends a longer schedule after this number of steps.
    """
    config, task, tokenizer, checkpoints = run.config, run.task, loaded.tokenizer, checkpoints or place
    checkpoint = last_checkpoint(checkpoints) if begun else None
    arguments = run_trainer.run_arguments(run, len(encoded.train), checkpoints, timed=checkpoint_seconds is not None)
    if checkpoint is not None:
        logger.info("Resuming from %s.", checkpoint)
        head_init = begun.get("head_init")
    else:
        if begun:
            logger.info("There is no complete checkpoint in %s: this training starts over.", checkpoints)
        run.method.prepare(loaded.model, config.seed)
        rows = run.parts.train
        groups = splits.given_groups(rows) if splits.GROUP in rows.column_names else None
        head_init = init_head(loaded, task.type, encoded, config, groups)
        if head_init is None and encoded.unlabelled is not None:
            logger.warning("The unlabelled texts are not used: the head does not start from a linear model.")
    if config.adapter is not None:
        loaded = loaded._replace(model=add_adapter(loaded.model, loaded.new, task.type, config.adapter))

    def note() -> None:
        if read_run(place) is None:
            begin()
        run_folder.note_in_run(place, head_init=head_init)

    begins = note if checkpoint is None and is_main_process() else None
    meter = run_trainer.RunCallback(config.save_steps, config.logging_steps, checkpoint_seconds, stop_after, begins)
    own: list[TrainerCallback] = [meter]
    if config.patience is not None and encoded.selection is not None:
        own.append(EarlyStoppingCallback(config.patience))

    def scores(found: EvalPrediction, rows: Mapping[str, Any]) -> dict[str, float]:
        refuse_diverged(config, found.predictions)
        outputs = task.type.row_outputs(np.asarray(found.predictions), rows, tokenizer)
        return compute_scores(task, outputs, task.type.references(rows))

    selection = {} if encoded.selection is None else tokenization.columns_of(encoded.selection)
    trainer = run_trainer.RunTrainer(
        loaded.model,
        arguments,
        regularizer=run.method,
        train_dataset=encoded.train,
        reward_dataset=encoded.reward,
        eval_dataset=encoded.selection,
        data_collator=task.type.collator(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: scores(found, selection),
        compute_reward_metrics=lambda found: scores(found, {"labels": found.label_ids}),
        compute_loss_func=None
        if config.class_weights is None
        else run_trainer.balanced_loss(encoded.train["labels"][:], task.type.num_classes),
        task_type=task.type,
        callbacks=[*own, *callbacks],
    )
    trainer.head_init, trainer.head_is_new, trainer.meter = head_init, bool(loaded.new), meter
    trainer.has_stopped = checkpoint is not None and run_trainer.has_stopped(config, checkpoint, stop_after)
    if config.max_steps == 0:
        note()
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    refuse_diverged(config, *(parameter.detach() for parameter in loaded.model.parameters()))
    return trainer


def refuse_diverged(config: RunConfig, *values: Any) -> None:
    """Raise AttendropError, with advice, if an array or a tensor has an entry that is NaN or infinite."""
    if all(bool(torch.as_tensor(value).isfinite().all()) for value in values):
        return
    absurd = {name: getattr(config, name) for name, most in _HIGHEST.items() if getattr(config, name) > most}
    of_method = flat_options(config.options).items()
    absurd |= {name: value for name, value in of_method if isinstance(value, float) and abs(value) > 100}
    named = " and ".join(f"{name.replace('_', '-')} is {value:g}" for name, value in absurd.items())
    half = ", or train without fp16" if config.fp16 else ""
    advice = f"Lower learning-rate, which is {config.learning_rate:g}{half}."
    advice = f"Much lower values are usual: {named}." if named else advice
    raise AttendropError(f"Training diverged: the model's numbers are NaN or infinite. {advice}")


def divide_logits(model: PreTrainedModel, temperature: float) -> None:
    """Divide the logits of a model by a temperature, in the weights of its last layer.

    So every program that loads the model, including stock transformers and ONNX files, computes the calibrated
    probabilities. The predicted classes do not change; above 1, the model becomes less confident. Raises AttendropError
    if the model has no linear layer with an output for each class at its end.

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


def _save_model(trainer: run_trainer.RunTrainer, run: ResolvedRun, metrics: dict[str, Any], files: Path) -> None:
    """Write the model of a finished run, or its adapter, its tokenizer and its card."""
    tokenizer: Any = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    inner = transformers_model(model)
    setattr(inner.config, AS_TRAINED, run.given.read_by(run.task.text_columns))
    stock = not isinstance(inner, MeanPooling)
    adapter = has_adapter(model) and stock and pooling_of(inner.config) == pooling_of(load_config(run.config.model))
    if adapter:
        save_adapter(model, files, lasting_name(run.config.model))
    else:  # transformers and PEFT would put an adapter on a class of their own, or read what the model did before
        whole = model.merge_and_unload() if has_adapter(model) else model
        whole.save_pretrained(files)
    tokenization.save_tokenizer(tokenizer, files)
    for name, tensors in {} if trainer.method_state is None else trainer.method_state.tensors().items():
        save_file(tensors, files / f"{name}.safetensors")
    write_text(files / CARD, model_card(metrics, run.task.type, stock=stock, adapter=adapter))


# The start of the head: linear probing (Kumar et al., 2022) ----------------------------------------------------------


class _NoProbe(Exception):
    """Reason why the head cannot start from a linear model."""


def init_head(
    loaded: Loaded, task_type: TaskType, encoded: Parts, config: RunConfig, groups: Sequence[Any] | None = None
) -> dict[str, Any] | None:
    """Fit a linear model to the features of the training rows, and initialise the model's last linear layer with it.

    Nothing is random, and the model's random state is not used: with the same rows, all methods start alike. ``groups``
    are those of the texts, see :meth:`TaskType.fit_linear`.

    Returns ``kind`` ("logistic regression"), its ``settings``, ``metric`` and ``train_score``, and with unlabelled
    texts ``unlabelled``, whether they are used (:func:`self_trained`); None if the head starts at random: by choice, or
    because it is not one new linear layer on trained features, an AttendropError unless ``head_init`` is "auto".
    """
    if config.head_init == "random":
        return None
    model, tokenizer, new = loaded
    balanced = config.class_weights is not None
    columns = encoded.train.to_dict()
    unlabelled = None if encoded.unlabelled is None else encoded.unlabelled.to_dict()

    def features_of(columns: dict[str, list[Any]]) -> Array:  # the inputs of the linear layer, (rows, features)
        seen: list[tuple[Tensor, Tensor]] = []

        def inputs_of(batch: dict[str, Tensor]) -> Array:
            seen.clear()
            logits = task_type.predict(model, batch)
            features, outputs = seen[-1] if seen else (torch.empty(0), torch.empty(0))
            if features.ndim != 2 or not np.array_equal(outputs.float().cpu().numpy(), logits):
                raise _NoProbe(f"{type(model).__name__} does more than one linear layer on one vector of a text")
            found: Array = features.float().cpu().numpy()
            return found

        with linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output))):
            found = over_rows(inputs_of, model, tokenizer, task_type, columns, config.eval_batch_size)
        return tokenization.document_means(found, columns)

    def fitted() -> tuple[LinearFit, dict[str, Any]]:
        features = features_of(columns)
        labels = tokenization.of_documents(columns["labels"], columns)  # a text has the mean output of its windows
        fit = task_type.fit_linear(features, labels, balanced=balanced, groups=groups)
        if fit is None:
            raise _NoProbe("the training rows do not determine a linear model")
        if unlabelled is None:
            return fit, {}
        names = [False] * (len(labels) - encoded.names) + [True] * encoded.names
        fit, decision = self_trained(
            fit, features, labels, features_of(unlabelled), never_held_out=names, balanced=balanced, groups=groups
        )
        return fit, {"unlabelled": decision}

    try:
        if not task_type.one_vector:
            raise _NoProbe(f"it needs one vector for the whole input, and the model predicts {task_type.predicts}")
        outputs = model.config.num_labels
        layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.out_features == outputs and f"{name}.weight" in new
        }
        if len(layers) != 1:
            raise _NoProbe(f"the model has {len(layers)} new linear layers with an output for each class, and not one")
        ((name, linear),) = layers.items()
        others = sorted(key for key in new if not key.startswith(f"{name}."))
        if config.head_init == "auto" and others:
            raise _NoProbe(f"its features pass through weights that are new, too ({others[0]})")
        if linear.bias is None:
            raise _NoProbe(f"its layer {name} has no bias")
        model.to(compute_device(config.device)).eval()  # type: ignore[arg-type]
        options = (config.eval_batch_size, str(model.device), task_type.kind, balanced, groups, encoded.names)
        fit, decision = cached(
            lambda: [digest_of_model(model, without=linear), columns, *options, unlabelled or {}],
            fitted,
            lambda found: found[0].weight.nbytes + found[0].bias.nbytes,
            kind="head start",
        )
    except _NoProbe as reason:
        if config.head_init == "linear-probe":
            raise AttendropError(f"head-init 'linear-probe' is not possible: {reason}; use 'random'.") from None
        return None
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(fit.weight))
        linear.bias.copy_(torch.from_numpy(fit.bias))
    metric, score = fit.score
    settings = ", ".join(f"{name} = {value:g}" for name, value in fit.settings.items())
    told = "The head starts from a %s on the frozen encoder (%s): %s %.2f on the training rows."
    logger.info(told, fit.kind, settings, metric, score)
    if decision:
        logger.info("%s", *class_names.unlabelled_decisions([("the head's start", decision["unlabelled"])]))
    return {"kind": fit.kind, "settings": fit.settings, "metric": metric, "train_score": score} | decision


# What a run logs before and after training ----------------------------------------------------------------------------


def announce_run(run: ResolvedRun, rows: int) -> None:
    """Log the data, of ``rows`` encoded training rows, and when the method acts; warn of optimistic scores."""
    config, parts = run.config, run.parts
    counts = [f"{parts.trained_on(config.label_names)} to train on"]
    if parts.selection is not None and config.protocol == "held-out":
        purpose = "choose the best epoch" if run.chooses_epoch else "score on"
        counts.append(f"{len(parts.selection)} more to {purpose}")
    if config.rewarded_on == "split" and parts.reward is not None:
        counts.append(f"{len(parts.reward)} more to reward the method on")
    counts += [f"{len(rows)} to report on ({name})" for name, rows in parts.report.items()]
    logger.info("Task %s, %s: %s.", run.task.name, run.data.source, ", ".join(counts))
    named = class_names.names_told(parts.names, parts.names_left_out, config.label_names)
    for told in (*named, *class_names.unlabelled_told(parts.unlabelled_numbers)):
        logger.info("%s", told)
    if positive := run.task.type.positive_class(run.task.metric):
        logger.info("%s is that of the class %r, the second of two.", run.task.metric, positive)
    if config.accept is not None:
        logger.info("The rows of dev, on which the model is not trained, say which answers to accept.")
    if config.protocol == "paper":
        logger.warning("Protocol 'paper': the best epoch is chosen on the reported set, so the score is optimistic.")
    if config.rewarded_on == "eval":
        logger.warning("The method scores models on dev during training, so the score on it is optimistic.")
    if not run.chooses_epoch:
        logger.info("Nothing is chosen: the last epoch is kept.")
    length = counted(config.epochs or 0, "epoch") if config.max_steps is None else counted(config.max_steps, "step")
    reads = ", on the mean over all tokens" if run.task.type.one_vector and config.pooling == "mean" else ""
    head = "" if run.task.type.generates else " and the head"
    adapter = "" if config.adapter is None else f", of a LoRA adapter of rank {config.adapter.r}{head}"
    rate = f"learning rate {config.learning_rate:g}"
    logger.info("Training: %s of batches of %d, %s%s%s.", length, config.batch_size, rate, reads, adapter)
    if decision := decided_by_data(run.method.name, run.given.options, run.method.options()):
        logger.info("The data have many classes with few rows each, so the method is %s.", decision)
    total = run_trainer.num_epochs(config, rows)
    for part in run.method.parts:
        epochs = part.regularized_epochs(total)
        if epochs is None:
            logger.info("Method %s: nothing is regularised.", part.name)
        elif epochs:  # if there are none, the trainer warns
            names = [str(epoch + 1) for epoch in epochs]
            shown = names if len(names) <= 8 else [*names[:3], "...", names[-1]]
            some = f"epoch{'s' if len(names) > 1 else ''} {', '.join(shown)} of {total}"
            every = f"all {total} epochs" if total > 1 else "the only epoch"
            logger.info("Method %s will regularise %s.", part.name, every if len(epochs) == total else some)
    if run.method.evidence:
        logger.info("Measured for %s: %s", run.method.name, run.method.evidence)


def announce_scores(
    scores: Mapping[str, Mapping[str, Any]], fit: Mapping[str, Any], head_init: str | None = None
) -> None:
    """Warn of a model that predicts one class for all rows of a set, or has not fitted its training rows."""
    for name, found in scores.items():
        if len(found["predicted"]) == 1 and sum(found["predicted"].values()) >= found["rows"] > 1:
            answer = next(iter(found["predicted"]))
            logger.warning("The model predicts %r for all %d rows of %s.", answer, found["rows"], name)
    if not fit["fitted"]:
        told = "Training %s %.2f: the model has not fitted its training rows; raise max-steps or learning-rate."
        if fit["metric"] == "r2" and fit["score"] < 0 and head_init == "random":  # worse than the mean
            told += " A head that starts at random does not reach numbers far from 0: divide them, or try pooling mean."
        logger.warning(told, fit["metric"], fit["score"])


# Several seeds --------------------------------------------------------------------------------------------------------


def train_seeds(
    config: RunConfig,
    seeds: Sequence[int],
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train with each seed in the folder ``seedN`` of ``config.output_dir``; returns the summary.

    Beside these folders are ``run.yaml``, which repeats all runs, once the first of them is finished, and
    ``summary.json`` once all are. Raises AttendropError as :func:`train` does, if possible before the first run starts,
    or if a seed is given twice.
    """
    if len(set(seeds)) < len(seeds):
        raise AttendropError(f"seed {next(seed for seed in seeds if seeds.count(seed) > 1)} is given twice.")
    folder, writes = Path(config.output_dir), is_main_process()
    configs = [replace(config, seed=seed, output_dir=str(folder / f"seed{seed}")) for seed in seeds]
    with run_folder.locked(folder) if writes else nullcontext():
        if writes:
            if read_run(folder) is not None:
                raise AttendropError(f"The output folder '{folder}' holds a run of one seed; name another folder.")
            summary = run_folder.read_json(folder / SUMMARY, {"seeds": list, "runs": list, "all_scores": dict})
            if summary is not None and not (resume or overwrite):
                raise AttendropError(f"'{folder}' holds a summary of runs already; --resume or --overwrite them.")
            for each in configs:
                run_folder.check_folder(Path(each.output_dir), each, resume=resume, overwrite=overwrite)
        found = []
        for number, each in enumerate(configs, start=1):
            logger.info("Run %d of %d: seed %d.", number, len(configs), each.seed)
            found.append(train(each, resume=resume, overwrite=overwrite, callbacks=callbacks))
            file, content = folder / RUN_FILE, run_file(config, seeds)
            if writes and number == 1:
                if file.exists() and file.read_text(encoding="utf-8") != content:
                    file.replace(run_folder.name_aside(file))
                write_text(file, content)
        summary = summarise(found)
        if writes:
            write_json(folder / SUMMARY, summary)
    return summary


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the scores of runs that differ in their seed, given the ``metrics.json`` of each."""

    def moments(values: list[float]) -> dict[str, Any]:
        std = statistics.stdev(values) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "std": std, "values": values}

    first = runs[0]
    scored, selected = first["all_scores"], first["selection_score"] is not None
    return {
        "seeds": [run["seed"] for run in runs],
        "n": len(runs),
        **{name: first[name] for name in ("task", "model", "method", "metric")},
        "selection_score": moments([run["selection_score"] for run in runs]) if selected else None,
        "all_scores": {
            part: {name: moments([run["all_scores"][part][name] for run in runs]) for name in scores}
            for part, scores in scored.items()
        },
        "baseline": {
            part: {
                "answer": found["answer"],  # of the first seed; its scores may be those of other rows
                "scores": {
                    name: statistics.fmean(run["baseline"][part]["scores"][name] for run in runs)
                    for name in found["scores"]
                },
            }
            for part, found in first["baseline"].items()
        },
        "runs": [run["output_dir"] for run in runs],
    }
