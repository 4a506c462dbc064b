"""Tokenizers and tokenization: loading, padding token, maximum length, and the columns that models read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import try_to_load_from_cache
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.support.models import position_limit
from attendrop.tasks.long_texts import DOCUMENT

# Default of runs, and of models that were not made by a run.
DEFAULT_MAX_LENGTH = 128
_VOCABULARY = "tokenizer.json"
# What SentencePiece writes for a space; a token of its own before a word that it does not know.
_SPACE = "▁"
# Vocabularies that transformers finds although the class of a tokenizer does not name them.
_ALSO_READ = ("tokenizer.model", "spm.model", "tiktoken.model", "tekken.json")


def load_tokenizer(place: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, given its folder or hub id, without running code of its repository.

    Raises:
        AttendropError: The model has no vocabulary; transformers would make up one of a few special tokens.
    """
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    names = [_VOCABULARY, *(name for role, name in found.vocab_files_names.items() if "vocab" in role)]
    folder = Path(place)

    def is_there(name: str) -> bool:
        """Look in the folder, or, since the tokenizer was loaded from the hub, in the cache."""
        return (folder / name).is_file() if folder.is_dir() else isinstance(try_to_load_from_cache(place, name), str)

    # A class without such files reads bytes or characters.
    if found.vocab_files_names and not any(map(is_there, (*names, *_ALSO_READ))):
        raise AttendropError(
            f"The model in {place!r} has no tokenizer: there is no {' or '.join(names)}. Copy all files that it "
            "was saved with."
        )
    return found


def fit_tokenizer(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Adapt a model and its tokenizer to each other.

    A tokenizer without a padding token, as GPT-2 and Llama have, pads with its end-of-sequence token; its maximum
    length, which many do not have, is at most the number of the model's positions. The model's configuration gets the
    padding token if it has none; ``name`` is for messages.

    Raises:
        AttendropError: The tokenizer has neither token, or more tokens than the model.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise AttendropError(f"The tokenizer of {name!r} has neither a padding nor an end-of-sequence token.")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.get_text_config().pad_token_id is None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    largest, embedding = max(tokenizer.get_vocab().values(), default=0), model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and largest >= embedding.num_embeddings:
        raise AttendropError(
            f"The tokenizer of {name!r} has {largest + 1} tokens, its model only {embedding.num_embeddings}: "
            "they do not belong together."
        )
    if (limit := position_limit(model)) is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)


def unknown_rows(encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the rows without a token that the tokenizer knows, of those that :func:`encode_columns` returned."""
    numbers = encoded[DOCUMENT][:] if DOCUMENT in encoded else range(len(encoded["length"]))
    unknown, known = {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(_SPACE)}, set()
    for row, ids in zip(numbers, encoded["input_ids"], strict=True):
        nested = bool(ids) and isinstance(ids[0], list)  # of choices
        if set(chain(*ids) if nested else ids) - unknown:
            known.add(row)
    return len(set(numbers) - known)


def columns_of(rows: Dataset) -> dict[str, Any]:
    """Return the columns of a data set, each of which is read when it is indexed."""
    return {name: rows[name] for name in rows.column_names}
