"""Count what a finished run's method drops, by replaying training steps on some rows without updates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.argument_checks import check_least
from attendrop.attention.adapter import ModelAdapter
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.model_support.batches import to_device
from attendrop.model_support.devices import compute_device
from attendrop.reports.attention_maps import assumed_targets
from attendrop.reports.drop_patterns import DropPatterns
from attendrop.reports.drops import DropMoment, Learnt, acting_in_attention, active_epochs, record_drops
from attendrop.reports.figures import run_title
from attendrop.reports.token_types import TokenTypes
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, encode_parts
from attendrop.runs.finished_run import FinishedRun, check_keeps_model, load_finished_run, load_run_model, read_finished
from attendrop.runs.prediction_passes import predict_outputs
from attendrop.tasks.custom_files import files_task, stream_file
from attendrop.tasks.file_formats import default_columns
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.registry import get_task
from attendrop.tasks.splits import subset
from attendrop.tasks.table import BadRows
from attendrop.tasks.tokenization import encode_columns
from attendrop.training.labelled_data import ColumnCollator
from attendrop.wording import counted

# Rows of a step that is repeated: small, so that there are many steps.
BATCH_SIZE = 8


@dataclass(frozen=True)
class RowSource:
    """Which rows to use, and how many.

    Attributes:
        file: A file of texts; None: the run's training rows, sampled by its seed.
        text_columns: Its text columns; none: those of the run.
        data_dir: Folder of the run's task, if it was moved.

    Raises:
        AttendropError: ``rows`` is less than 1.
    """

    rows: int = 128
    file: str | None = None
    text_columns: tuple[str, ...] = ()
    data_dir: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        check_least("rows", self.rows)


@dataclass(frozen=True)
class RecordedDrops:
    """What a run's method drops.

    Attributes:
        run: What was trained on what, for a title.
        method: The method of the run, or those methods of a composition that can drop positions of attention; None if
            there are none.
        windows: Number of encoded rows; where texts are read in windows, there are more than rows.
        source: Where the rows came from.
        acted: Whether the method was active in an epoch of the run.
    """

    run: str
    method: Method | None
    rows: int
    windows: int
    source: str
    patterns: DropPatterns
    acted: bool = True


def record_run_drops(
    run_dir: str, source: RowSource, on_batch: Callable[[int, int], None] | None = None
) -> RecordedDrops:
    """Replay training steps of a finished run's method on some rows, without updates.

    The model is the trained one, and the method has what it learnt. The steps are spread evenly over the run's planned
    steps, so that a schedule is seen over its whole course; each has eight rows and its own random numbers. If a method
    is active in some epochs only, the steps are in these; if the run trained again, the method is that of the second
    training. Before each step, ``on_batch`` is called with the number of steps done, and the number of all.

    Raises:
        AttendropError: There is no finished run, it kept no model, or a pruned one; its data changed or cannot be read.
    """
    run, metrics = read_finished(run_dir)
    config = RunConfig(**run["config"], output_dir=run_dir).filled(**(run.get("decided") or {}))
    config = config.filled(**metrics.get("trained_again", {}))  # the method and the options of the final training
    title = run_title(metrics)
    method, patterns = acting_in_attention(config.regularizer), DropPatterns()
    if method is None:
        return RecordedDrops(title, None, 0, 0, "", patterns)
    check_keeps_model(run_dir)
    if source.file is None:
        trained = load_finished_run(run_dir, data_dir=source.data_dir, device=source.device)
        model, tokenizer, columns = trained.model, trained.tokenizer, _training_columns(trained, source.rows)
    else:
        model, tokenizer = load_run_model(run_dir)
        columns = _file_columns(model, tokenizer, config, source, source.file)
    ModelAdapter(model)  # refuses a pruned model, of whose fast layers nothing can be dropped
    head = head_of_model(model.config)
    count, rows = len(set(head.row_numbers(columns))), _rows(model, tokenizer, method, columns)
    model.to(compute_device(source.device))  # type: ignore[arg-type]
    learnt, types = Learnt.of_run(Path(run_dir)), TokenTypes(tokenizer)
    collate = ColumnCollator(head.collator(tokenizer), tuple(method.columns))
    num_epochs = len(metrics.get("history", ()))
    epochs = active_epochs(method, max(2, num_epochs))
    steps, batches = max(1, int(metrics.get("planned_steps") or 1)), range(0, len(rows), BATCH_SIZE)
    for number, start in enumerate(batches if epochs else ()):
        if on_batch is not None:
            on_batch(number, len(batches))
        batch = to_device(collate(rows[start : start + BATCH_SIZE]), model.device)
        done = (number + 0.5) / len(batches)
        moment = DropMoment(config.seed + number, int(done * steps), steps, epochs[int(done * len(epochs))])
        patterns.add(record_drops(model, method, batch, moment, learnt=learnt, tokenizer=tokenizer), types)
    acted = bool(active_epochs(method, num_epochs))
    return RecordedDrops(title, method, count, len(rows), source.file or "training rows", patterns, acted)


def _rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Method, columns: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """List the encoded rows, with what the model and the method read."""
    accepted = {*inspect.signature(model.forward).parameters} & {*tokenizer.model_input_names}
    accepted |= {"labels", *method.columns}
    count = len(columns["labels"])
    return [{name: columns[name][i] for name in columns if name in accepted} for i in range(count)]


def _training_columns(run: FinishedRun, count: int) -> Mapping[str, Any]:
    """Encode some of the rows that a run was trained on, with the columns that its method reads."""
    trained = run.on_all_rows() if run.config.refit else run
    rows = subset(trained.parts.train, count, run.config.seed)
    encoded: Dataset = encode_parts(run.config, run.task, Parts(rows, None, {}), run.tokenizer).train
    return {name: encoded[name][:] for name in encoded.column_names}


def _file_columns(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: RunConfig, source: RowSource, file: str
) -> Mapping[str, Any]:
    """Encode the first rows of a file; what the model predicts is taken as their labels."""
    head = head_of_model(model.config)
    texts = source.text_columns or config.text_columns or default_columns(file)[0]
    if not texts:
        raise AttendropError("No text-columns are given for the file; give its column names, comma-separated.")
    trained_on = config.text_columns or (get_task(config.task).text_columns if config.task else texts)
    if len(head.inputs_of(len(texts))) != len(head.inputs_of(len(trained_on))):
        raise AttendropError(
            f"The run was trained on {counted(len(trained_on), 'text column')}, not on {len(texts)}; name as many."
        )
    chunks = stream_file(file, text_columns=texts, head=head, size=source.rows, bad=BadRows())
    chunk = next(chunks, None)
    if chunk is None:
        raise AttendropError(f"{file} has no valid row.")
    limit = head.length_limit(tokenizer, config.max_length, chunk.columns)
    task = files_task(texts, head).with_long_texts(config.long_texts)
    encoded = encode_columns(dict(chunk.columns), task, tokenizer, limit)
    outputs = predict_outputs(model, tokenizer, head, encoded, config.eval_batch_size, source.device)
    return {**encoded, "labels": assumed_targets(head, outputs, encoded, tokenizer)}
