"""Finished runs: their model and their rows, and one loop over rows that are evaluated or predicted in chunks.

Rows pass a model in batches of similar length. Baselines are models without fine-tuning: a linear model on TF-IDF or on
a frozen encoder, or a constant prediction. Their folders are those of runs, with ``baseline.json`` (the head with its
classes, and the vocabularies) and ``baseline.safetensors`` (the linear model) instead of a model of transformers, which
refuses such a folder.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor
from torch.nn import functional
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attendrop.attention.hooks import evaluating
from attendrop.errors import AttendropError
from attendrop.pruning.packed import PackedLayer, family_of, has_fast_form, pack_layers
from attendrop.pruning.selection import Predictions
from attendrop.randomness.device_path import on_cpu
from attendrop.runs import run_folder
from attendrop.runs.config import AS_TRAINED, READ_BY, RunConfig, Source, checked, refuse_options_of_files
from attendrop.runs.data import ResolvedRun, fingerprint, resolve_run
from attendrop.runs.model_loading import load_errors, load_for
from attendrop.runs.run_folder import CHUNK_ROWS
from attendrop.support.files import BASELINE_CONFIG, check_output, write_json
from attendrop.support.models import compute_device
from attendrop.tasks import metrics, table, tokenization
from attendrop.tasks.base import Task, encode, encode_columns, task_type_of_model, truncated_rows
from attendrop.tasks.custom_files import Chunk, files_task, stream_file
from attendrop.tasks.error_analysis import accepted_share, error_analysis, with_acceptance
from attendrop.tasks.prediction_files import PredictionWriter, output_format
from attendrop.tasks.registry import get_task, load_task, task_files
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, HEAD
from attendrop.tasks.types.base import Array, TaskType, row_array
from attendrop.tasks.types.model_classes import FIRST_TOKEN, MODELING_FILE
from attendrop.wording import counted

_SECONDS_BETWEEN_LINES = 10.0  # of progress
_WEIGHTS = "baseline.safetensors"
_UNKNOWN = "%d of %d rows have no token that the model knows: their predictions mean nothing."
_CUT = "%d of %d rows have more tokens than are read (max-length): the rest of their text does not count."
# Terms of TF-IDF: words and pairs of words; 2 to 5 characters within words.
_TERMS: tuple[dict[str, Any], ...] = (
    {"token_pattern": r"\w+", "ngram_range": (1, 2)},
    {"analyzer": "char_wb", "ngram_range": (2, 5)},
)
# A fast tokenizer keeps whether and where it truncates: another thread must not set it in between.
_TOKENIZING = threading.Lock()
logger = logging.getLogger(__name__)


# Passes over rows -----------------------------------------------------------------------------------------------------


def to_fastest_form(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device, *, bf16: bool
) -> None:
    """Convert a model to the form that predicts fastest on a device, in place; afterwards, it only predicts.

    Models with a fast form are converted, where a benchmark shows that it pays; others stay as they are.

    - Without padding, on a CPU, but for DeBERTa: 1.1 to 2.0 times as fast on rows grouped by length
      (benchmarks/NOTES.md). A GPU waits for kernels to be launched, of which leaving out padding needs more: 0.86 to
      0.97 (benchmarks/RESULTS_GPU.md).
    - In bfloat16, if the run was trained so (``bf16``) and the device has units for it: the same kernels on half the
      bytes. With AMX that is 2.7 to 3.9 times as fast; GPUs were not timed. Buffers, such as rotary frequencies, keep
      their dtype.
    """
    if not has_fast_form(model):
        return
    # Where bfloat16 is emulated, float32 is faster.
    has_units = device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))
    has_units |= device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if bf16 := bf16 and has_units:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    family, packed = family_of(model), any(isinstance(module, PackedLayer) for module in model.modules())
    readable = not family.pads_right or tokenizer.padding_side == "right"
    if unpadded := on_cpu(device) and readable and not packed and not family.relative_positions:
        pack_layers(model)
        model.train(mode=False)  # also the new layers
    if chosen := ["without padding"] * unpadded + ["in bfloat16, as in training"] * bf16:
        logger.info("Predicting %s.", ", ".join(chosen))


def predict_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
    *,
    predict: Callable[[dict[str, Tensor]], Array] | None = None,
) -> Array:
    """Compute a model's outputs for encoded rows, one per row of the data, such as logits ``(rows, classes)``.

    The model is moved to the device. ``predict`` computes the outputs of a batch in place of the model, such as an
    exported file.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    compute = predict or partial(task_type.predict, model)
    raw = over_rows(compute, model, tokenizer, task_type, encoded, batch_size)
    return task_type.row_outputs(raw, encoded, tokenizer)


