"""Tokenizers: loading, padding token, and maximum length."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.support.models import position_limit

# Default of runs, and of models that were not made by a run.
DEFAULT_MAX_LENGTH = 128
_VOCABULARY = "tokenizer.json"
# Vocabularies that transformers finds although the class of a tokenizer does not name them.
_ALSO_READ = ("tokenizer.model", "spm.model", "tiktoken.model", "tekken.json")


def load_tokenizer(place: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, given its folder or hub id, without running code of its repository.

    Raises:
        AttendropError: The model has no vocabulary; transformers would make up one of a few special tokens.
    """
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    names = [_VOCABULARY, *(name for role, name in found.vocab_files_names.items() if "vocab" in role)]
    # A class without such files reads bytes or characters.
    if found.vocab_files_names and not any(_is_there(place, name) for name in (*names, *_ALSO_READ)):
        raise AttendropError(
            f"The model in {place!r} has no tokenizer: there is no {' or '.join(names)}. Copy all files that it "
            "was saved with."
        )
    return found


def _is_there(place: str, name: str) -> bool:
    """Return whether a model has a file: in its folder, or, since it was loaded from the hub, in the cache."""
    folder = Path(place)
    return (folder / name).is_file() if folder.is_dir() else isinstance(try_to_load_from_cache(place, name), str)


def set_padding(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer without a padding token, as GPT-2 and Llama have, pad with its end-of-sequence token.

    The model's configuration gets the padding token if it has none; ``name`` is for messages.

    Raises:
        AttendropError: The tokenizer has neither token, or more tokens than the model.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise AttendropError(f"The tokenizer of {name!r} has neither a padding nor an end-of-sequence token.")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.get_text_config().pad_token_id is None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    largest = max(tokenizer.get_vocab().values(), default=0)
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and largest >= embedding.num_embeddings:
        raise AttendropError(
            f"The tokenizer of {name!r} has {largest + 1} tokens, its model only {embedding.num_embeddings}: "
            "they do not belong together."
        )


def limit_to_positions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Lower the maximum length of a tokenizer to the number of positions of its model; many tokenizers have none."""
    limit = position_limit(model)
    if limit is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)


def length_limit(tokenizer: PreTrainedTokenizerBase, max_length: int, *, pair: bool) -> int:
    """Lower ``max_length``, in tokens, to the limit of the tokenizer, with a warning unless it is the default.

    Raises:
        AttendropError: It leaves no room for text.
    """
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= special:
        raise AttendropError(
            f"a maximum length of {max_length} leaves no room for text: the tokenizer adds {special} special tokens; "
            "raise it."
        )
    if max_length > tokenizer.model_max_length:
        limit = tokenizer.model_max_length
        if max_length != DEFAULT_MAX_LENGTH:
            warnings.warn(f"the maximum length {max_length} was lowered to the model's {limit} tokens.", stacklevel=3)
        return limit
    return max_length
