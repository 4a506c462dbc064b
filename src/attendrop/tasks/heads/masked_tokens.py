"""Tokens for masked language models: rows of them, which are hidden, and what fills them in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from attendrop.attribution.label_positions import IGNORED
from attendrop.tasks.heads.base import Tokenizer
from attendrop.tasks.long_texts import special_tokens


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


def token_rows(texts: Sequence[str], tokenizer: Tokenizer, max_length: int | None, *, pack: bool) -> list[TokenRow]:
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
    streams = list(_tokens(texts, tokenizer))
    if pack:
        separator = [] if tokenizer.sep_token_id is None else [(tokenizer.sep_token_id, True)]
        joined = chain.from_iterable([*separator, *tokens] for tokens in streams if tokens)
        streams = [list(joined)[len(separator) :]]
    found = []
    for tokens in streams:
        size = len(tokens) if max_length is None else max_length - before - after
        for start in range(0, len(tokens), max(1, size)) if pack else (0,):
            kept = tokens[start : start + size]
            words = list(accumulate((begins for _, begins in kept[1:]), initial=0))[: len(kept)]
            ids = [*first, *(token for token, _ in kept), *last]
            found.append(TokenRow(ids, [0] * before + words + [0] * after, not pack and len(tokens) > size))
    return found


def _tokens(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[tuple[int, bool]]]:
    """Yield the tokens of each text: their ids, and whether each begins a word."""
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    for row, ids in enumerate(encoded["input_ids"]):
        words = encoded.word_ids(row) if encoded.is_fast else range(len(ids))
        yield [(token, word != before) for token, word, before in zip(ids, words, [None, *words], strict=False)]


# Of the chosen tokens, the fractions that become the mask token and a random one; the others stay as they are.
_MASKED, _REPLACED = 0.8, 0.1


class TokenMasks:
    """Chooses tokens to predict, and changes most of them: 80 % to the mask token, 10 % to a random token.

    What is chosen is a function of a key and the row's own tokens: neither of padding, nor of the other rows, nor of
    the place of the row in a file. Rows with the same tokens are masked alike. Special tokens, among them unknown ones,
    are neither chosen nor drawn.

    Args:
        tokenizer: Tokenizer with a mask token.
        probability: Probability of each token, or word, to be chosen. If none is, one of them is chosen.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        self.probability = probability
        self.mask_token: int = tokenizer.mask_token_id
        self._special = np.array(tokenizer.all_special_ids)
        self._vocabulary = np.setdiff1d(list(tokenizer.get_vocab().values()), self._special)

    def any_to_choose(self, ids: Sequence[int]) -> bool:
        """Tell whether a row has a token that is not special."""
        return not np.isin(ids, self._special).all()

    def mask(self, ids: Sequence[int], key: str, words: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Mask a row.

        Args:
            ids: Token ids of the row, without padding.
            key: Of the random numbers.
            words: The word of each token, to choose whole words; None chooses tokens.

        Returns:
            The ids with masks, and the labels: the ids of the chosen tokens, and -100 elsewhere.
        """
        row = np.asarray(ids, dtype=np.int64)
        digest = hashlib.blake2b(key.encode() + row.astype("<i8").tobytes(), digest_size=16).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        candidates = ~np.isin(row, self._special)
        units = np.arange(len(row)) if words is None else np.asarray(words)
        draws = random.random(int(units.max(initial=0)) + 1)[units]
        least = draws[candidates].min(initial=1)  # one at least is chosen
        chosen = candidates & ((draws < self.probability) | (draws == least))
        kinds, others = random.random(len(row)), random.choice(self._vocabulary, len(row))
        masked = np.where(chosen & (kinds < _MASKED), self.mask_token, row)
        masked = np.where(chosen & (kinds >= _MASKED) & (kinds < _MASKED + _REPLACED), others, masked)
        return masked.tolist(), np.where(chosen, row, IGNORED).tolist()


def unmasked(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Return the token ids of a row before it was masked."""
    return np.where(np.asarray(labels) == IGNORED, ids, labels).tolist()  # type: ignore[no-any-return]


# Begins a token of WordPiece that continues a word.
_CONTINUES = "##"


def shown_token(token: int, tokenizer: Tokenizer) -> str:
    """Write a token without the spaces around it; the marker of one that continues a word is kept."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    return name if name.startswith(_CONTINUES) else str(tokenizer.decode([token])).strip()


def fill(text: str, tokens: Sequence[str | None], mask: str) -> str:
    """Replace the masks of a text, in their order, by tokens; None leaves a mask as it is."""
    filled, *others = text.split(mask)
    for token, following in zip(tokens, others, strict=True):
        if token is not None and token.startswith(_CONTINUES):
            filled = filled.rstrip() + token.removeprefix(_CONTINUES) + following
        else:
            filled += (mask if token is None else token) + following
    return filled
