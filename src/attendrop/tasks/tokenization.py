"""Tokenizers, and texts that are longer than a model reads: their first tokens, first and last, or windows over all.

Where a text is read in several windows, the encoded rows have the column "document", the number of the text of each.
PyTorch is not imported until a tokenizer is loaded, for options name what is here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Default of runs, and of models that were not made by a run.
DEFAULT_MAX_LENGTH = 128
HEAD, HEAD_TAIL, WINDOWS = LONG_TEXTS = ("head", "head+tail", "windows")
# Column with the number of the text to which an encoded row belongs.
DOCUMENT = "document"


def load_tokenizer(place: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, given its folder or hub id, without running code of its repository.

    Raises:
        AttendropError: The model has no vocabulary; transformers would make up one of a few special tokens.
    """
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    names = ["tokenizer.json", *(name for role, name in found.vocab_files_names.items() if "vocab" in role)]
    # Vocabularies that transformers finds although the class of a tokenizer does not name them.
    others = ("tokenizer.model", "spm.model", "tiktoken.model", "tekken.json")
    folder = Path(place)
    there = (  # in the folder, or, since the tokenizer was loaded from the hub, in the cache
        (folder / name).is_file() if folder.is_dir() else isinstance(try_to_load_from_cache(place, name), str)
        for name in (*names, *others)
    )  # fmt: skip
    if found.vocab_files_names and not any(there):  # a class without such files reads bytes or characters
        raise AttendropError(
            f"The model in {place!r} has no tokenizer: there is no {' or '.join(names)}. Copy all files that it "
            "was saved with."
        )
    return found


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer, its vocabulary as it was loaded: BERTweet's class reads otherwise what it writes itself."""
    tokenizer.save_pretrained(folder)
    names = {} if tokenizer.is_fast else tokenizer.vocab_files_names
    for role, name in names.items():
        loaded = getattr(tokenizer, role, None)
        if isinstance(loaded, str) and Path(loaded).is_file() and (folder / name).is_file():
            shutil.copyfile(loaded, folder / name)


def fit_tokenizer(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Adapt a model and its tokenizer to each other.

    A tokenizer without a padding token pads with its end-of-sequence token; its maximum length is at most the number of
    the model's positions. The model's configuration gets the padding token if it has none, and that of a decoder also
    in place of another, since classifiers look there for the last token of a text. XLNet's read the last column, so it
    is padded on the left. ``name`` is for messages.

    Raises:
        AttendropError: The tokenizer has neither token, or more tokens than the model.
    """
    from torch import nn

    from attendrop.support.models import position_limit
    from attendrop.tasks.types.model_classes import is_encoder

    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise AttendropError(f"The tokenizer of {name!r} has neither a padding nor an end-of-sequence token.")
        tokenizer.pad_token = tokenizer.eos_token
    config = model.config.get_text_config()
    if config.pad_token_id is None or not (is_encoder(config) or config.is_encoder_decoder):
        config.pad_token_id = tokenizer.pad_token_id
    if getattr(getattr(model, "sequence_summary", None), "summary_type", None) == "last":
        tokenizer.padding_side = "left"
    largest, embedding = max(tokenizer.get_vocab().values(), default=0), model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and largest >= embedding.num_embeddings:
        raise AttendropError(
            f"The tokenizer of {name!r} has {largest + 1} tokens, its model {embedding.num_embeddings}; use its own."
        )
    if (limit := position_limit(model)) is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)


def unknown_rows(encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the rows without a token that the tokenizer knows, of those that ``encode_columns`` returned."""
    numbers = encoded[DOCUMENT][:] if DOCUMENT in encoded else range(len(encoded["length"]))
    # SentencePiece writes a space as a token of its own before a word that it does not know.
    unknown, known = {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids("▁")}, set()
    is_word: dict[int, bool] = {}
    for row, ids in zip(numbers, encoded["input_ids"], strict=True):
        nested = bool(ids) and isinstance(ids[0], list)  # of choices
        own = set(chain(*ids) if nested else ids)
        found = own - unknown
        if tokenizer.unk_token_id in own:  # full stops beside unknown words are no text
            for token in found - is_word.keys():
                is_word[token] = any(map(str.isalnum, str(tokenizer.convert_ids_to_tokens(token))))
            found = {token for token in found if is_word[token]}
        if found:
            known.add(row)
    return len(set(numbers) - known)


def columns_of(rows: Dataset) -> dict[str, Any]:
    """Return the columns of a data set, each of which is read when it is indexed."""
    return {name: rows[name] for name in rows.column_names}


# Long texts -----------------------------------------------------------------------------------------------------------


def split_long(
    whole: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, max_length: int, long_texts: str
) -> dict[str, list[Any]]:
    """Cut encoded texts, or split them into windows of ``max_length`` tokens, each with its special tokens.

    ``whole`` has the columns of the encoded texts, not truncated, with an entry for each token. ``"head+tail"`` keeps a
    quarter of ``max_length`` from the beginning and the rest from the end (Sun et al., 2019); ``"windows"`` keeps all
    tokens: windows are spread evenly and overlap by a quarter at least.

    Returns:
        The columns, with a row for each piece, and "document".
    """
    special = tokenizer.num_special_tokens_to_add(pair=False)
    ids, own = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (True, False))
    first = next((place for place in range(special) if ids[place : place + len(own)] == own), special)
    last, size = special - first, max_length - special
    rows: dict[str, list[Any]] = {name: [] for name in (*whole, DOCUMENT)}
    for number, ids in enumerate(whole["input_ids"]):
        length = len(ids) - special
        pieces: list[Sequence[int]] = [range(length)]
        if length > size and long_texts == HEAD_TAIL:
            head = int(size * 0.25)  # 128 of 510 tokens in Sun et al. (2019)
            pieces = [[*range(head), *range(length - (size - head), length)]]
        elif length > size:
            overlap = int(size * 0.25)
            count = -(-(length - overlap) // (size - overlap))
            starts = [round(number * (length - size) / (count - 1)) for number in range(count)]
            pieces = [range(start, start + size) for start in starts]
        for tokens in pieces:
            kept = [*range(first), *(first + token for token in tokens), *range(len(ids) - last, len(ids))]
            for name, values in whole.items():
                rows[name].append([values[number][token] for token in kept])
            rows[DOCUMENT].append(number)
    return rows


def first_rows(documents: Sequence[int]) -> list[int]:
    """Return the first row of each text, given the number of the text of each row, in ascending order."""
    return [row for row, number in enumerate(documents) if not row or number != documents[row - 1]]


def texts_of(rows: Dataset) -> list[range]:
    """Return the rows of each text in an encoded data set; one, unless the set has the column "document"."""
    starts = first_rows(rows[DOCUMENT][:]) if DOCUMENT in rows.column_names else list(range(len(rows)))
    return [range(*ends) for ends in pairwise([*starts, len(rows)])]


def document_means(raw: np.ndarray[Any, Any], encoded: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Average the rows of each text; rows that are whole texts stay as they are."""
    if DOCUMENT not in encoded:
        return raw
    import numpy as np

    starts = first_rows(encoded[DOCUMENT][:])
    counts = np.diff([*starts, len(raw)]).reshape(-1, *[1] * (raw.ndim - 1))
    means: np.ndarray[Any, Any] = np.add.reduceat(raw, starts, axis=0) / counts
    return means.astype(raw.dtype)


def of_documents(values: Sequence[Any], encoded: Mapping[str, Any]) -> Sequence[Any]:
    """Return the value of each text, of values that all rows of a text have."""
    return values if DOCUMENT not in encoded else [values[row] for row in first_rows(encoded[DOCUMENT][:])]
