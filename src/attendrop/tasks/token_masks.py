"""Masks of tokens for masked language models (Devlin et al., 2019), which follow from a key and a row alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attendrop.tasks.word_lists import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float) -> None:
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
