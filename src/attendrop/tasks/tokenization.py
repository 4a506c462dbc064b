"""From texts to token ids."""

import warnings
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.token_columns import TokenColumn, align

# Of a run that says nothing else, and of a model that no run has made.
DEFAULT_MAX_LENGTH = 128


def encode(
    dataset: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    token_columns: Sequence[TokenColumn] = (),
) -> Dataset:
    """Tokenise the texts, without padding (batches are padded when they are put together).

    max_length: in tokens, special ones included; of two texts the longer is cut first. More than the tokenizer allows
        is lowered to that: see `length_limit`.
    token_columns: columns of the data set, as `load_files` leaves them, that are kept; they are cut as the texts are.

    The result has the tokenizer's outputs, "labels" (where there are labels) and "length" in tokens; the
    other raw columns are gone. Raises AttendropError if `max_length` leaves no room for the texts, or if a row of
    `token_columns` has not one entry for each token, before anything is cut.
    """
    limit = length_limit(tokenizer, max_length, pair="text_pair" in dataset.column_names)

    def tokenise(columns: dict[str, list[Any]]) -> dict[str, Any]:
        return encode_columns(columns, task, tokenizer, limit, token_columns)

    return dataset.map(tokenise, batched=True, remove_columns=dataset.column_names, desc="tokenising")


def length_limit(tokenizer: PreTrainedTokenizerBase, max_length: int, *, pair: bool) -> int:
    """`max_length`, lowered to what the tokenizer allows; with a warning, unless it is the default.

    Raises AttendropError if it leaves no room for a text, or for two of them with `pair`.
    """
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= special:
        raise AttendropError(
            f"a maximum length of {max_length} leaves no room for text: the tokenizer adds {special} special tokens."
        )
    if max_length > tokenizer.model_max_length:
        limit = tokenizer.model_max_length
        if max_length != DEFAULT_MAX_LENGTH:
            warnings.warn(f"the maximum length {max_length} was lowered to the model's {limit} tokens.", stacklevel=3)
        return limit
    return max_length


def encode_columns(
    columns: dict[str, list[Any]],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    token_columns: Sequence[TokenColumn] = (),
) -> dict[str, list[Any]]:
    """Tokenise rows given as columns, as `encode` does; `max_length` is one that `length_limit` allows."""
    cut = task.head.tokenize(columns, tokenizer, max_length)
    encoded: dict[str, Any] = dict(cut)
    if token_columns:
        encoded |= align(token_columns, columns, task.head.tokenize(columns, tokenizer, None), cut, tokenizer)
    encoded["length"] = task.head.lengths(encoded)
    if "label" in columns:
        encoded["labels"] = task.head.targets(columns["label"], cut, tokenizer)
    return encoded
