"""Using a model that a run left: scoring it on labelled data, and predicting."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from attendrop.errors import AttendropError
from attendrop.runs.folder import read_metrics, read_run
from attendrop.runs.models import load_model_and_tokenizer
from attendrop.runs.source import Source
from attendrop.runs.train import on_cpu, only_logits, silence
from attendrop.tasks import Task, TaskData, compute_scores, encode, get_task, load_files, load_task, write_predictions

PREDICTION_FILES = (".tsv", ".csv", ".jsonl")

logger = logging.getLogger(__name__)


def evaluate(run_dir: str, source: Source) -> dict[str, Any]:
    """Score a model on labelled data: the development set, if ``source`` names nothing else.

    Returns:
        ``model, task, source, split, rows, metric, score, all_scores``.

    Raises:
        AttendropError: There is no finished run, or the data cannot be read, has no labels or other classes.
    """
    model, tokenizer, options = _load_run(run_dir)
    data, split = _load_data(model, options, source, "dev")
    rows = data.splits[split]
    if "label" not in rows.column_names:
        raise AttendropError(f"The split '{split}' of {data.task.name} has no labels to score; use predict.")
    logits = _logits(model, tokenizer, options, data.task, rows, source)
    scores = compute_scores(data.task, logits, np.asarray(rows["label"]))
    return {
        "model": run_dir,
        "task": data.task.name,
        "source": data.source,
        "split": split,
        "rows": len(rows),
        "metric": data.task.metric,
        "score": scores[data.task.metric],
        "all_scores": scores,
    }


def predict(run_dir: str, source: Source, output: str) -> dict[str, Any]:
    """Write a prediction for every row: of the task's test split, if ``source`` names nothing else.

    Args:
        run_dir: The folder of a finished run.
        source: What to predict.
        output: A .tsv, .csv or .jsonl file; for GLUE tasks it gets the columns of a submission.

    Returns:
        ``model, task, source, split, rows, output``.

    Raises:
        AttendropError: As for :func:`evaluate`; or the output's extension is unknown.
    """
    target = Path(output)
    if target.suffix not in PREDICTION_FILES:
        raise AttendropError(f"Predictions are written as {', '.join(PREDICTION_FILES)}, not as '{target.name}'.")
    if source.file is not None and target.absolute() == Path(source.file).absolute():
        raise AttendropError(f"The output '{output}' is the file to predict on; name another.")
    model, tokenizer, options = _load_run(run_dir)
    data, split = _load_data(model, options, source, "test")
    rows = data.splits[split]
    write_predictions(target, data.task, rows, _logits(model, tokenizer, options, data.task, rows, source))
    found = {"model": run_dir, "task": data.task.name, "source": data.source, "split": split, "rows": len(rows)}
    return found | {"output": output}


def _load_run(run_dir: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """The model, its tokenizer, and the options of its run (none for a model that no run has made)."""
    folder = Path(run_dir)
    if not folder.is_dir():
        raise AttendropError(f"There is no run folder '{run_dir}'.")
    run = read_run(folder)
    if run is not None and read_metrics(folder) is None:
        raise AttendropError(f"The run in '{run_dir}' is not finished; `attendrop train` with --resume finishes it.")
    model, tokenizer = load_model_and_tokenizer(str(folder.absolute()), None)
    return model, tokenizer, run["config"] if run is not None else {}


def _load_data(model: PreTrainedModel, run: dict[str, Any], source: Source, split: str) -> tuple[TaskData, str]:
    task = source.task or (run.get("task") if source.file is None else None)
    names = _class_names(model)
    if task is not None:
        split = source.split or split
        _check_head(get_task(task), names)
        return load_task(task, data_dir=source.data_dir, splits=(split,)), split
    file = source.file or (run.get("eval_file") if split == "dev" else None)
    if file is None:
        raise AttendropError("Say what to use the model on: a task or a file.")
    columns = source.text_columns or tuple(run.get("text_columns", ()))
    if not columns:
        raise AttendropError(
            "Own files need text-columns: the name of the text's column, or two, with a comma between."
        )
    if split == "test":
        return load_files(predict_file=file, text_columns=columns, label_names=names), split
    label = source.label_column or run.get("label_column")
    return load_files(eval_file=file, text_columns=columns, label_column=label, label_names=names), split


def _class_names(model: PreTrainedModel) -> tuple[str, ...]:
    """The classes of a model in order; empty if it predicts a number."""
    names: dict[int, str] = model.config.id2label or {}  # type: ignore[assignment]  # json's keys become numbers again
    if model.config.problem_type == "regression" or len(names) == 1:
        return ()
    return tuple(names[number] for number in sorted(names))


def _check_head(task: Task, names: tuple[str, ...]) -> None:
    if len(task.label_names) != len(names):
        kind = f"{len(names)} classes" if names else "a number"
        wanted = f"{len(task.label_names)} classes" if task.label_names else "a number"
        raise AttendropError(f"The model predicts {kind}, the task {task.name} asks for {wanted}.")
    if task.label_names != names:
        logger.warning(
            "The model's classes are %s; they are taken, in this order, for those of %s: %s.",
            ", ".join(names),
            task.name,
            ", ".join(task.label_names),
        )


def _logits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    run: dict[str, Any],
    task: Task,
    rows: Dataset,
    source: Source,
) -> np.ndarray[Any, np.dtype[Any]]:
    length = source.max_length or run.get("max_length") or 128
    encoded = encode(rows, task, tokenizer, length)
    return predict_logits(model, tokenizer, encoded, source.batch_size, source.device)


def predict_logits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: Dataset, batch_size: int, device: str
) -> np.ndarray[Any, np.dtype[Any]]:
    """The logits of encoded rows, in their order."""
    with tempfile.TemporaryDirectory() as unused:
        arguments = TrainingArguments(
            output_dir=unused,
            per_device_eval_batch_size=batch_size,
            use_cpu=on_cpu(device),
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to="none",
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            preprocess_logits_for_metrics=only_logits,
        )
        silence(trainer)
        return np.asarray(trainer.predict(encoded).predictions)
