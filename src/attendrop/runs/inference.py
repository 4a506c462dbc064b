"""Evaluation and prediction with the model of a run, in chunks of rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.files.output_files import check_output
from attendrop.runs.baseline_models import BaselineModel, is_baseline, load_baseline
from attendrop.runs.config import RunConfig, refuse_options_of_files
from attendrop.runs.data import divide, fingerprint, load_data
from attendrop.runs.finished_run import check_finished
from attendrop.runs.model_loading import load_model_and_tokenizer
from attendrop.runs.model_source import CHUNK_ROWS, Source, file_columns, names_of_columns
from attendrop.runs.prediction_passes import predict_outputs
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_folder import hold_run_folders, input_files, read_run, run_options
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import Chunk, files_task, stream_file
from attendrop.tasks.error_analysis import error_analysis
from attendrop.tasks.heads.base import Array, Head
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.metrics import compute_scores, group_scores, read_as, reading_of, with_metric
from attendrop.tasks.prediction_files import PredictionWriter, output_format
from attendrop.tasks.registry import get_task, load_task, task_files
from attendrop.tasks.table import STDIN, BadRows, files_of, skipped_places, write_skipped
from attendrop.tasks.tokenization import encode_columns
from attendrop.tasks.tokenizers import DEFAULT_MAX_LENGTH
from attendrop.wording import counted

# Called with the number of rows done, and the number of all rows (None if unknown).
OnProgress = Callable[[int, int | None], None]
logger = logging.getLogger(__name__)


def evaluate(
    run_dir: str, source: Source, on_progress: OnProgress | None = None, *, report: bool = False
) -> dict[str, Any]:
    """Score a model on labelled data, by default on the run's evaluation data, or the rows that it held out.

    Args:
        run_dir: The folder of a finished run.
        source: The data to score on.
        on_progress: Called after each batch.
        report: Also say what the model gets wrong; keeps all rows in memory.

    Returns:
        ``model, task, source, split, rows, skipped, metric, score, all_scores, predicted, unknown_labels`` (how often
        each occurs), and ``groups``: by column and value, the ``rows`` and the metric of the groups that the task has,
        see :func:`attendrop.tasks.metrics.group_scores`; with ``report``, ``report``: see
        :func:`attendrop.tasks.error_analysis.error_analysis`, with neighbours among the training rows if their files
        are still there.

    Raises:
        AttendropError: There is no finished run, or the data cannot be read, have no labels or other classes.
    """
    with _outputs(run_dir, source, []):
        model = open_model(run_dir, source.task_options)
        rows = _open_rows(model, source, "dev", on_progress)
        outputs, references, loaded = [], [], []
        groups: dict[str, list[str]] = {name: [] for name in rows.task.group_columns}
        for chunk in rows.chunks:
            rows.task = replace(rows.task, unknown_names=chunk.unknown_names)
            encoded = model.encode(chunk.columns, rows.task, source.max_length)
            if "labels" not in encoded:
                raise AttendropError(
                    f"The split '{rows.split}' of {rows.task.name} has no labels to score; use predict."
                )
            if not encoded["length"]:
                continue  # the head left all rows out
            outputs.append(rows.outputs(chunk, encoded))
            references.append(model.head.references(encoded))
            if report:
                loaded.append(Dataset.from_dict(dict(chunk.columns)))
            for name, values in groups.items():
                values += chunk.columns[name]
        rows.check_known()
        rows.write_skipped()
        _warn_of_training_rows(model, source)
        every, labels, head = np.concatenate(outputs), np.concatenate(references), rows.task.head
        scores = compute_scores(rows.task, every, labels)
        predicted = (model.head if rows.reading is None else head).predicted_counts(every)
        if len(predicted) == 1 and sum(predicted.values()) >= len(labels) > 1:  # of several labels some rows have none
            logger.warning("The model predicts one class for all %d rows: %s.", len(labels), next(iter(predicted)))
        analysis = {"report": _report(model, rows.task, every, labels, loaded)} if report else {}
        return rows.found() | {
            "metric": rows.task.metric,
            "score": scores[rows.task.metric],
            "all_scores": scores,
            "predicted": predicted,
            "unknown_labels": head.unknown_counts(labels),
            "groups": group_scores(rows.task, every, labels, groups),
            **analysis,
        }


def _warn_of_training_rows(model: RunModel, source: Source) -> None:
    given, trained = source.file, model.options.get("train_file")
    if given and trained and {*map(Path.resolve, files_of(given))} & {*map(Path.resolve, files_of(trained))}:
        logger.warning(
            "%s is the file that the model was trained on: the scores say how well it learnt these rows, not how well "
            "it does on new ones.",
            given,
        )


def _report(model: RunModel, task: Task, outputs: Array, labels: Array, loaded: list[Dataset]) -> dict[str, Any]:
    train = None
    if model.options:
        try:
            config = RunConfig(**model.options, output_dir=model.folder)
            train = divide(config, load_data(config)).train
        except (AttendropError, OSError):
            logger.warning("The training data cannot be read any more: errors are shown without their neighbours.")
    found = error_analysis(task, outputs, labels, concatenate_datasets(loaded), train)
    if found is None:
        raise AttendropError(f"report analyses errors on classes and labels; omit it for {task.head.labels_are}.")
    return found


def predict(
    run_dir: str,
    source: Source,
    output: str,
    *,
    format: str | None = None,
    probabilities: bool = False,
    keep_columns: bool = False,
    escape_formulas: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Write a prediction for every row, by default of the task's test split; an empty one for a skipped row.

    Args:
        run_dir: The folder of a finished run.
        source: The data to predict.
        output: A .tsv, .csv, .jsonl or .conll file; for GLUE tasks it gets the columns of a submission. ``"-"``:
            standard output.
        format: ``"csv"``, ``"tsv"``, ``"jsonl"`` or ``"conll"``, if the extension does not say it.
        probabilities: Write the probabilities of all classes.
        keep_columns: Also write the columns of the input file.
        escape_formulas: Write an apostrophe before cells that spreadsheets would compute.
        on_progress: Called after each batch.

    Returns:
        ``model, task, source, split, rows, skipped, output``.

    Raises:
        AttendropError: As for :func:`evaluate`; or the output's extension is unknown.
    """
    format = output_format(output, format)
    with _outputs(run_dir, source, [] if output == STDIN else [output]):
        model = open_model(run_dir, source.task_options)
        rows = _open_rows(model, source, "test", on_progress)
        with PredictionWriter(
            output, rows.task, format=format, probabilities=probabilities, keep_columns=keep_columns,
            escape_formulas=escape_formulas, bad=rows.bad,
        ) as writer:  # fmt: skip
            for chunk in rows.chunks:
                columns = {name: values for name, values in chunk.columns.items() if name != "label"}
                encoded = model.encode(columns, rows.task, source.max_length)
                writer.write(chunk.columns, rows.outputs(chunk, encoded), chunk.table)
            rows.check_known()
            writer.write_left_out()
        rows.write_skipped()
        return rows.found() | {"output": output}


