"""Runs: train one model on one task by the honest protocol, resume it, evaluate it, predict with it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState, PrinterCallback

from attendrop.attention import find_sites
from attendrop.checkpoints import last_checkpoint
from attendrop.errors import AttendropError
from attendrop.files import write_json
from attendrop.methods import Method
from attendrop.rows import to_device
from attendrop.runs.card import model_card
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, encode_parts, fingerprint, load_data
from attendrop.runs.folder import METRICS, check_folder, is_main_process, open_folder, read_metrics, read_run
from attendrop.runs.models import load_model_and_tokenizer
from attendrop.runs.results import run_metrics, score_report
from attendrop.tasks import TaskData, compute_scores
from attendrop.trainer import RegularizedTrainer

logger = logging.getLogger(__name__)


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
    data = load_data(config)
    parts = divide(config, data)
    set_seed(config.seed)
    model, tokenizer = load_model_and_tokenizer(config.model, data.task)
    _check_method(model, method)
    encoded = encode_parts(config, data, parts, tokenizer)
    _announce(config, method, data, parts)
    begun = resume and read_run(folder) is not None
    checkpoint = last_checkpoint(folder) if begun else None
    arguments = _arguments(config, data, parts, checkpoint)
    if is_main_process():
        open_folder(folder, config, fingerprint(parts), resume=resume)
    if checkpoint is not None:
        logger.info("Going on from %s.", checkpoint)
    elif begun:
        logger.info("There is no complete checkpoint in %s: the run starts over.", folder)
    trainer = _trainer(config, method, data, model, tokenizer, encoded, arguments, callbacks)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    meter = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, _Meter))
    scores = score_report(trainer, data.task, encoded)
    metrics = run_metrics(config, method, data, parts, trainer, scores, meter.seconds_so_far)
    metrics |= _conclude(trainer, encoded, folder)
    if trainer.is_world_process_zero():
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(metrics), encoding="utf-8")
        write_json(folder / METRICS, metrics)
    trainer.accelerator.wait_for_everyone()
    return metrics


# Training -------------------------------------------------------------------------------------------------------------


def _check_method(model: PreTrainedModel, method: Method) -> None:
    """Refuse, before training, a model that the method cannot act on, and layers that it does not have."""
    if not method.uses_attention:
        return
    method.chosen(find_sites(model))


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


def _announce_epochs(method: Method, total: int) -> None:
    epochs = method.regularized_epochs(total)
    if epochs is None:
        logger.info("Method %s: nothing is regularised.", method.name)
    elif epochs:
        logger.info("Method %s will regularise %s.", method.name, _listed(epochs, total))
    else:
        logger.warning(
            "Method %s would regularise none of the %d epoch(s): with cross-tuning it acts in epochs 2, 4, 6, ... "
            "Train for more epochs, or set cross_tuning=false.",
            method.name,
            total,
        )


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


def _arguments(config: RunConfig, data: TaskData, parts: Parts, checkpoint: Path | None) -> TrainingArguments:
    selecting = parts.selection is not None
    try:
        return TrainingArguments(
            output_dir=config.output_dir,
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
            report_to="none",
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
        reward_dataset=encoded.reward,
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


def _conclude(trainer: RegularizedTrainer, encoded: Parts, folder: Path) -> dict[str, Any]:
    """What the method has to tell of the finished run; it may leave files beside the model."""
    if trainer.session is None:
        return {}
    rows = encoded.train if encoded.selection is None else encoded.selection
    batches = (to_device(batch, trainer.args.device) for batch in trainer.get_eval_dataloader(rows))
    found = trainer.session.conclude(batches)
    if trainer.is_world_process_zero():
        for name, tensors in trainer.session.tensors().items():
            save_file(tensors, folder / f"{name}.safetensors")
    return found
