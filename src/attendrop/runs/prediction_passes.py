"""Outputs for rows: passes of a model over batches of similar length, and models without fine-tuning.

Baselines are a linear model on TF-IDF or on a frozen encoder, or a constant prediction. Their folders are those of
runs, with ``baseline.json`` (the head with its classes, and the vocabularies) and ``baseline.safetensors`` (the linear
model) instead of a model of transformers, which refuses such a folder.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor
from torch.nn import functional
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.pruning.packed import PackedLayer, family_of, has_fast_form, pack_layers
from attendrop.randomness.device_path import on_cpu
from attendrop.runs.run_folder import check_whole
from attendrop.support.files import BASELINE_CONFIG, write_json
from attendrop.support.models import compute_device
from attendrop.tasks.base import task_type_of_model
from attendrop.tasks.tokenization import document_means, fit_tokenizer
from attendrop.tasks.types.base import Array, TaskType, row_array
from attendrop.tasks.types.model_classes import MODELING_FILE

_WEIGHTS = "baseline.safetensors"
# Terms of TF-IDF: words and pairs of words; 2 to 5 characters within words.
_WORD = re.compile(r"\w")
_TERMS: tuple[dict[str, Any], ...] = (
    {"token_pattern": r"\w+", "ngram_range": (1, 2)},
    {"analyzer": "char_wb", "ngram_range": (2, 5)},
)
logger = logging.getLogger(__name__)


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
    if bf16 := bf16 and _computes_bfloat16(device):
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    family, packed = family_of(model), any(isinstance(module, PackedLayer) for module in model.modules())
    readable = not family.pads_right or tokenizer.padding_side == "right"
    if unpadded := on_cpu(device) and readable and not packed and not family.relative_positions:
        pack_layers(model)
        model.train(mode=False)  # also the new layers
    if chosen := ["without padding"] * unpadded + ["in bfloat16, as in training"] * bf16:
        logger.info("Predicting %s.", ", ".join(chosen))


def _computes_bfloat16(device: torch.device) -> bool:
    """Return whether a device has units for bfloat16; where it is emulated, float32 is faster."""
    if device.type == "cpu":
        return bool(torch.cpu.get_capabilities().get("amx_bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def predict_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
    on_batch: Callable[[int], None] | None = None,
    *,
    predict: Callable[[dict[str, Tensor]], Array] | None = None,
) -> Array:
    """Compute a model's outputs for encoded rows, one per row of the data, such as logits ``(rows, classes)``.

    The model is moved to the device; ``on_batch`` is called after each batch with the number of its rows. ``predict``
    computes the outputs of a batch in place of the model, such as an exported file.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    compute, concatenate = predict or partial(task_type.predict, model), task_type.concatenate
    raw = over_rows(compute, model, tokenizer, task_type, encoded, batch_size, on_batch, concatenate=concatenate)
    return task_type.row_outputs(raw, encoded, tokenizer)


def over_rows(
    compute: Callable[[dict[str, Tensor]], Array],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
    *,
    concatenate: Callable[[Sequence[Array]], Array] = np.concatenate,
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
            if on_batch is not None:
                on_batch(len(rows))
    return concatenate(found)[np.argsort(order)]


def unit_means(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average hidden states ``(batch, n, hidden)`` over the tokens of each row, and scale the mean to length 1."""
    mask = hidden.new_ones(hidden.shape[:2]) if attention_mask is None else attention_mask
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

    Special tokens count; padding does not: the sentence embedding of Reimers and Gurevych (2019). In a model with an
    encoder and a decoder, the encoder is read. Returns unit vectors ``(rows, hidden)`` in float32, in the order of the
    rows; zeros for a row without tokens. Raises AttendropError if the encoder has no vector for each token.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    encoder: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model

    def means(batch: dict[str, Tensor]) -> Array:
        hidden = encoder(**batch).last_hidden_state.float()
        if hidden.ndim != 3:
            raise AttendropError(f"{type(encoder).__name__} has no vectors of tokens or patches to average.")
        units: Array = unit_means(hidden, batch.get("attention_mask")).cpu().numpy()
        return units

    return over_rows(means, encoder, tokenizer, task_type, encoded, batch_size)


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

    def outputs(
        self,
        columns: Mapping[str, list[Any]],
        encoded: Mapping[str, list[Any]],
        batch_size: int,
        device: str,
        on_batch: Callable[[int], None] | None = None,
    ) -> Array:
        """Compute one output for each row, as :func:`attendrop.runs.prediction_passes.predict_outputs` does."""
        if self.weight is None:
            found = self.constant(columns)
        elif self.encoder is None:
            texts = Dataset.from_dict({name: columns[name] for name in self.task_type.inputs_in(columns)})
            found = self.linear(tf_idf(self.vectorizers, self.task_type.texts(texts)))
        else:
            means = frozen_features(self.encoder, self.tokenizer, self.task_type, encoded, batch_size, device)
            found = self.linear(document_means(means, encoded))
        if on_batch is not None:
            on_batch(len(found))
        return found

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
        self.tokenizer.save_pretrained(folder)
        if self.encoder is not None:
            self.encoder.save_pretrained(folder)
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
    check_whole(folder)
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
            fit_tokenizer(place, encoder, tokenizer)
        weight = arrays.get("weight")
        return BaselineModel(saved["baseline"], task_type, tokenizer, arrays["bias"], weight, vectorizers, encoder)
    except (OSError, KeyError, ValueError) as error:
        raise AttendropError(f"The model in '{folder}' cannot be loaded ({error}).") from error


def fit_tf_idf(texts: Sequence[tuple[str, ...]]) -> list[TfidfVectorizer]:
    """Make the TF-IDF of words and pairs of words, and of 2 to 5 characters within words, of each text column.

    Raises:
        AttendropError: No text of a column has a letter or a digit.
    """
    columns = list(zip(*texts, strict=True))
    if not all(any(map(_WORD.search, column)) for column in columns):
        raise AttendropError("No training text has a word, of letters or digits, which TF-IDF counts.")
    return [TfidfVectorizer(sublinear_tf=True, **terms).fit(column) for column in columns for terms in _TERMS]


def tf_idf(vectorizers: Sequence[TfidfVectorizer], texts: Sequence[tuple[str, ...]]) -> Array:
    """Compute the features of rows, a sparse matrix ``(rows, features)``."""
    columns = list(zip(*texts, strict=True))
    parts = [each.transform(columns[number // len(_TERMS)]) for number, each in enumerate(vectorizers)]
    features: Array = sparse.hstack(parts).tocsr()
    return features