@contextmanager
def _outputs(run_dir: str, source: Source, outputs: list[str]) -> Iterator[None]:
    """Check that outputs replace no inputs, and other files only on request; lock runs that are written to."""
    if source.skipped_file is not None:
        check_output(source.skipped_file, outputs, overwrite=True)
        outputs = [*outputs, source.skipped_file]
    inputs = _inputs(Path(run_dir), source) if outputs else []
    for output in outputs:
        check_output(output, inputs, overwrite=source.overwrite)
    with hold_run_folders(outputs):
        yield


def _inputs(folder: Path, source: Source) -> list[str | Path]:
    """List the files of the run, its data files, and the files with the rows to predict."""
    files: list[str | Path] = [] if source.file is None else list(files_of(source.file))
    if not folder.is_dir():
        return files
    options = run_options(folder)
    task = source.task or (options.get("task") if source.file is None else None)
    of_task = [] if task is None else task_files(task, _data_dir(options, source, task))
    return [*input_files(folder), *files, *of_task]


def _data_dir(options: Mapping[str, Any], source: Source, task: str) -> str | None:
    """Return the folder of a task's data: by default, for the task of the run, that of the run, if it still exists."""
    trained = options.get("data_dir") if options.get("task") == task else None
    return source.data_dir or (trained if trained and Path(trained).is_dir() else None)


