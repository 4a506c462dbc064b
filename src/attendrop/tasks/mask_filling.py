"""Texts with mask tokens, and the tokens that fill them, as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Begins a token of WordPiece that continues a word.
_CONTINUES = "##"


def shown_token(token: int, tokenizer: PreTrainedTokenizerBase) -> str:
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
