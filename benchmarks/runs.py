"""Whole runs with the trainer."""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable

import torch
from datasets import Dataset
from measure import clock
from texts import collate
from transformers import BertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging
from workloads import BATCH_SIZE, Setting

from attendrop import ADDrop, FineTune, RegularizedTrainer

CROSS_TUNED = ADDrop(layers="all", cross_tuning=True)


def time_runs(
    setting: Setting,
    model: BertForSequenceClassification,
    rows: Dataset,
    *,
    rounds: int,
    seconds: float,
    method: ADDrop = CROSS_TUNED,
) -> dict[str, list[float]]:
    """Time runs of two epochs in turn: stock trainer, plain through the library, cross-tuned AD-DROP."""
    makers: dict[str, Callable[..., Trainer]] = {
        "stock": Trainer,
        "finetune": lambda **given: RegularizedTrainer(**given, regularizer=FineTune()),
        "ad-drop": lambda **given: RegularizedTrainer(**given, regularizer=method),
    }
    times: dict[str, list[float]] = {name: [] for name in makers}
    _run(setting, model, rows.select(range(BATCH_SIZE)), makers["ad-drop"])
    began = time.perf_counter()
    while len(times["stock"]) < rounds or (len(times["stock"]) < 15 and time.perf_counter() - began < seconds):
        for name in makers if len(times["stock"]) % 2 == 0 else reversed(makers):
            times[name].append(_run(setting, model, rows, makers[name]))
    return times


def _run(setting: Setting, model: BertForSequenceClassification, rows: Dataset, make: Callable[..., Trainer]) -> float:
    """Train for two epochs, each with an evaluation on an eighth of the rows; seconds. The order of rows is fixed."""
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=2,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            optim="adamw_torch",
            disable_tqdm=True,
            use_cpu=setting.device.type == "cpu",
            bf16=setting.dtype != torch.float32,
            train_sampling_strategy="sequential",
        )
        evaluated = rows.select(range(max(1, len(rows) // 8)))
        trainer = make(model=model, args=args, train_dataset=rows, eval_dataset=evaluated, data_collator=collate)
        began = clock()
        trainer.train()
        return clock() - began