@dataclass(frozen=True)
class RunModel:
    """Loaded model with its head, and the options of its run; empty for a model that was not trained by a run."""

    folder: str
    model: PreTrainedModel | BaselineModel
    tokenizer: PreTrainedTokenizerBase
    head: Head
    options: dict[str, Any]

    def encode(self, columns: dict[str, list[Any]], task: Task, max_length: int | None) -> dict[str, list[Any]]:
        wanted = max_length or self.options.get("max_length") or DEFAULT_MAX_LENGTH
        limit = self.head.length_limit(self.tokenizer, wanted, columns)
        return encode_columns(columns, task, self.tokenizer, limit)

    def outputs(
        self,
        columns: Mapping[str, list[Any]],
        encoded: dict[str, list[Any]],
        source: Source,
        on_batch: Callable[[int], None] | None = None,
    ) -> Array:
        """Compute one output for each row, in batches and on the device of a source."""
        how: tuple[Any, ...] = (encoded, source.batch_size, source.device, on_batch)
        if isinstance(self.model, BaselineModel):
            return self.model.outputs(columns, *how)
        return predict_outputs(self.model, self.tokenizer, self.head, *how)

    def predict_texts(self, texts: Iterable[Any], *, probabilities: bool = False) -> list[Any]:
        """Predict texts, see :meth:`attendrop.runs.load.TextPredictor.predict`."""
        if isinstance(texts, str):
            raise AttendropError(f"predict reads a list of texts, not the text {texts[:40]!r}; write [text].")
        if probabilities:
            self.head.check_probabilities()
        rows = [text if isinstance(text, tuple) else (text,) for text in texts]
        trained_on = len(self.text_columns()) or len(rows[0] if rows else ())
        names, least, most = self.head.inputs_of(trained_on), self.head.least_inputs, self.head.most_inputs
        for number, row in enumerate(rows):
            if not least <= len(row) <= most or self.head.inputs_of(len(row)) != names:
                given, wanted = counted(len(row), "text"), counted(trained_on, "text")
                raise AttendropError(f"Text {number} has {given}; the model reads {wanted} together, as a tuple.")
            problems = (self.head.text_problem(text, column) for column, text in enumerate(row))
            problem = next(filter(None, problems), None) or self.head.texts_problem(row)
            if problem is not None:
                raise AttendropError(f"Text {number} cannot be predicted: {problem}.")
        task = files_task(names, self.head).with_long_texts(self.options.get("long_texts"))
        found: list[dict[str, Any]] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            read = [self.head.read_texts(row) for row in rows[start : start + CHUNK_ROWS]]
            columns = {name: list(values) for name, values in zip(names, zip(*read, strict=True), strict=True)}
            columns["index"] = list(range(start, start + len(read)))
            outputs = self.head.checked(self.outputs(columns, self.encode(columns, task, None), Source()))
            found += self.head.prediction_rows(outputs, probabilities=probabilities)
        return found if probabilities else [row[self.head.answer_column] for row in found]

    def text_columns(self) -> tuple[str, ...]:
        """Return the text columns that the model was trained on; empty if unknown."""
        task = self.options.get("task")
        return tuple(self.options.get("text_columns", ()) if task is None else get_task(task).text_columns)


