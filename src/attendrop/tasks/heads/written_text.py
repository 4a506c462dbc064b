"""Shared code of heads whose models generate text: generation, likelihoods of reference texts, texts as labels."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from attendrop.attribution.label_positions import IGNORED
from attendrop.attribution.predictions import TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import count, option, optional
from attendrop.model_support.models import position_limit
from attendrop.tasks.heads.base import Array, Head, Metric, Tokenizer, row_array
from attendrop.tasks.values import count_words, text_problem

# For models whose files do not say how much they generate.
DEFAULT_NEW_TOKENS = 128
# Options of generation that transformers refuses to save where nothing is sampled, and where there is one beam.
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_OF_BEAMS = ("early_stopping", "length_penalty")


@dataclass(frozen=True)
class WrittenText:
    """Output for a row."""

    text: str  # what the model wrote; empty if it was not asked to
    log_likelihood: float = 0.0  # of the reference; finite unless the model diverged
    tokens: int = 0  # of the reference

    @property
    def scores(self) -> float:
        return self.log_likelihood


@dataclass(frozen=True)
class WritingHead(Head):
    """Head whose model generates a text. Labels and references are texts, outputs are objects, :class:`WrittenText`.

    Raw outputs are numbers, ``(rows, 2 + tokens)``: the log-likelihood of the reference, the number of its tokens, and
    the ids of the generated tokens, padded with -100.

    Attributes:
        num_beams: Number of beams of the beam search; 1 is greedy search. None: as the model's files say.
        max_new_tokens: Number of tokens to generate, at most. None: as the model's files say, otherwise 128.
    """

    num_beams: int | None = option(None, optional(count()))
    max_new_tokens: int | None = option(None, optional(count()))

    pretrained = True
    padding = IGNORED
    output_kind = TOKENS
    rewarded_by_loss = True
    reads_labels = True
    reference_column = "references"  # the whole texts, of which the model may have seen only a part
    most_inputs = 1
    most_fit_rows = 100
    tokenizer_options: ClassVar = {}  # programs that generate with the saved model pad on the left

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Set the options of generation, with which the model is also saved: one text for each row, nothing sampled.

        Raises:
            AttendropError: The model generates no text, or more is asked for than its positions allow.
        """
        generation = model.generation_config
        if generation is None:
            raise AttendropError(f"{type(model).__name__} does not generate text; use a model that does.")
        if self.num_beams is not None:
            generation.num_beams = self.num_beams
        if self.max_new_tokens is not None or (generation.max_new_tokens is None and generation.max_length is None):
            generation.max_new_tokens, generation.max_length = self.max_new_tokens or DEFAULT_NEW_TOKENS, None
        without = (*_OF_SAMPLING, *(_OF_BEAMS if generation.num_beams in (None, 1) else ()), "num_return_sequences")
        generation.update(do_sample=False, **dict.fromkeys(without))  # type: ignore[no-untyped-call]
        limit, most = position_limit(model), generation.max_new_tokens
        if limit is not None and most is not None and most >= limit:
            if self.max_new_tokens is not None:
                raise AttendropError(
                    f"max_new_tokens={most} is too much: {type(model).__name__} has {limit} positions."
                )
            generation.max_new_tokens = limit // 2

    def example_values(self, *, stock: bool) -> dict[str, str]:
        """Return the options of generation as arguments in Python code, after another one; stock models have them."""
        new_tokens = self.max_new_tokens or (None if stock else DEFAULT_NEW_TOKENS)
        given = {"num_beams": self.num_beams, "max_new_tokens": new_tokens}
        return {"arguments": "".join(f", {name}={value}" for name, value in given.items() if value is not None)}

    value_problem = staticmethod(text_problem)

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Pad on the right, whatever the tokenizer does, labels with -100."""
        padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED}

        def padded(name: str, rows: list[Any]) -> Tensor:
            values = [torch.as_tensor(row[name]) for row in rows]
            return pad_sequence(values, batch_first=True, padding_value=padding.get(name, 0))

        return lambda rows: {name: padded(name, rows) for name in rows[0]}

    @abstractmethod
    def generate(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Generate the tokens of each row, ``(rows, tokens)``."""

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the raw outputs; without labels, only generate."""
        if "labels" in batch:
            return super().predict(model, batch)
        generated = self.generate(model, batch).cpu()
        return torch.cat([torch.zeros(len(generated), 2), generated], dim=1).numpy()

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Decode the generated tokens, as they are: a completion may begin with a space."""
        found = []
        for likelihood, tokens, *ids in raw.tolist():
            text = tokenizer.decode([int(token) for token in ids if token != IGNORED], skip_special_tokens=True)
            found.append(WrittenText(str(text), likelihood, int(tokens)))
        return row_array(found)

    def label_array(self, labels: Sequence[Any]) -> Array:
        return row_array(labels)

    def decode(self, outputs: Array) -> list[str]:
        return [each.text for each in outputs]

    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        return [{self.answer_column: text} for text in self.decode(outputs)]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return word_counts(rows["label"][:])

    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        return word_line(f"{self.answer_column}, words", parts)


def word_counts(texts: Sequence[str]) -> dict[str, Any]:
    """Summarize the numbers of words of texts, for :func:`word_line`."""
    words = list(map(count_words, texts))
    return {"words": {"mean": float(np.mean(words)), "max": max(words)}}


def word_line(title: str, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the line of a table with the mean and the largest number of words of each part."""
    return [[title, *("{mean:.1f}, up to {max}".format(**part["words"]) for part in parts)]]


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the log-likelihood of the labels of each row, and count these: ``(batch, 2)``, in float32.

    Logits are ``(batch, n, tokens)``, at the positions that predict the labels, ``(batch, n)``; -100 is no label.
    """
    losses = functional.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return torch.stack([-losses.sum(1), (labels != IGNORED).sum(1).float()], dim=1)


def _mean_log_likelihood(outputs: Array) -> float:
    return float(sum(each.log_likelihood for each in outputs) / max(1, sum(each.tokens for each in outputs)))


LIKELIHOOD_METRICS: dict[str, Metric] = {
    "neg_log_loss": Metric(lambda references, outputs: _mean_log_likelihood(outputs), math.inf),
    "perplexity": Metric(
        lambda references, outputs: math.exp(min(-_mean_log_likelihood(outputs), 700)), math.inf, selects=False
    ),
}
