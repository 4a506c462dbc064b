"""Finished runs: their model and their rows, and one loop over rows that are evaluated or predicted in chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.pruning.selection import Array, Predictions
from attendrop.runs.config import RunConfig, Source, refuse_options_of_files
from attendrop.runs.data import divide, fingerprint, load_data
from attendrop.runs.model_loading import load_for
from attendrop.runs.prediction_passes import BaselineModel, load_baseline, predict_outputs, to_fastest_form
from attendrop.runs.resolved_run import ResolvedRun, resolve_run
from attendrop.runs.run_folder import (
    CHUNK_ROWS,
    check_finished,
    check_keeps_model,
    input_files,
    is_baseline,
    read_finished,
    read_metrics,
    read_run,
    run_options,
)
from attendrop.support.files import check_output
from attendrop.support.models import compute_device
from attendrop.tasks.base import Task, encode, encode_columns, task_type_of_model
from attendrop.tasks.custom_files import Chunk, files_task, stream_file
from attendrop.tasks.error_analysis import accepted_share, error_analysis, with_acceptance
from attendrop.tasks.metrics import compute_scores, group_scores, label_mapping, read_as, with_metric
from attendrop.tasks.prediction_files import PredictionWriter, output_format
from attendrop.tasks.registry import get_task, load_task, task_files
from attendrop.tasks.table import STDIN, BadRows, BadValue, files_of, sheet_of, skipped_places, write_skipped
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, columns_of, fit_tokenizer, unknown_rows
from attendrop.tasks.types.base import TaskType
from attendrop.wording import counted

# Called with the number of rows done, and the number of all rows (None if unknown).
OnProgress = Callable[[int, int | None], None]
logger = logging.getLogger(__name__)


# Loading -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunModel:
    """Loaded model with its head, and the options of its run; empty for a model that was not trained by a run.

    ``accept`` says which answers are accepted (:func:`attendrop.tasks.error_analysis.choose_threshold`); None if it is
    not known, because ``--accept`` was not asked for.
    """

    folder: str
    model: PreTrainedModel | BaselineModel
    tokenizer: PreTrainedTokenizerBase
    task_type: TaskType
    options: dict[str, Any]
    accept: dict[str, Any] | None = None

    def outputs(
        self,
        columns: dict[str, list[Any]],
        task: Task,
        source: Source,
        on_batch: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, list[Any]], Array]:
        """Encode rows as the run did, but for what the source says; return them with one output for each."""
        wanted = source.max_length or self.options.get("max_length") or DEFAULT_MAX_LENGTH
        limit = self.task_type.length_limit(self.tokenizer, wanted, columns)
        encoded = encode_columns(columns, task, self.tokenizer, limit)
        how: tuple[Any, ...] = (encoded, source.batch_size, source.device, on_batch)
        if not encoded["length"]:  # the head left all rows out
            return encoded, np.empty(0)
        if isinstance(self.model, BaselineModel):
            return encoded, self.model.outputs(columns, *how)
        return encoded, predict_outputs(self.model, self.tokenizer, self.task_type, *how)

    def predict_texts(self, texts: Iterable[Any], *, probabilities: bool = False) -> list[Any]:
        """Predict texts, see :meth:`attendrop.runs.load.TextPredictor.predict`."""
        if isinstance(texts, str):
            raise AttendropError(f"predict reads a list of texts, not the text {texts[:40]!r}; write [text].")
        if probabilities:
            self.task_type.check_probabilities()
        rows, reads = [text if isinstance(text, tuple) else (text,) for text in texts], self.task_type
        trained_on = len(self.text_columns()) or len(rows[0] if rows else ())
        names, read = reads.inputs_of(trained_on), list[Any]()
        begins = tuple(f"{name}: " for name in self.options.get("with_columns") or ())
        if begins and rows and not any(str(row[0]).startswith(begins) for row in rows if row):
            form = " | ".join(f"{begin}..." for begin in begins)
            logger.warning("The model was trained on texts that begin as '%s | ', and none of these does.", form)
        for number, row in enumerate(rows):
            if not reads.least_inputs <= len(row) <= reads.most_inputs or reads.inputs_of(len(row)) != names:
                given, wanted = counted(len(row), "text"), counted(trained_on, "text")
                raise AttendropError(f"Text {number} has {given}; the model reads {wanted} together, as a tuple.")
            try:
                read.append(reads.read_inputs(*row))
            except BadValue as problem:
                raise AttendropError(f"Text {number} cannot be predicted: {problem}.") from None
        task = files_task(names, reads).with_long_texts(self.options.get("long_texts"))
        found: list[dict[str, Any]] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            some = read[start : start + CHUNK_ROWS]
            columns = {name: list(values) for name, values in zip(names, zip(*some, strict=True), strict=True)}
            columns["index"] = list(range(start, start + len(some)))
            outputs = reads.checked(self.outputs(columns, task, Source())[1])
            answers = reads.prediction_rows(outputs, columns, probabilities=probabilities)
            found += with_acceptance(answers, outputs, self.accept)
        return found if probabilities else [row[reads.answer_column] for row in found]

    def text_columns(self) -> tuple[str, ...]:
        """Return the text columns that the model was trained on; empty if unknown."""
        task = self.options.get("task")
        return tuple(self.options.get("text_columns", ()) if task is None else get_task(task).text_columns)


def load_run(
    run_dir: str, task_options: Mapping[str, Any] = MappingProxyType({}), *, model: PreTrainedModel | None = None
) -> RunModel:
    """Load the model in a folder, on the CPU, or what else it needs if the ``model`` itself was loaded already.

    The folder is that of a finished run, also of a baseline, of a pruned model, or of one that no run has trained.
    ``task_options`` take the place of those of the run. Raises AttendropError if the run is not finished, or the model
    is not whole or has no trained head.
    """
    check_finished(run_dir)
    options, accept = run_options(run_dir), (read_metrics(Path(run_dir)) or {}).get("accept")
    task_options = {**options.get("task_options", {}), **task_options}
    if is_baseline(run_dir):
        baseline = load_baseline(Path(run_dir))
        task_type = baseline.task_type.with_options(task_options)
        return RunModel(run_dir, baseline, baseline.tokenizer, task_type, options, accept)
    if model is None:
        model, tokenizer = load_for(str(Path(run_dir).absolute()), None)[:2]
    elif model.base_model is model:
        raise AttendropError(f"The model in '{run_dir}' has no trained head: fine-tune it first.")
    else:
        tokenizer = task_type_of_model(model.config).load_tokenizer(run_dir)
        fit_tokenizer(run_dir, model, tokenizer)
    task_type = task_type_of_model(model.config).with_options(task_options)
    task_type.prepare(model, tokenizer)
    return RunModel(run_dir, model, tokenizer, task_type, options, accept)


@dataclass(frozen=True)
class FinishedRun(ResolvedRun):
    """Finished run with its model, on the CPU, and its rows; its data folder and device are the current ones."""

    metrics: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def chosen_on(self) -> str | None:
        """Name of the held-out set on which choices are made; None if there is none."""
        if self.parts.selection is not None and self.config.protocol != "paper" and not self.config.refit:
            return "selection"
        return "dev" if "dev" in self.parts.report else None

    @cached_property
    def sets(self) -> dict[str, Dataset]:
        """Return the encoded rows on which models are scored, by name."""
        held_out = {"selection": self.parts.selection} if self.chosen_on == "selection" else {}
        parts = {name: part for name, part in (held_out | self.parts.report).items() if part is not None}
        return {name: encode(part, self.task, self.tokenizer, self.config.max_length) for name, part in parts.items()}

    def outputs(
        self,
        name: str,
        model: PreTrainedModel | None = None,
        predict: Callable[[dict[str, Tensor]], Array] | None = None,
    ) -> Array:
        """Compute the outputs of the run's model for one of the sets, in its order, or of another model or program."""
        rows, task_type, config = self.sets[name].to_dict(), self.task.type, self.config
        how = rows, config.eval_batch_size, config.device
        return predict_outputs(model or self.model, self.tokenizer, task_type, *how, predict=predict)

    def predictions(self, name: str, outputs: Array) -> Predictions:
        """Make predictions for one of the sets from outputs, scored by the task's metric."""
        task_type, decisive = self.task.type, replace(self.task, other_metrics=())
        return Predictions(
            task_type.references(columns_of(self.sets[name])),
            outputs,
            lambda labels, outputs: compute_scores(decisive, outputs, labels)[decisive.metric],
            task_type.num_classes,
            task_type.metrics[self.task.metric].span,
        )