def over_rows(
    compute: Callable[[dict[str, Tensor]], Array],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
) -> Array:
    """Compute something for batches of rows of similar length, the longest first, without gradients.

    So batches have little padding. The values are in the order of the rows.
    """
    accepted = inspect.signature(model.forward).parameters
    read = [*tokenizer.model_input_names, *(["labels"] if task_type.generates else [])]
    columns = {name: encoded[name] for name in read if name in encoded and name in accepted}
    order = np.argsort(-np.asarray(encoded["length"]), kind="stable")
    collate, found = task_type.collator(tokenizer), []
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = collate([{name: values[row] for name, values in columns.items()} for row in rows])
            found.append(compute({name: value.to(model.device) for name, value in batch.items()}))
    return task_type.concatenate(found)[np.argsort(order)]


def unit_vectors(hidden: Tensor, attention_mask: Tensor | None, *, first: bool = False) -> Tensor:
    """Average hidden states ``(batch, n, hidden)`` over the tokens of each row, and scale the mean to length 1.

    ``first``: take the first token of each row in place of the mean.
    """
    mask = hidden.new_ones(hidden.shape[:2]) if attention_mask is None else attention_mask
    if first:
        mask = (mask != 0) & (mask.cumsum(dim=1) == 1)
    mean = (hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return functional.normalize(mean, dim=-1)


def frozen_features(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
) -> Array:
    """Average the last hidden states of each row over its tokens, and scale the mean to length 1.

    Special tokens count; padding does not: the sentence embedding of Reimers and Gurevych (2019). If the files of the
    model say that it was trained so, the first token is read in its place (:data:`FIRST_TOKEN`). In a model with an
    encoder and a decoder, the encoder is read. Returns unit vectors ``(rows, hidden)`` in float32, in the order of the
    rows; zeros for a row without tokens. Raises AttendropError if the encoder has no vector for each token.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    encoder: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model

    def vectors(batch: dict[str, Tensor]) -> Array:
        hidden = encoder(**batch).last_hidden_state.float()
        if hidden.ndim != 3:
            raise AttendropError(f"{type(encoder).__name__} has no vectors of tokens or patches to average.")
        first = getattr(model.config, FIRST_TOKEN, False)
        units: Array = unit_vectors(hidden, batch.get("attention_mask"), first=first).cpu().numpy()
        return units

    return over_rows(vectors, encoder, tokenizer, task_type, encoded, batch_size)


# Baselines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaselineModel:
    """Model of a baseline: a linear model of features, or without ``weight`` one answer for all rows."""

    name: str
    task_type: TaskType
    tokenizer: PreTrainedTokenizerBase
    bias: Array  # ``(outputs,)``; without ``weight``, the output of a row, or of each word of a row, ``(1, outputs)``
    weight: Array | None = None  # ``(outputs, features)``
    vectorizers: Sequence[TfidfVectorizer] = ()  # TF-IDF of each text column, two for each; empty: of the encoder
    encoder: PreTrainedModel | None = None  # the frozen model, if it computes the features
    options: Mapping[str, Any] = field(default_factory=dict)  # by which it reads rows, of one that was loaded

    def outputs(
        self, columns: Mapping[str, list[Any]], encoded: Mapping[str, list[Any]], batch_size: int, device: str
    ) -> Array:
        """Compute one output for each row, as :func:`predict_outputs` does."""
        if self.weight is None:
            return self.constant(columns)
        if self.encoder is None:
            texts = Dataset.from_dict({name: columns[name] for name in self.task_type.inputs_in(columns)})
            return self.linear(tf_idf(self.vectorizers, self.task_type.texts(texts)))
        means = frozen_features(self.encoder, self.tokenizer, self.task_type, encoded, batch_size, device)
        return self.linear(tokenization.document_means(means, encoded))

    def linear(self, features: Array) -> Array:
        """Compute the outputs of the linear model, ``(rows, outputs)``."""
        assert self.weight is not None
        outputs: Array = features @ self.weight.T + self.bias
        return outputs

    def constant(self, columns: Mapping[str, Sequence[Any]]) -> Array:
        """Repeat the constant output for each row, or for each word of it; a row's choices may be fewer, or more."""
        inputs = columns[self.task_type.inputs[0]]
        if self.task_type.one_vector:
            return np.tile(self.bias, (len(inputs), 1))
        if self.bias.ndim == 2:
            return row_array([np.tile(self.bias, (len(row), 1)) for row in columns["tokens"]])
        counts = [len(choices) for choices in columns[self.task_type.inputs[-1]]]
        return row_array([np.pad(self.bias, (0, max(0, count - len(self.bias))))[:count] for count in counts])

    def save(self, folder: Path, config: PreTrainedConfig) -> None:
        """Write the model into a folder."""
        tokenization.save_tokenizer(self.tokenizer, folder)
        if self.encoder is not None:
            self.encoder.save_pretrained(folder)
            setattr(config, FIRST_TOKEN, getattr(self.encoder.config, FIRST_TOKEN, False))
            for name in ("config.json", MODELING_FILE.name):  # for transformers, which is to load no such folder
                (folder / name).unlink(missing_ok=True)
        arrays = {"bias": self.bias} | ({} if self.weight is None else {"weight": self.weight})
        arrays |= {f"idf.{number}": each.idf_ for number, each in enumerate(self.vectorizers)}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / _WEIGHTS)
        vocabularies = [each.get_feature_names_out().tolist() for each in self.vectorizers]
        content = {"baseline": self.name, "frozen": self.encoder is not None}
        content |= {"model": json.loads(config.to_json_string()), "vocabularies": vocabularies}
        write_json(folder / BASELINE_CONFIG, content)


