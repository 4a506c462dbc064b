"""From texts to token ids."""

import warnings
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.columns import TokenColumn, align


def encode(
    dataset: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    token_columns: Sequence[TokenColumn] = (),
) -> Dataset:
    """Tokenise the texts, without padding (batches are padded when they are put together).

    max_length: in tokens, special ones included; of two texts the longer is cut first. More than the tokenizer allows
        is lowered to that, with a warning.
    token_columns: columns of the data set, as `load_files` leaves them, that are kept; they are cut as the texts are.

    The result has the tokenizer's outputs, "labels" (int or float, where there are labels) and "length" in tokens; the
    other raw columns are gone. Raises AttendropError if `max_length` leaves no room for the texts, or if a row of
    `token_columns` has not one entry for each token, before anything is cut.
    """
    pair = "text_pair" in dataset.column_names
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= special:
        raise AttendropError(
            f"a maximum length of {max_length} leaves no room for text: the tokenizer adds {special} special tokens."
        )
    if max_length > tokenizer.model_max_length:
        limit = tokenizer.model_max_length
        warnings.warn(f"the maximum length {max_length} was lowered to the model's {limit} tokens.", stacklevel=2)
        max_length = limit
    as_label = int if task.label_names else float

    def tokenise(batch: dict[str, list[Any]]) -> dict[str, Any]:
        texts = (batch["text"], batch["text_pair"]) if pair else (batch["text"],)
        cut = tokenizer(*texts, truncation=True, max_length=max_length)
        encoded: dict[str, Any] = dict(cut)
        if token_columns:
            encoded |= align(token_columns, batch, tokenizer(*texts, verbose=False), cut, tokenizer)
        encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
        if "label" in batch:
            encoded["labels"] = [as_label(label) for label in batch["label"]]
        return encoded

    return dataset.map(tokenise, batched=True, remove_columns=dataset.column_names, desc="tokenising")
