"""Texts that are longer than a model reads: their first tokens, their first and last, or windows over all of them.

Where a text is read in several windows, the encoded rows have the column "document", the number of the text of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

HEAD, HEAD_TAIL, WINDOWS = LONG_TEXTS = ("head", "head+tail", "windows")
# Column with the number of the text to which an encoded row belongs.
DOCUMENT = "document"
# Fraction of what is kept that is from the beginning: 128 of 510 tokens in Sun et al. (2019).
_HEAD_FRACTION = 0.25
# Fraction of a window that the next one repeats, at least.
_OVERLAP = 0.25


def split_long(
    whole: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, max_length: int, long_texts: str
) -> dict[str, list[Any]]:
    """Cut encoded texts, or split them into windows of ``max_length`` tokens, each with its special tokens.

    Args:
        whole: Columns of the encoded texts, not truncated, with an entry for each token.
        tokenizer: The tokenizer.
        max_length: Maximum number of tokens, including special tokens.
        long_texts: ``"head+tail"`` keeps a quarter of ``max_length`` from the beginning and the rest from the end (Sun
            et al., 2019); ``"windows"`` keeps all tokens: windows are spread evenly and overlap by a quarter at least.

    Returns:
        The columns, with a row for each piece, and "document".
    """
    first, last = special_tokens(tokenizer)
    rows: dict[str, list[Any]] = {name: [] for name in (*whole, DOCUMENT)}
    for number, ids in enumerate(whole["input_ids"]):
        for tokens in _pieces(len(ids) - first - last, max_length - first - last, long_texts):
            kept = [*range(first), *(first + token for token in tokens), *range(len(ids) - last, len(ids))]
            for name, values in whole.items():
                rows[name].append([values[number][token] for token in kept])
            rows[DOCUMENT].append(number)
    return rows


def document_slices(encoded: Mapping[str, Any]) -> Iterator[slice]:
    """Yield the slice of the encoded rows of each text; they are consecutive."""
    first = 0
    for _, rows in groupby(encoded[DOCUMENT][:]):
        last = first + len(list(rows))
        yield slice(first, last)
        first = last


def texts_of(rows: Dataset) -> list[range]:
    """Return the rows of each text in an encoded data set; one, unless the set has the column "document"."""
    if DOCUMENT not in rows.column_names:
        return [range(row, row + 1) for row in range(len(rows))]
    return [range(each.start, each.stop) for each in document_slices({DOCUMENT: rows[DOCUMENT]})]


def document_means(raw: np.ndarray[Any, Any], encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Average the rows of each text; rows that are whole texts stay as they are."""
    if DOCUMENT not in encoded:
        return raw
    import numpy as np

    starts = [rows.start for rows in document_slices(encoded)]
    counts = np.diff([*starts, len(raw)]).reshape(-1, *[1] * (raw.ndim - 1))
    means: np.ndarray[Any, Any] = np.add.reduceat(raw, starts, axis=0) / counts
    return means.astype(raw.dtype)


def of_documents(values: Sequence[Any], encoded: Mapping[str, Any]) -> Sequence[Any]:
    """Return the value of each text, of values that all rows of a text have."""
    return values if DOCUMENT not in encoded else [values[rows.start] for rows in document_slices(encoded)]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Count the special tokens before and after a text."""
    count = tokenizer.num_special_tokens_to_add(pair=False)
    ids, own = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (True, False))
    first = next((place for place in range(count) if ids[place : place + len(own)] == own), count)
    return first, count - first


def _pieces(length: int, size: int, long_texts: str) -> list[Sequence[int]]:
    """List the tokens of each piece of a text of ``length`` tokens, for pieces of at most ``size``."""
    if length <= size:
        return [range(length)]
    if long_texts == HEAD_TAIL:
        head = int(size * _HEAD_FRACTION)
        return [[*range(head), *range(length - (size - head), length)]]
    overlap = int(size * _OVERLAP)
    count = -(-(length - overlap) // (size - overlap))
    starts = [round(number * (length - size) / (count - 1)) for number in range(count)]
    return [range(start, start + size) for start in starts]