def open_model(
    run_dir: str, task_options: Mapping[str, Any] = MappingProxyType({}), *, model: PreTrainedModel | None = None
) -> RunModel:
    """Load what a folder holds, or the rest of it beside a ``model`` that was loaded from it."""
    check_finished(run_dir)
    folder = Path(run_dir)
    options = run_options(folder)
    task_options = {**options.get("task_options", {}), **task_options}
    if is_baseline(folder):
        baseline = load_baseline(folder)
        return RunModel(run_dir, baseline, baseline.tokenizer, baseline.head.with_options(task_options), options)
    if model is None:
        model, tokenizer = load_model_and_tokenizer(str(folder.absolute()), None)
    elif model.base_model is model:
        raise AttendropError(f"The model in '{run_dir}' has no trained head: fine-tune it first.")
    else:
        tokenizer = head_of_model(model.config).load_tokenizer(run_dir)
        head_of_model(model.config).fit_tokenizer(run_dir, model, tokenizer)
    head = head_of_model(model.config).with_options(task_options)
    head.prepare(model, tokenizer)
    return RunModel(run_dir, model, tokenizer, head, options)


@dataclass
class _Rows:
    """Rows in chunks, counted while they are read: of those ``done``, ``unknown`` have no known token.

    ``total`` is None if it is not known, ``reading`` if the model's classes are the task's (:func:`reading_of`).
    """

    model: RunModel
    source: Source
    task: Task
    split: str
    place: str
    chunks: Iterator[Chunk]
    total: int | None
    bad: BadRows
    done: int = 0
    unknown: int = 0
    reading: list[int] | None = None
    on_progress: OnProgress | None = None

    def found(self) -> dict[str, Any]:
        return {
            "model": self.model.folder,
            "task": self.task.name,
            "source": self.place,
            "split": self.split,
            "rows": self.done,
            "skipped": len(self.bad.skipped),
        }

    def outputs(self, chunk: Chunk, encoded: dict[str, list[Any]]) -> Array:
        """Compute the outputs of the model for a chunk, and count its rows."""
        model, before = self.model, self.done

        def count(done: int) -> None:
            self.done += done
            if self.on_progress is not None:
                self.on_progress(self.done, self.total)

        found = model.outputs(chunk.columns, encoded, self.source, count)
        self.done = before + len(found)  # a row may be encoded as several
        self.unknown += model.head.unknown_rows(encoded, model.tokenizer)
        return read_as(found, self.reading, self.task.num_labels)

    def check_known(self) -> None:
        """Refuse rows if none has a token that the model knows; warn if only some lack one, as large files may."""
        if self.unknown >= self.done:
            raise AttendropError(f"{self.place} has no row with a token that the model knows.")
        if self.unknown:
            logger.warning(
                "%d of %d rows have no token that the model knows: their predictions mean nothing.",
                self.unknown,
                self.done,
            )

    def write_skipped(self) -> None:
        """List the skipped rows in the file for them; without any, delete that of an earlier call."""
        listed, file = "add --skipped-file to list them with what is wrong", self.source.skipped_file
        if not self.bad.skipped:
            if file is not None:
                Path(file).unlink(missing_ok=True)
            return
        if file is not None:
            write_skipped(file, self.bad.skipped)
            listed = f"{file} lists them"
        count, places = counted(len(self.bad.skipped), "invalid row"), skipped_places(self.bad.skipped)
        logger.warning("Skipped %s (%s); %s.", count, places, listed)


def _open_rows(model: RunModel, source: Source, split: str, on_progress: OnProgress | None) -> _Rows:
    task = source.task or (model.options.get("task") if source.file is None else None)
    file = source.file or (model.options.get("eval_file") if split == "dev" and task is None else None)
    if task is not None:
        rows = _task_rows(model, source, task, source.split or split)
    elif file is not None:
        rows = _file_rows(model, source, file, split)
    elif split == "dev" and model.options:
        rows = _held_out_rows(model, source)
    else:
        option = "--eval-file" if split == "dev" else "--predict-file"
        raise AttendropError(f"No data are given; give {option}, or --task.")
    rows.on_progress = on_progress
    _check_texts(model, rows.task.text_columns)
    rows.task = rows.task.with_long_texts(source.long_texts or model.options.get("long_texts"))
    if model.options.get("metric") is not None:
        rows.task = with_metric(rows.task, model.options["metric"])
    first = next(rows.chunks, None)
    if first is None:
        raise AttendropError(f"{rows.place} has no valid row: {len(rows.bad.skipped)} were skipped.")
    rows.chunks = chain([first], rows.chunks)
    return rows


