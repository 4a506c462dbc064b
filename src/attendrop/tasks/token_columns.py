"""Columns with numbers for each token: reading, checks against the tokens, truncation with the texts.

They are given by name, with their kinds: "positions" is a list of positions of other tokens, from 0, -1 for none;
"matrix" a list of n lists of n numbers; "numbers" a list of numbers, or such a matrix. There is an entry for each token
of the model's input, including special tokens; if the head reads words, for each word.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.table import Table

_FORMS = {
    "numbers": "a list of numbers, or a list of n lists of n numbers",
    "positions": "a list of whole numbers, such as [-1, 2, 2, -1]",
    "matrix": "a list of n lists of n numbers, such as [[1, 0], [0, 1]]",
}
# Columns of data sets on the way to the model, which cannot be columns for tokens.
TAKEN = (
    *("label", "index", "place", "document", "sha256", "shift_values", "group_values", "word_starts", "word_labels"),
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels", "length"),
)


def numbers_problem(kind: str) -> Callable[[Any], str | None]:
    """Make a function that describes what is wrong with the next value of a column of this kind, or returns None."""
    forms: list[bool] = []  # whether the first row is a plain list: all rows must agree

    def problem(value: Any) -> str | None:
        numbers = _parsed(value)
        fits = {"numbers": _is_list(numbers) or _is_matrix(numbers), "matrix": _is_matrix(numbers)}
        if not fits.get(kind, _is_list(numbers) and all(isinstance(number, int) for number in numbers)):
            return f"{_shown(value)} is not {_FORMS[kind]}"
        if not forms:
            forms.append(_is_list(numbers))
        if _is_list(numbers) != forms[0]:
            return f"{_shown(value)} does not have the form of the rows before"
        wrong = [number for number in numbers if not -1 <= number < len(numbers)] if kind == "positions" else []
        if wrong:
            return f"there is no position {wrong[0]} among {len(numbers)}; count from 0, and write -1 for none"
        return None

    return problem


def read_numbers(table: Table, name: str) -> list[list[Any]]:
    """Read a column without a :func:`numbers_problem`; in CSV and TSV, lists are written as in JSON."""
    return [_parsed(value) for value in table.column(name)]


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _is_list(value: Any) -> bool:
    """Return whether a value is a list of numbers that a tensor can hold."""
    return isinstance(value, list) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < 2**63 for number in value
    )


def _is_matrix(value: Any) -> bool:
    return isinstance(value, list) and all(_is_list(row) and len(row) == len(value) for row in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def align(
    columns: Mapping[str, str],
    rows: Mapping[str, list[Any]],
    whole: BatchEncoding,
    cut: BatchEncoding,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, list[Any]]:
    """Truncate token columns, ``rows``, as the inputs were truncated, from ``whole`` to ``cut``.

    Positions become those in the truncated input, or -1 if the token was removed.

    Raises:
        AttendropError: A row has more or fewer numbers than its whole input has tokens.
    """

    def wrong_length(row: int) -> str:
        ids = whole["input_ids"][row]
        tokens = " ".join(tokenizer.convert_ids_to_tokens(ids[:12])) + (" ..." if len(ids) > 12 else "")
        return (
            f"entries, but the model's input has {len(ids)} tokens: {tokens}; give one for each, special tokens "
            "included."
        )

    kept = [_kept(whole, cut, row, place, tokenizer) for row, place in enumerate(rows["place"])]
    return _at_tokens(columns, rows, kept, list(map(len, whole["input_ids"])), wrong_length)


def spread(
    columns: Mapping[str, str],
    rows: Mapping[str, list[Any]],
    word_of_token: Sequence[Sequence[int | None]],
    num_words: Sequence[int],
) -> dict[str, list[Any]]:
    """Give each token the entries of its word; special tokens, and places of removed words, get -1.

    A position becomes that of the first token of the word there. The further tokens of a word get the position of its
    first token, so that in a tree of words they depend on it.

    ``rows`` has the values of the columns, and "place"; ``word_of_token``, of each row, the word of each token, None
    for special ones; ``num_words`` the number of words of each row before truncation.

    Raises:
        AttendropError: A row has more or fewer entries than words.
    """
    return _at_tokens(
        *(columns, rows, word_of_token, num_words),
        lambda row: f"entries for {num_words[row]} words; give one for each word.",
    )


def _at_tokens(
    columns: Mapping[str, str],
    rows: Mapping[str, list[Any]],
    sources: Sequence[Sequence[int | None]],
    lengths: Sequence[int],
    wrong_length: Callable[[int], str],
) -> dict[str, list[Any]]:
    """Give each token the entries of its source, a word or a token before truncation; -1 where it has none."""
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for row, place in enumerate(rows["place"]):
        for name, kind in columns.items():
            entries = rows[name][row]
            if len(entries) != lengths[row]:
                raise AttendropError(f"the training data, {place}, column {name!r}: {len(entries)} {wrong_length(row)}")
            found[name].append(_of_sources(entries, sources[row], kind))
    return found


def _of_sources(entries: list[Any], sources: Sequence[int | None], kind: str) -> list[Any]:
    if kind == "positions":
        first = {source: token for token, source in reversed(list(enumerate(sources)))}
        return [
            -1 if source is None else first.get(entries[source], -1) if first[source] == token else first[source]
            for token, source in enumerate(sources)
        ]
    if _is_list(entries):
        return [-1 if source is None else entries[source] for source in sources]
    return [[-1 if one is None or other is None else entries[one][other] for other in sources] for one in sources]


def _kept(
    whole: BatchEncoding, cut: BatchEncoding, row: int, place: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Find the positions, in a whole input, of the tokens kept by truncation at one end of each text."""
    length, left = len(whole["input_ids"][row]), len(cut["input_ids"][row])
    if length == left:
        return list(range(length))
    if not whole.is_fast:
        raise AttendropError(
            f"the training data, {place}: the input of {length} tokens is truncated to {left}, and "
            f"{type(tokenizer).__name__} does not report which; set the maximum length to {length}, or shorten the "
            "texts."
        )
    texts, texts_left = whole.sequence_ids(row), cut.sequence_ids(row)
    kept = [position for position, text in enumerate(texts) if text is None]
    for text in (0, 1):
        own = [position for position, of in enumerate(texts) if of == text]
        lost = len(own) - texts_left.count(text)
        kept += own[lost:] if tokenizer.truncation_side == "left" else own[: len(own) - lost]
    return sorted(kept)
