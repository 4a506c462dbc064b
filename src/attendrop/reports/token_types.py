"""Types of tokens: special ones, punctuation, words and pieces of words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

SPECIAL, PUNCTUATION, WORD, PIECE = "special", "punctuation", "word", "word piece"
TOKEN_TYPES = (SPECIAL, PUNCTUATION, WORD, PIECE)
# How vocabularies mark a token: WordPiece those that continue a word, SentencePiece and byte-level BPE those that
# begin one.
_CONTINUES, _BEGINS = "##", ("▁", "Ġ")


class TokenTypes:
    """Types of the tokens of a tokenizer.

    The type of a token follows from its text and from the token before it: ``"special"`` (also padding, not the token
    for unknown words), ``"punctuation"`` (punctuation marks and symbols), ``"word"`` (a whole word, or its first
    piece) and ``"word piece"`` (a further piece). A tokenizer whose vocabulary marks neither beginnings nor
    continuations of words has no pieces.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self._known: dict[int, tuple[str, str]] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the type of each token of a text, one of ``TOKEN_TYPES``."""
        found: list[str] = []
        for number in ids:
            token, text = self._token(number)
            if number in self._special:
                found.append(SPECIAL)
            elif text and all(unicodedata.category(character)[0] in "PS" for character in text):
                found.append(PUNCTUATION)
            elif self._continues(token, found[-1] if found else SPECIAL):
                found.append(PIECE)
            else:
                found.append(WORD)
        return found

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens as text that people read: without the marks of words' beginnings."""
        return [self._token(number)[1] or self._token(number)[0] for number in ids]

    @cached_property
    def _marks(self) -> str:
        """How the vocabulary marks words: ``"continues"``, ``"begins"`` or not at all, ``""``."""
        vocabulary = self.tokenizer.get_vocab()
        begin = sum(token.startswith(_BEGINS) for token in vocabulary)
        # RoBERTa has a few tokens of number signs alone, and vocabularies of characters have those of the other marks.
        continue_ = sum(token.startswith(_CONTINUES) and len(token) > len(_CONTINUES) for token in vocabulary)
        return "continues" if continue_ > begin else "begins" if begin else ""

    def _continues(self, token: str, before: str) -> bool:
        if self._marks == "begins":
            return before in (WORD, PIECE) and not token.startswith(_BEGINS)
        return self._marks == "continues" and token.startswith(_CONTINUES)

    def _token(self, number: int) -> tuple[str, str]:
        """Return a token as the vocabulary has it, and its text, empty if it has none of its own."""
        if number not in self._known:
            token = str(self.tokenizer.convert_ids_to_tokens(number))
            text = token if token.startswith(_CONTINUES) else str(self.tokenizer.decode([number])).strip()
            # A token may be a part of a character: it has no text.
            self._known[number] = token, "" if "\N{REPLACEMENT CHARACTER}" in text else text
        return self._known[number]