def load_finished_run(run_dir: str, *, data_dir: str | None = None, device: str = "auto") -> FinishedRun:
    """Load a run with its rows and model; raises AttendropError if it is not finished, or its data changed."""
    run, metrics = read_finished(run_dir)
    check_keeps_model(run_dir)
    changed = {"device": device} | ({"data_dir": data_dir} if data_dir is not None else {})
    resolved = _resolved(run_dir, run, "its selection split cannot be reproduced.", **changed)
    model, tokenizer = load_for(str(Path(run_dir).absolute()), None)[:2]
    return FinishedRun(resolved.config, resolved.given, resolved.data, resolved.parts, metrics, model, tokenizer)


def _resolved(run_dir: str, run: Mapping[str, Any], without: str, **changed: Any) -> ResolvedRun:
    """Load the rows of a run as it divided them; raises AttendropError, with the consequences, if they changed."""
    resolved = resolve_run(RunConfig(**(run["config"] | changed), output_dir=run_dir), run.get("decided"))
    if fingerprint(resolved.parts) != run["data_sha256"]:
        raise AttendropError(f"The data changed since the run in '{run_dir}': {without}")
    return resolved


# Evaluation and prediction -------------------------------------------------------------------------------------------


def evaluate(
    run_dir: str, source: Source, on_progress: OnProgress | None = None, *, report: bool = False
) -> dict[str, Any]:
    """Score a model on labelled data, by default on the run's evaluation data, or the rows that it held out.

    Returns:
        ``model, task, source, split, rows, skipped, metric, score, all_scores, predicted, unknown_labels`` (how often
        each occurs), and ``groups``: see :func:`attendrop.tasks.metrics.group_scores`. With ``report``, which keeps all
        rows in memory, also ``report``: see :func:`attendrop.tasks.error_analysis.error_analysis`.

    Raises:
        AttendropError: There is no finished run, or the data cannot be read, have no labels or other classes.
    """
    _check_outputs(run_dir, source)
    model = load_run(run_dir, source.task_options)
    rows = _open_rows(model, source, "dev")
    outputs, references, loaded = [], [], []
    groups: dict[str, list[str]] = {name: [] for name in rows.task.group_columns}
    for chunk, encoded, of_chunk in rows.outputs(model, source, on_progress, labelled=True):
        outputs.append(of_chunk)
        references.append(model.task_type.references(encoded))
        if report:
            loaded.append(Dataset.from_dict(dict(chunk.columns)))
        for name, values in groups.items():
            values += chunk.columns[name]
    trained, scored = (model.options.get("train_file") or "", source.file or "")
    same = sheet_of(trained) == sheet_of(scored)
    if source.file and same and {*map(Path.resolve, files_of(trained))} & {*map(Path.resolve, files_of(scored))}:
        logger.warning(
            "%s is the file that the model was trained on: the scores say how well it learnt these rows, not how well "
            "it does on new ones.",
            source.file,
        )
    every, labels, task_type = np.concatenate(outputs), np.concatenate(references), rows.task.type
    scores = compute_scores(rows.task, every, labels)
    predicted = (model.task_type if rows.reading is None else task_type).predicted_counts(every)
    if len(predicted) == 1 and sum(predicted.values()) >= len(labels) > 1:  # of several labels some rows have none
        logger.warning("The model predicts one class for all %d rows: %s.", len(labels), next(iter(predicted)))
    found = _described(model, rows) | {
        "metric": rows.task.metric,
        "score": scores[rows.task.metric],
        "all_scores": scores,
        "predicted": predicted,
        "unknown_labels": task_type.unknown_counts(labels),
        "groups": group_scores(rows.task, every, labels, groups),
    }
    if report:
        train = None
        try:
            if model.options:
                config = RunConfig(**model.options, output_dir=model.folder)
                train = divide(config, load_data(config)).train
        except (AttendropError, OSError):
            logger.warning("The training data cannot be read any more: errors are shown without their neighbours.")
        found["report"] = error_analysis(rows.task, every, labels, concatenate_datasets(loaded), train)
        if found["report"] is not None and model.accept is not None and rows.reading is None:
            evaluated = {*map(Path.resolve, files_of(model.options.get("eval_file") or ""))}
            chosen_here = source.task is None and (
                source.file is None or bool(evaluated & {*map(Path.resolve, files_of(source.file))})
            )
            found["report"]["accept"] = accepted_share(every, labels, model.accept) | {"chosen_here": chosen_here}
        if found["report"] is None:
            raise AttendropError(f"report analyses errors on classes and labels; omit it for {task_type.labels_are}.")
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
            standard output. If the run was asked which answers to ``accept``, tables have ``confidence`` and
            ``accepted``.
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
    _check_outputs(run_dir, source, *([] if output == STDIN else [output]))
    model = load_run(run_dir, source.task_options)
    rows = _open_rows(model, source, "test")
    with PredictionWriter(
        output, rows.task, format=format, probabilities=probabilities, keep_columns=keep_columns,
        escape_formulas=escape_formulas, bad=rows.bad, accept=model.accept if rows.reading is None else None,
    ) as writer:  # fmt: skip
        for chunk, _, outputs in rows.outputs(model, source, on_progress, labelled=False):
            writer.write(chunk.columns, outputs, chunk.table)
    return _described(model, rows) | {"output": output}