def load_baseline(folder: Path) -> BaselineModel:
    """Load the model of a baseline; raises AttendropError if its files are missing, damaged, or not attendrop's."""
    run_folder.check_whole(folder)
    try:
        saved = json.loads((folder / BASELINE_CONFIG).read_text(encoding="utf-8"))
        arrays = load_file(folder / _WEIGHTS)
        config: PreTrainedConfig = CONFIG_MAPPING[saved["model"]["model_type"]].from_dict(saved["model"])
        vectorizers = []
        for number, terms in enumerate(saved["vocabularies"]):
            vectorizer = TfidfVectorizer(sublinear_tf=True, vocabulary=terms, **_TERMS[number % len(_TERMS)])
            vectorizer.idf_ = arrays[f"idf.{number}"]
            vectorizers.append(vectorizer)
        task_type, place = task_type_of_model(config), str(folder)
        tokenizer, encoder = task_type.load_tokenizer(place), None
        if saved["frozen"]:
            options = {"config": config, "use_safetensors": True, "dtype": "float32"}
            encoder = task_type.model_class(config).from_pretrained(place, **options)
            tokenization.fit_tokenizer(place, encoder, tokenizer)
        parts = arrays["bias"], arrays.get("weight"), vectorizers, encoder, getattr(config, AS_TRAINED, {})
        return BaselineModel(saved["baseline"], task_type, tokenizer, *parts)
    except (OSError, KeyError, ValueError) as error:
        raise AttendropError(f"The model in '{folder}' cannot be loaded ({error}).") from error


def fit_tf_idf(texts: Sequence[tuple[str, ...]]) -> list[TfidfVectorizer]:
    """Make the TF-IDF of words and pairs of words, and of 2 to 5 characters within words, of each text column.

    Raises AttendropError if no text of a column has a letter or a digit.
    """
    columns = list(zip(*texts, strict=True))
    if not all(any(re.search(r"\w", text) for text in column) for column in columns):
        raise AttendropError("No training text has a word, of letters or digits, which TF-IDF counts.")
    return [TfidfVectorizer(sublinear_tf=True, **terms).fit(column) for column in columns for terms in _TERMS]


