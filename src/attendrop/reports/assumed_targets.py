"""Targets of rows without labels, for passes that need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from attendrop.tasks.heads.base import Array, Head
from attendrop.tasks.long_texts import DOCUMENT


def assumed_targets(
    head: Head, outputs: Array, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> list[Any]:
    """Make targets of a model's own outputs.

    A prediction is its own label; a predicted number gets the number one above, so that the score that is attributed,
    minus the squared error, rises with the prediction.

    Args:
        head: The model's head.
        outputs: The model's outputs, one row for each example.
        encoded: The encoded rows, by column.
        tokenizer: The model's tokenizer.

    Returns:
        A target for each encoded row; the windows of a text have the same.
    """
    assumed = [label + 1 if isinstance(label, float) else label for label in head.decode(outputs)]
    targets = head.targets(assumed, BatchEncoding(dict(encoded)), tokenizer)
    if DOCUMENT not in encoded:
        return targets
    of_text = dict(zip(dict.fromkeys(encoded[DOCUMENT]), targets, strict=True))
    return [of_text[number] for number in encoded[DOCUMENT]]