def _check_outputs(run_dir: str, source: Source, *outputs: str) -> None:
    """Refuse outputs that replace files of the run, its data or the source; and other files unless asked."""
    if source.skipped_file is not None:
        check_output(source.skipped_file, outputs, overwrite=True)
        outputs = (*outputs, source.skipped_file)
    if not outputs:
        return
    inputs = [*input_files(Path(run_dir)), *(() if source.file is None else files_of(source.file))]
    options = run_options(run_dir)
    task = source.task or (options.get("task") if source.file is None else None)
    if task is not None and Path(run_dir).is_dir():
        inputs += task_files(task, _data_dir(options, source, task))
    for output in outputs:
        check_output(output, inputs, overwrite=source.overwrite)


def _data_dir(options: Mapping[str, Any], source: Source, task: str) -> str | None:
    """Return the folder of a task's data: by default, for the task of the run, that of the run, if it still exists."""
    trained = options.get("data_dir") if options.get("task") == task else None
    return source.data_dir or (trained if trained and Path(trained).is_dir() else None)


@dataclass
class _Rows:
    """Rows in chunks, and what is known of them when they have been read.

    ``total`` is None if it is not known, ``reading`` if the model's classes are the task's (:func:`label_mapping`).
    """

    task: Task
    split: str
    place: str
    chunks: Iterator[Chunk]
    total: int | None = None
    bad: BadRows = field(default_factory=BadRows)
    reading: list[int] | None = None
    done: int = 0

    def outputs(
        self, model: RunModel, source: Source, on_progress: OnProgress | None, *, labelled: bool
    ) -> Iterator[tuple[Chunk, dict[str, list[Any]], Array]]:
        """Yield each chunk with its encoded rows and their outputs; then list the rows that were skipped.

        Raises:
            AttendropError: Rows have no labels, though they are to be ``labelled``, or none has a token that the model
                knows.
        """
        unknown = 0
        if not isinstance(model.model, BaselineModel):  # loaded for these rows alone
            device = compute_device(source.device)
            bf16 = bool(model.options.get("bf16")) and not labelled  # scores are those of the run, in full precision
            to_fastest_form(model.model, model.tokenizer, device, bf16=bf16)

        def count(rows: int) -> None:
            self.done += rows
            if on_progress is not None:
                on_progress(self.done, self.total)

        for chunk in self.chunks:
            if labelled and "label" not in chunk.columns:
                raise AttendropError(
                    f"The split '{self.split}' of {self.task.name} has no labels to score; use predict."
                )
            self.task = replace(self.task, unknown_names=chunk.unknown_names)
            columns, before = {**chunk.columns}, self.done
            if not labelled:
                columns.pop("label", None)
            encoded, outputs = model.outputs(columns, self.task, source, count)
            if not len(outputs):
                continue
            self.done = before + len(outputs)  # a row may be encoded as several
            unknown += unknown_rows(encoded, model.tokenizer)
            yield chunk, encoded, read_as(outputs, self.reading, self.task.num_labels)
        if unknown >= self.done:
            raise AttendropError(f"{self.place} has no row with a token that the model knows.")
        if unknown:  # as in large files
            told = "%d of %d rows have no token that the model knows: their predictions mean nothing."
            logger.warning(told, unknown, self.done)
        skipped, file = self.bad.skipped, source.skipped_file
        if skipped:
            if file is not None:
                write_skipped(file, skipped)
            listed = f"{file} lists them" if file else "add --skipped-file to list them with what is wrong"
            number, places = counted(len(skipped), "invalid row"), skipped_places(skipped)
            logger.warning("Skipped %s (%s); %s.", number, places, listed)
        elif file is not None:
            Path(file).unlink(missing_ok=True)  # that of an earlier call


