"""Lists of words and of their tags: in files, at the tokens of a model, and in arrays with an entry for each row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
# Label of tokens that are not scored, and position of words without a token.
IGNORED, NO_TOKEN = -100, -1


def json_list(text: str) -> list[Any] | None:
    """Read a JSON list; None if a text is none."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def read_list(value: Any) -> list[str] | None:
    """Read words or tags, a missing one as an empty text; return None if a value is neither a list nor a text."""
    found = value if isinstance(value, list) else json_list(value) if isinstance(value, str) else None
    if found is None:
        return value.split() if isinstance(value, str) else None
    return ["" if item is None else str(item) for item in found]


def list_problem(items: list[str] | None, what: str) -> str | None:
    """Describe what is wrong with a list of words or tags, as of :func:`read_list`, or return None."""
    if not items:
        return f"there is no {what}; give a list of {what}s, or {what}s with spaces between them"
    empty = [number for number, item in enumerate(items, start=1) if not item.strip()]
    return f"{what} {empty[0]} of {len(items)} is empty" if empty else None


def first_tokens(word_of_token: Sequence[int | None], count: int) -> list[int]:
    """Return the position of the first token of each word; -1 for one without tokens."""
    starts = [NO_TOKEN] * count
    for token, word in reversed(list(enumerate(word_of_token))):
        if word is not None:
            starts[word] = token
    return starts


def labelled(labels: Array) -> Array:
    """Return the positions of labels that are scored."""
    found: Array = np.flatnonzero(np.asarray(labels) != IGNORED)
    return found


def logits_at(logits: Array, starts: Array) -> Array:
    """Return the logits at the first token of each word; minus infinity for a word without."""
    return np.where((starts == NO_TOKEN)[:, None], -np.inf, logits[starts])


def joined_logits(parts: Sequence[Any]) -> Array:
    """Concatenate logits ``(rows, tokens, outputs)`` of batches, padded with zeros to the longest."""
    arrays = [np.asarray(part) for part in parts]
    longest = max(array.shape[1] for array in arrays)
    padding = [((0, 0), (0, longest - array.shape[1]), (0, 0)) for array in arrays]
    return np.concatenate([np.pad(array, pad) for array, pad in zip(arrays, padding, strict=True)])


def row_array(rows: Sequence[Any]) -> Array:
    """Make an array of objects, one for each row."""
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):  # not at once: rows of the same length would become a dimension
        found[number] = row
    return found


def flat(rows: Iterable[Any]) -> Array:
    """Concatenate the numbers of all rows."""
    return np.fromiter(chain(*rows), dtype=int)