def tf_idf(vectorizers: Sequence[TfidfVectorizer], texts: Sequence[tuple[str, ...]]) -> Array:
    """Compute the features of rows, a sparse matrix ``(rows, features)``."""
    columns = list(zip(*texts, strict=True))
    parts = [each.transform(columns[number // len(_TERMS)]) for number, each in enumerate(vectorizers)]
    features: Array = sparse.hstack(parts).tocsr()
    return features


# Loading -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunModel:
    """Loaded model with its head, and the options of its run; of a folder without them, those of its configuration.

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
        self, columns: dict[str, list[Any]], task: Task, source: Source
    ) -> tuple[dict[str, list[Any]], Array, int]:
        """Encode rows as the run did, but for what the source says; return them with outputs, and how many are cut."""
        wanted = source.max_length or self.options.get("max_length") or DEFAULT_MAX_LENGTH
        limit = self.task_type.length_limit(self.tokenizer, wanted, columns)
        cuts = task.long_texts == HEAD and not (isinstance(self.model, BaselineModel) and self.model.encoder is None)
        with _TOKENIZING:
            encoded = encode_columns(columns, task, self.tokenizer, limit)
            cut = truncated_rows(columns, encoded, task, self.tokenizer, limit) if cuts else 0
        how: tuple[Any, ...] = (encoded, source.batch_size, source.device)
        if not encoded["length"]:  # the head left all rows out
            return encoded, np.empty(0), 0
        if isinstance(self.model, BaselineModel):
            return encoded, self.model.outputs(columns, *how), cut
        return encoded, predict_outputs(self.model, self.tokenizer, self.task_type, *how), cut

    def predict_texts(self, texts: Iterable[Any], *, probabilities: bool = False) -> list[Any]:
        """Predict texts, see :meth:`attendrop.runs.load.TextPredictor.predict`."""
        if isinstance(texts, str):
            raise AttendropError(f"predict reads a list of texts, not the text {texts[:40]!r}; write [text].")
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # which would give the names of its columns
            raise AttendropError("predict reads a list of texts, not a table; give one column of it.")
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
                table.refuse_broken(row)
                read.append(reads.read_inputs(*row))
            except table.BadValue as problem:
                raise AttendropError(f"Text {number} cannot be predicted: {problem}.") from None
        task = files_task(names, reads).with_long_texts(self.options.get("long_texts"))
        found: list[dict[str, Any]] = []
        unknown = cut = 0
        with nullcontext() if isinstance(self.model, BaselineModel) else evaluating(self.model):
            for start in range(0, len(rows), CHUNK_ROWS):
                some = read[start : start + CHUNK_ROWS]
                columns = {name: list(values) for name, values in zip(names, zip(*some, strict=True), strict=True)}
                columns["index"] = list(range(start, start + len(some)))
                encoded, outputs, of_chunk = self.outputs(columns, task, Source())
                unknown, cut = unknown + tokenization.unknown_rows(encoded, self.tokenizer), cut + of_chunk
                outputs = reads.checked(outputs)
                answers = reads.prediction_rows(outputs, columns, probabilities=probabilities)
                found += with_acceptance(answers, outputs, self.accept)
        if unknown:
            logger.warning(_UNKNOWN, unknown, len(rows))
        if cut:
            logger.warning(_CUT, cut, len(rows))
        return found if probabilities else [row[reads.answer_column] for row in found]

    def accept_for(self, source: Source) -> dict[str, Any] | None:
        """Return which answers to accept; None, with a warning, where rows are read unlike those that said it."""
        trained = {
            "max_length": self.options.get("max_length"),
            "long_texts": self.options.get("long_texts") or HEAD,
            "with_columns": tuple(self.options.get("with_columns") or ()),
        }
        if self.accept is None or all(getattr(source, name) in (None, trained[name]) for name in trained):
            return self.accept
        logger.warning(
            "Which answers to accept is known for the run's max-length, long-texts and with-columns only: none is "
            "marked."
        )
        return None

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
    run_folder.check_finished(run_dir)
    folder = Path(run_dir)
    options, accept = run_folder.run_options(run_dir), None
    # Without run.json nobody knows whether the model is still the one whose answers were counted, or who wrote metrics.
    if run_folder.read_run(folder) is not None:
        run_folder.check_keeps_model(run_dir)
        accept = (run_folder.read_metrics(folder) or {}).get("accept")
        options = options | {name: checked(RunConfig, name, options[name]) for name in READ_BY if name in options}
    if accept is not None and not isinstance(accept.get("threshold", ""), float | int | None):
        raise AttendropError(f"'{folder / run_folder.METRICS}' says 'accept' without a threshold; restore it.")
    if run_folder.is_baseline(run_dir):
        baseline = load_baseline(folder)
        options = options or dict(baseline.options)
        task_type = baseline.task_type.with_options(options.get("task_options", {}) | {**task_options})
        return RunModel(run_dir, baseline, baseline.tokenizer, task_type, options, accept)
    if model is None:
        model, tokenizer = load_for(str(folder.absolute()), None)[:2]
    else:
        reads = task_type_of_model(model.config)
        head, own = reads.class_name(model.config), type(model).__name__
        if head is None or head.partition("For")[2] != own.partition("For")[2]:  # of the mean, or a related family
            problem = f"The model in '{run_dir}', {own}, has no trained head for {reads.kind}"
            raise AttendropError(f"{problem}: fine-tune it first.")
        with load_errors(run_dir):
            tokenizer = reads.load_tokenizer(run_dir)
        tokenization.fit_tokenizer(run_dir, model, tokenizer)
    options = options or getattr(model.config, AS_TRAINED, {})
    task_type = task_type_of_model(model.config).with_options({**options.get("task_options", {}), **task_options})
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
        references = task_type.references(tokenization.columns_of(self.sets[name]))
        rows = self.parts.selection if name == "selection" else self.parts.report[name]
        assert rows is not None  # it is one of the sets
        return Predictions(
            references,
            outputs,
            lambda labels, outputs: metrics.compute_scores(decisive, outputs, labels)[decisive.metric],
            task_type.num_classes,
            task_type.metrics[self.task.metric].span,
            metrics.independent_units(rows, self.task, len(references)),
        )


def load_finished_run(run_dir: str, *, data_dir: str | None = None, device: str = "auto") -> FinishedRun:
    """Load a run with its rows and model; raises AttendropError if it is not finished, or its data changed."""
    run, scored = run_folder.read_finished(run_dir)
    run_folder.check_keeps_model(run_dir)
    changed = {"device": device} | ({"data_dir": data_dir} if data_dir is not None else {})
    resolved = _resolved(run_dir, run, "its selection split cannot be reproduced.", **changed)
    model, tokenizer = load_for(str(Path(run_dir).absolute()), None)[:2]
    return FinishedRun(resolved.config, resolved.given, resolved.data, resolved.parts, scored, model, tokenizer)


def _resolved(run_dir: str, run: Mapping[str, Any], without: str, **changed: Any) -> ResolvedRun:
    """Load the rows of a run as it divided them; raises AttendropError, with the consequences, if they changed."""
    resolved = resolve_run(run_folder.config_of_run(run_dir, run["config"], **changed), run.get("decided"))
    if fingerprint(resolved.parts) != run["data_sha256"]:
        raise AttendropError(f"The data changed since the run in '{run_dir}': {without}")
    return resolved


# Evaluation and prediction -------------------------------------------------------------------------------------------


def _training_rows(run_dir: str, model: RunModel, source: Source) -> Dataset | None:
    """Load the rows that the model of a run was trained on; None if no run is known, its data are gone, or changed."""
    if "model" not in model.options:
        return None
    try:
        run = run_folder.read_run(Path(run_dir)) or {}
        trained = _resolved(run_dir, run, "its training rows are no longer known.", **_moved(model, source))
    except (AttendropError, OSError):
        return None
    held_out_first = trained.config.refit or "baseline" in run
    return (trained.on_all_rows() if held_out_first else trained).parts.real.train


def evaluate(run_dir: str, source: Source, *, report: bool = False) -> dict[str, Any]:
    """Score a model on labelled data, by default on the run's evaluation data, or the rows that it held out.

    Returns ``model, task, source, split, rows, skipped, metric, score, all_scores, predicted, unknown_labels`` (how
    often each occurs), and ``groups``: see :func:`attendrop.tasks.metrics.group_scores`. With ``report``, which keeps
    all rows in memory, also ``report``: see :func:`attendrop.tasks.error_analysis.error_analysis`.

    Raises AttendropError if there is no finished run, or the data cannot be read, have no labels or other classes.
    """
    _check_outputs(run_dir, source)
    model = load_run(run_dir, source.task_options)
    rows = _open_rows(model, source, "dev")
    outputs, references, loaded = [], [], []
    groups: dict[str, list[str]] = {name: [] for name in rows.task.group_columns}
    train = (
        _training_rows(run_dir, model, source) if report or (source.file and model.options.get("train_file")) else None
    )
    known = set() if train is None or not source.file else set(metrics.texts_alone(train, rows.task))
    trained_on = 0
    for chunk, encoded, of_chunk in rows.outputs(model, source, labelled=True):
        outputs.append(of_chunk)
        references.append(model.task_type.references(encoded))
        if report or known:
            own = Dataset.from_dict(dict(chunk.columns))
            trained_on += sum(text in known for text in metrics.texts_alone(own, rows.task)) if known else 0
            loaded += [own] if report else []
        for name, values in groups.items():
            values += chunk.columns[name]

    def is_file(name: str) -> bool:
        given, scored = model.options.get(name) or "", source.file or ""
        same = {*map(Path.resolve, table.files_of(given))} & {*map(Path.resolve, table.files_of(scored))}
        return bool(given and scored and same) and table.sheet_of(given) == table.sheet_of(scored)

    if is_file("train_file"):
        told = "%s is the file that the model was trained on: the scores say how well it learnt these rows, not how "
        logger.warning(told + "well it does on new ones.", source.file)
    elif trained_on:
        told = "%d of %d rows have a text that the model was trained on: scores on them are optimistic."
        logger.warning(told, trained_on, rows.done)
    every, labels, task_type = np.concatenate(outputs), np.concatenate(references), rows.task.type
    scores = metrics.compute_scores(rows.task, every, labels)
    predicted = (model.task_type if rows.reading is None else task_type).predicted_counts(every)
    if len(predicted) == 1 and sum(predicted.values()) >= len(labels) > 1:  # of several labels some rows have none
        logger.warning("The model predicts one class for all %d rows: %s.", len(labels), next(iter(predicted)))
    if positive := task_type.positive_class(rows.task.metric):
        logger.info("%s is that of the class %r, the second of two.", rows.task.metric, positive)
        if task_type.unknown_counts(labels):
            told = "%s is of the class %r alone: rows with labels that training lacks may not lower it."
            logger.warning(told, rows.task.metric, positive)
    found = _described(model, rows) | {
        "metric": rows.task.metric,
        "score": scores[rows.task.metric],
        "all_scores": scores,
        "predicted": predicted,
        "unknown_labels": task_type.unknown_counts(labels),
        "groups": metrics.group_scores(rows.task, every, labels, groups),
    }
    if report:
        scored = concatenate_datasets(loaded)
        if train is None and "model" in model.options:
            logger.warning("The training data are not there any more, or changed: errors are shown without neighbours.")
        if train is not None and rows.reading is not None:
            classes = [rows.reading[label] for label in train["label"][:]]
            train = train.remove_columns("label").add_column("label", classes)
        found["report"] = error_analysis(rows.task, every, labels, scored, train)
        if found["report"] is None:
            raise AttendropError(f"report analyses errors on classes and labels; omit it for {task_type.labels_are}.")
        if (accept := model.accept_for(source)) is not None and rows.reading is None:
            task = model.options.get("task")  # whose test fraction is none of its splits
            divided = task and model.options["test_fraction"] and (source.task or source.split)
            here = source.task in (None, task) and rows.split == "dev" and not divided
            chosen_here = here if source.file is None else is_file("eval_file")
            if new := list(range(len(scored))) if train is None else metrics.new_rows(scored, train, rows.task):
                share = accepted_share(every[new], labels[new], accept)
                found["report"]["accept"] = share | {"chosen_here": chosen_here}
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
) -> dict[str, Any]:
    """Write a prediction for every row, by default of the task's test split; an empty one for a skipped row.

    ``output`` is a .tsv, .csv, .jsonl or .conll file, unless ``format`` says another; ``"-"`` is standard output. For
    GLUE tasks it gets the columns of a submission. If the run was asked which answers to ``accept``, tables have
    ``confidence`` and ``accepted``, but not at another ``max_length`` or with other ``long_texts``. ``probabilities``
    writes those of all classes, ``keep_columns`` also the columns of the input file, ``escape_formulas`` an apostrophe
    before cells that spreadsheets would compute.

    Returns ``model, task, source, split, rows, skipped, output``. Raises AttendropError as :func:`evaluate`, or if the
    output's extension is unknown.
    """
    format = output_format(output, format)
    _check_outputs(run_dir, source, *([] if output == table.STDIN else [output]))
    model = load_run(run_dir, source.task_options)
    rows = _open_rows(model, source, "test")
    accept = model.accept_for(source) if rows.reading is None else None
    if keep_columns and source.file is None:
        raise AttendropError("keep-columns is for the columns of a file; omit it for a task.")
    with PredictionWriter(
        output, rows.task, format=format, probabilities=probabilities, keep_columns=keep_columns,
        escape_formulas=escape_formulas, bad=rows.bad, accept=accept,
    ) as writer:  # fmt: skip
        for chunk, _, outputs in rows.outputs(model, source, labelled=False):
            writer.write(chunk.columns, outputs, chunk.table)
    return _described(model, rows) | {"output": output}


def _check_outputs(run_dir: str, source: Source, *outputs: str) -> None:
    """Refuse outputs that replace files of the run, its data or the source; and other files unless asked."""
    if source.skipped_file is not None:
        check_output(source.skipped_file, outputs, overwrite=True)
        outputs = (*outputs, source.skipped_file)
    if not outputs:
        return
    inputs = [*run_folder.input_files(Path(run_dir)), *(() if source.file is None else table.files_of(source.file))]
    options = run_folder.run_options(run_dir)
    task = source.task or (options.get("task") if source.file is None else None)
    if task is not None and Path(run_dir).is_dir():
        inputs += task_files(task, _data_dir(options, source, task))
    for output in outputs:
        check_output(output, inputs, overwrite=source.overwrite)


def _moved(model: RunModel, source: Source) -> dict[str, Any]:
    """Return the option of the data folder of the run's task, which may be another now; none for files."""
    task = model.options.get("task")
    return {} if task is None else {"data_dir": _data_dir(model.options, source, task)}


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
    bad: table.BadRows = field(default_factory=table.BadRows)
    reading: list[int] | None = None
    done: int = 0

    def outputs(
        self, model: RunModel, source: Source, *, labelled: bool
    ) -> Iterator[tuple[Chunk, dict[str, list[Any]], Array]]:
        """Yield each chunk with its encoded rows and their outputs; then list the rows that were skipped.

        Raises AttendropError if rows have no labels, though they are to be ``labelled``, or none has a known token.
        """
        unknown, cut, last_line = 0, 0, time.monotonic()
        if not isinstance(model.model, BaselineModel):  # loaded for these rows alone
            device = compute_device(source.device)
            # Scores, and the least confidence of an answer that is accepted, are of full precision.
            bf16 = bool(model.options.get("bf16")) and not labelled and model.accept is None
            to_fastest_form(model.model, model.tokenizer, device, bf16=bf16)

        for chunk in self.chunks:
            if labelled and "label" not in chunk.columns:
                raise AttendropError(f"The split '{self.split}' of {self.task.name} has no labels; use predict.")
            self.task = replace(self.task, type=replace(self.task.type, unknown_names=chunk.unknown_names))
            columns = {**chunk.columns}
            if not labelled:
                columns.pop("label", None)
            encoded, outputs, of_chunk = model.outputs(columns, self.task, source)
            if not len(outputs):
                continue
            self.done += len(outputs)
            if time.monotonic() - last_line >= _SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                logger.info("%s rows done%s", f"{self.done:,}", "." if self.total is None else f" of {self.total:,}.")
            unknown, cut = unknown + tokenization.unknown_rows(encoded, model.tokenizer), cut + of_chunk
            yield chunk, encoded, metrics.read_as(outputs, self.reading, len(self.task.type.output_names))
        if unknown >= self.done:
            raise AttendropError(f"{self.place} has no row with a token that the model knows.")
        if unknown:  # as in large files
            logger.warning(_UNKNOWN, unknown, self.done)
        if cut:
            logger.warning(_CUT, cut, self.done)
        skipped, file = self.bad.skipped, source.skipped_file
        if skipped:
            if file is not None:
                table.write_skipped(file, skipped)
            listed = f"{file} lists them" if file else "add --skipped-file to list them with what is wrong"
            number, places = counted(len(skipped), "invalid row"), table.skipped_places(skipped)
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
    if source.split is not None and task is None:
        raise AttendropError("split is for tasks, and the run has none; give --task, or omit it.")
    if split == "dev" and source.split is None and source.task is None and model.options.get("test_fraction"):
        task = None  # a part of the training rows
    file = source.file or (model.options.get("eval_file") if split == "dev" and task is None else None)
    part: Dataset | None = None
    if task is not None:
        asked, task_type = get_task(task), model.task_type
        reading = metrics.label_mapping(asked, task_type)  # classes may be fewer than the model's, or named otherwise
        if reading is None and not task_type.fits(asked.type):
            raise AttendropError(f"The model predicts {task_type.predicts}, {task} asks for {asked.type.predicts}.")
        if reading is None and asked.label_names != task_type.label_names:
            told = "The model's classes are %s; in this order, they are read as those of %s: %s."
            logger.warning(told, ", ".join(task_type.label_names), task, ", ".join(asked.label_names))
        refuse_options_of_files(source)
        split = source.split or split
        data = load_task(task, data_dir=_data_dir(model.options, source, task), splits=(split,))
        part = data.splits[split]
        rows = _Rows(data.task, split, data.source, iter(()), len(part), reading=reading)
    elif file is not None:
        columns, label = source.columns_of(file, model.options, labelled=split == "dev")
        label_map = (source.label_map or model.options.get("label_map")) if label is not None else None
        if label_map is not None and not Path(label_map).is_file():
            raise AttendropError(f"There is no label map '{label_map}', with which labels are read; give --label-map.")
        unknown_labels = source.unknown_labels or model.options.get("unknown_labels")
        skips = source.skip_bad_rows or (source.file is None and bool(model.options.get("skip_bad_rows")))
        bad = table.BadRows(skip=skips, unknown_labels=unknown_labels)
        with_columns = model.options.get("with_columns") if source.with_columns is None else source.with_columns
        chunks = stream_file(
            file, text_columns=columns, task_type=model.task_type, label_column=label, label_map=label_map,
            with_columns=with_columns, size=CHUNK_ROWS, bad=bad,
            format=(source.input_format or "csv") if file == table.STDIN else None,
        )  # fmt: skip
        rows = _Rows(files_task(columns, model.task_type), split, file, chunks, bad=bad)
    elif split == "dev" and "model" in model.options:
        refuse_options_of_files(source, data="the rows that the run held out")
        lost = "its held-out rows are no longer known; give --eval-file."
        options = run_folder.read_run(Path(model.folder)) or {}
        run = _resolved(model.folder, options, lost, **_moved(model, source))
        part = run.parts.report.get("dev")
        if part is None and not run.config.refit:
            split, part = "selection", run.parts.selection
        if part is None:
            raise AttendropError("The run was trained on all rows of its file; give others: --eval-file, --task.")
        if split == "selection" and run.chooses_epoch:
            logger.warning("The epoch was chosen on these rows, so the scores are optimistic.")
        rows = _Rows(run.task, split, run.data.source, iter(()), len(part))
    else:
        option = "--eval-file" if split == "dev" else "--predict-file"
        raise AttendropError(f"No data are given; give {option}, or --task.")
    if part is not None:
        rows.task = replace(rows.task, type=rows.task.type.with_options(model.task_type.options()))
        rows.chunks = (Chunk(columns) for columns in part.iter(CHUNK_ROWS))
    trained_on, columns = model.text_columns(), rows.task.text_columns
    if trained_on and model.task_type.inputs_of(len(columns)) != model.task_type.inputs_of(len(trained_on)):
        raise AttendropError(
            f"The model in '{model.folder}' was trained on {counted(len(trained_on), 'text')} a row "
            f"({', '.join(trained_on)}), not on {len(columns)} ({', '.join(columns)}); name as many text columns."
        )
    rows.task = rows.task.with_long_texts(source.long_texts or model.options.get("long_texts"))
    if model.options.get("metric") is not None:
        rows.task = metrics.with_metric(rows.task, model.options["metric"])
    first = next(rows.chunks, None)
    if first is None:
        raise AttendropError(f"{rows.place} has no valid row: {len(rows.bad.skipped)} were skipped.")
    rows.chunks = chain([first], rows.chunks)
    return rows