def _described(model: RunModel, rows: _Rows) -> dict[str, Any]:
    """Return what results say of the rows."""
    found = {"model": model.folder, "task": rows.task.name, "source": rows.place, "split": rows.split}
    return found | {"rows": rows.done, "skipped": len(rows.bad.skipped)}


def _open_rows(model: RunModel, source: Source, split: str) -> _Rows:
    """Open the rows of a source, by default those of the run's task, evaluation file or held-out rows."""
    task = source.task or (model.options.get("task") if source.file is None else None)
    file = source.file or (model.options.get("eval_file") if split == "dev" and task is None else None)
    if task is not None:
        rows = _task_rows(model, source, task, source.split or split)
    elif file is not None:
        columns, label = source.columns_of(file, model.options, labelled=split == "dev")
        label_map = (source.label_map or model.options.get("label_map")) if label is not None else None
        if label_map is not None and not Path(label_map).is_file():
            raise AttendropError(f"There is no label map '{label_map}', with which labels are read; give --label-map.")
        unknown_labels = source.unknown_labels or model.options.get("unknown_labels")
        bad = BadRows(skip=source.skip_bad_rows, unknown_labels=unknown_labels)
        chunks = stream_file(
            file, text_columns=columns, task_type=model.task_type, label_column=label, label_map=label_map,
            with_columns=source.with_columns or model.options.get("with_columns"), size=CHUNK_ROWS, bad=bad,
            format=(source.input_format or "csv") if file == STDIN else None,
        )  # fmt: skip
        rows = _Rows(files_task(columns, model.task_type), split, file, chunks, bad=bad)
    elif split == "dev" and model.options:
        rows = _held_out_rows(model)
    else:
        option = "--eval-file" if split == "dev" else "--predict-file"
        raise AttendropError(f"No data are given; give {option}, or --task.")
    trained_on, columns = model.text_columns(), rows.task.text_columns
    if trained_on and model.task_type.inputs_of(len(columns)) != model.task_type.inputs_of(len(trained_on)):
        given, wanted = (
            f"{ {1: 'one text', 2: 'pairs of texts'}.get(len(names), f'{len(names)} texts') } ({', '.join(names)})"
            for names in (columns, trained_on)
        )
        raise AttendropError(
            f"The model in '{model.folder}' was trained on {wanted}, not on {given}; name "
            f"{counted(len(trained_on), 'text column')}."
        )
    rows.task = rows.task.with_long_texts(source.long_texts or model.options.get("long_texts"))
    if model.options.get("metric") is not None:
        rows.task = with_metric(rows.task, model.options["metric"])
    first = next(rows.chunks, None)
    if first is None:
        raise AttendropError(f"{rows.place} has no valid row: {len(rows.bad.skipped)} were skipped.")
    rows.chunks = chain([first], rows.chunks)
    return rows


