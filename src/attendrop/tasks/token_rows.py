"""Rows of tokens for pre-training: single texts that are cut off, or texts joined and cut into rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attendrop.tasks.long_texts import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenRow:
    """Row of tokens.

    Attributes:
        ids: Their ids, with the special tokens of a text.
        words: The number of the word of each, from 0; of special tokens, 0.
        cut: Whether the text was cut off.
    """

    ids: list[int]
    words: list[int]
    cut: bool


def token_rows(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int | None, *, pack: bool
) -> list[TokenRow]:
    """Tokenize texts, each to a row.

    Args:
        texts: The texts.
        tokenizer: The tokenizer. If it does not tell words (one that is not fast), each token is a word.
        max_length: In tokens, including special tokens; None: without a limit.
        pack: Join the texts, with the tokenizer's separator between them if it has one, and cut them into rows of
            ``max_length``; the last is shorter.
    """
    before, after = special_tokens(tokenizer)
    frame = tokenizer("a")["input_ids"]
    first, last = frame[:before], frame[len(frame) - after :]
    streams = _tokens(texts, tokenizer)
    if pack:
        streams = [_joined(streams, tokenizer.sep_token_id)]
    found = []
    for ids, words in streams:
        size = len(ids) if max_length is None else max_length - before - after
        for start in range(0, len(ids), max(1, size)) if pack else (0,):
            kept = slice(start, start + size)
            numbers = np.unique(words[kept], return_inverse=True)[1].tolist()
            row = [*first, *ids[kept], *last]
            found.append(TokenRow(row, [0] * before + numbers + [0] * after, not pack and len(ids) > size))
    return found


_Stream = tuple[list[int], list[int]]


def _tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[_Stream]:
    """Return the ids of each text, and the word of each token."""
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    found = []
    for row, ids in enumerate(encoded["input_ids"]):
        words = encoded.word_ids(row) if encoded.is_fast else range(len(ids))
        found.append((ids, [-1 if word is None else word for word in words]))
    return found


def _joined(streams: Sequence[_Stream], separator: int | None) -> _Stream:
    ids: list[int] = []
    words: list[int] = []
    for of_text, words_of_text in streams:
        if ids and of_text and separator is not None:
            ids.append(separator)
            words.append(len(ids))
        first = len(ids) + 1  # greater than the number of any word before
        words += [first + word for word in words_of_text]
        ids += of_text
    return ids, words