def _held_out_rows(model: RunModel, source: Source) -> _Rows:
    """Find the rows of its own file that a run was scored on, or that it held out to choose its epoch."""
    run = read_run(Path(model.folder)) or {}
    own = resolve_run(RunConfig(**run["config"], output_dir=model.folder), run.get("decided"))
    if fingerprint(own.parts) != run["data_sha256"]:
        raise AttendropError(
            f"The data changed since the run in '{model.folder}', and its held-out rows are no longer known; give "
            "--eval-file."
        )
    split, rows = "dev", own.parts.report.get("dev")
    if rows is None and not own.config.refit:
        split, rows = "selection", own.parts.selection
    if rows is None:
        raise AttendropError(
            f"The run in '{model.folder}' was trained on all rows of its file; give others with --eval-file, or --task."
        )
    if split == "selection" and own.chooses_epoch:
        logger.warning("The epoch was chosen on these rows, so the scores are optimistic.")
    task = replace(own.task, options=model.head.options())
    chunks = (Chunk(columns) for columns in rows.iter(CHUNK_ROWS))
    return _Rows(model, source, task, split, own.data.source, chunks, len(rows), BadRows())


def _task_rows(model: RunModel, source: Source, name: str, split: str) -> _Rows:
    reading = reading_of(get_task(name), model.head)
    if reading is None:
        _check_head(get_task(name), model.head)
    refuse_options_of_files(source, ["skip_bad_rows"])
    data = load_task(name, data_dir=_data_dir(model.options, source, name), splits=(split,))
    task, dataset = replace(data.task, options=model.head.options()), data.splits[split]
    chunks = (Chunk(columns) for columns in dataset.iter(CHUNK_ROWS))
    return _Rows(model, source, task, split, data.source, chunks, len(dataset), BadRows(), reading=reading)


def _file_rows(model: RunModel, source: Source, file: str, split: str) -> _Rows:
    columns, label = file_columns(source, file, model.options, split)
    if split == "dev" and label is None:
        raise AttendropError(f"No label-column is given; give one{names_of_columns(file)}.")
    label_map = (source.label_map or model.options.get("label_map")) if label is not None else None
    if label_map is not None and not Path(label_map).is_file():
        raise AttendropError(f"There is no label map '{label_map}', with which labels are read; give --label-map.")
    unknown_labels = source.unknown_labels or model.options.get("unknown_labels")
    bad = BadRows(skip=source.skip_bad_rows, unknown_labels=unknown_labels)
    chunks = stream_file(
        file,
        text_columns=columns,
        head=model.head,
        label_column=label,
        label_map=label_map,
        size=CHUNK_ROWS,
        bad=bad,
        format=(source.input_format or "csv") if file == STDIN else None,
    )
    return _Rows(model, source, files_task(columns, model.head), split, file, chunks, None, bad)


def _check_texts(model: RunModel, columns: tuple[str, ...]) -> None:
    """Refuse another number of texts than in training, because predictions would be meaningless."""
    trained_on = model.text_columns()
    if trained_on and model.head.inputs_of(len(columns)) != model.head.inputs_of(len(trained_on)):
        given, wanted = (
            f"{ {1: 'one text', 2: 'pairs of texts'}.get(len(names), f'{len(names)} texts') } ({', '.join(names)})"
            for names in (columns, trained_on)
        )
        raise AttendropError(
            f"The model in '{model.folder}' was trained on {wanted}, not on {given}; name "
            f"{counted(len(trained_on), 'text column')}."
        )


def _check_head(task: Task, head: Head) -> None:
    if not head.fits(task.head):
        raise AttendropError(f"The model predicts {head.predicts}, the task {task.name} asks for {task.head.predicts}.")
    if task.label_names != head.label_names:
        logger.warning(
            "The model's classes are %s; in this order, they are read as those of %s: %s.",
            ", ".join(head.label_names),
            task.name,
            ", ".join(task.label_names),
        )