def _held_out_rows(model: RunModel) -> _Rows:
    """Find the rows of its own file that a run was scored on, or that it held out to choose its epoch."""
    lost = "its held-out rows are no longer known; give --eval-file."
    own = _resolved(model.folder, read_run(Path(model.folder)) or {}, lost)
    split, rows = "dev", own.parts.report.get("dev")
    if rows is None and not own.config.refit:
        split, rows = "selection", own.parts.selection
    if rows is None:
        raise AttendropError(
            f"The run in '{model.folder}' was trained on all rows of its file; give others with --eval-file, or --task."
        )
    if split == "selection" and own.chooses_epoch:
        logger.warning("The epoch was chosen on these rows, so the scores are optimistic.")
    task = replace(own.task, options=model.task_type.options())
    return _Rows(task, split, own.data.source, (Chunk(columns) for columns in rows.iter(CHUNK_ROWS)), len(rows))


def _task_rows(model: RunModel, source: Source, name: str, split: str) -> _Rows:
    """Load a split of a named task, whose classes may be fewer than the model's, or named otherwise."""
    asked, task_type = get_task(name), model.task_type
    reading = label_mapping(asked, task_type)
    if reading is None and not task_type.fits(asked.type):
        raise AttendropError(
            f"The model predicts {task_type.predicts}, the task {name} asks for {asked.type.predicts}."
        )
    if reading is None and asked.label_names != task_type.label_names:
        logger.warning(
            "The model's classes are %s; in this order, they are read as those of %s: %s.",
            ", ".join(task_type.label_names), name, ", ".join(asked.label_names),
        )  # fmt: skip
    refuse_options_of_files(source, ["skip_bad_rows"])
    data = load_task(name, data_dir=_data_dir(model.options, source, name), splits=(split,))
    task, rows = replace(data.task, options=task_type.options()), data.splits[split]
    chunks = (Chunk(columns) for columns in rows.iter(CHUNK_ROWS))
    return _Rows(task, split, data.source, chunks, len(rows), reading=reading)
