"""Tokenization of texts."""

from typing import Any
from uuid import uuid4

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.long_texts import DOCUMENT, HEAD, split_long


def encode(
    dataset: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Dataset:
    """Tokenize the texts, without padding (the collator pads batches).

    Args:
        dataset: The rows.
        task: The task.
        tokenizer: The tokenizer.
        max_length: Maximum number of tokens, including special tokens, at most that of the tokenizer; the longer of two
            texts is truncated first.

    Returns:
        What the head makes of the rows (:meth:`Head.tokenize`), "labels", if there are any, and "length", in tokens.
        Where a row can become several, as texts in windows do, "document", the number of the row in the data set.

    Raises:
        AttendropError: ``max_length`` leaves no room for the texts, or the head leaves out all rows.
    """
    limit = task.head.length_limit(tokenizer, max_length, dataset.column_names)
    encoded = dataset.map(
        lambda columns, rows: encode_columns(columns, task, tokenizer, limit, first_row=rows[0]),
        batched=True,
        with_indices=True,
        remove_columns=dataset.column_names,
        desc="tokenising",
        # Rows in memory have no use for a fingerprint, for which the whole tokenizer would be hashed in seconds.
        new_fingerprint=None if dataset.cache_files else uuid4().hex,
    )
    if not len(encoded):
        raise AttendropError(f"none of {len(dataset)} rows has a token that the model knows.")
    return encoded


def columns_of(rows: Dataset) -> dict[str, Any]:
    """Return the columns of a data set, each of which is read when it is indexed."""
    return {name: rows[name] for name in rows.column_names}


def encode_columns(
    columns: dict[str, list[Any]],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    first_row: int = 0,
) -> dict[str, list[Any]]:
    """Tokenize rows as :func:`encode` does, from number ``first_row``, with a length of :meth:`Head.length_limit`."""
    head, whole = task.head, task.long_texts == HEAD
    tokens = head.tokenize(columns, tokenizer, max_length if whole else None)
    encoded = dict(tokens) if whole else split_long(tokens, tokenizer, max_length, task.long_texts)
    encoded["length"] = head.lengths(encoded)
    documents = encoded.get(DOCUMENT)
    if "label" in columns:
        labels = columns["label"] if documents is None else [columns["label"][row] for row in documents]
        encoded["labels"] = head.targets(labels, tokens, tokenizer)
    return encoded if documents is None else encoded | {DOCUMENT: [first_row + row for row in documents]}
