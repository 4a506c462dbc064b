"""Columns with numbers for each token: read from files, checked against the tokens, cut together with the texts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.tasks.table_files import Table

_FORMS = {
    "numbers": "a list of numbers, or of as many lists of as many numbers",
    "positions": "a list of whole numbers, such as [-1, 2, 2, -1]",
    "matrix": "a list of n lists of n numbers, such as [[1, 0], [0, 1]]",
}
# What data sets have on the way to the model.
_TAKEN = (
    *("text", "text_pair", "label", "index", "place"),
    *("input_ids", "attention_mask", "token_type_ids", "labels", "length"),
)


@dataclass(frozen=True)
class TokenColumn:
    """A column of the training data with numbers for each token of the model's input, special tokens included.

    name: the column's; those of texts, labels and tokens in a `Dataset` are refused.
    kind: "positions": a list of the positions of other tokens, counted from 0, -1 for none; "matrix": a list of n lists
        of n numbers; "numbers": a list of any numbers, or such a matrix.
    """

    name: str
    kind: str = "numbers"

    def __post_init__(self) -> None:
        if self.name in _TAKEN:
            raise AttendropError(f"the column {self.name!r} cannot keep its name, which has a meaning here; rename it.")


def numbers_problem(column: TokenColumn) -> Callable[[Any], str | None]:
    """A function that says what is wrong with one value of a column after the other; None if nothing is."""
    forms: list[bool] = []  # whether the first row is a plain list, as then are all

    def problem(value: Any) -> str | None:
        numbers = _parsed(value)
        fits = {"numbers": _is_list(numbers) or _is_matrix(numbers), "matrix": _is_matrix(numbers)}
        if not fits.get(column.kind, _is_list(numbers) and all(isinstance(number, int) for number in numbers)):
            return f"{_shown(value)} is not {_FORMS[column.kind]}"
        if not forms:
            forms.append(_is_list(numbers))
        if _is_list(numbers) != forms[0]:
            return f"{_shown(value)} is not of the form of the rows before"
        wrong = [number for number in numbers if not -1 <= number < len(numbers)] if column.kind == "positions" else []
        if wrong:
            return f"there is no position {wrong[0]} among {len(numbers)}; they count from 0, and -1 is for none"
        return None

    return problem


def read_numbers(table: Table, column: TokenColumn) -> list[list[Any]]:
    """The numbers in a column without a `numbers_problem`; in CSV and TSV, lists are written as in JSON."""
    return [_parsed(value) for value in table.column(column.name)]


def _parsed(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return None
    return value


def _is_list(value: Any) -> bool:
    """Whether it is a list of numbers that a tensor can hold."""
    return isinstance(value, list) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < 2**63 for number in value
    )


def _is_matrix(value: Any) -> bool:
    return isinstance(value, list) and all(_is_list(row) and len(row) == len(value) for row in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def align(
    columns: Sequence[TokenColumn],
    rows: dict[str, list[Any]],
    whole: BatchEncoding,
    cut: BatchEncoding,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, list[Any]]:
    """The numbers of the tokens that are left when inputs are cut.

    Positions become those in the cut input, or -1 where the token is gone.
    rows: the columns, and "place". whole, cut: the inputs, as they are without a maximum length and with it.
    Raises AttendropError for a row that has more or fewer numbers than its whole input has tokens.
    """
    aligned: dict[str, list[Any]] = {column.name: [] for column in columns}
    for row, place in enumerate(rows["place"]):
        ids = whole["input_ids"][row]
        kept = _kept(whole, cut, row, place, tokenizer)
        for column in columns:
            numbers = rows[column.name][row]
            if len(numbers) != len(ids):
                tokens = " ".join(tokenizer.convert_ids_to_tokens(ids[:12])) + (" ..." if len(ids) > 12 else "")
                raise AttendropError(
                    f"the training data, {place}, column {column.name!r}: {len(numbers)} entries, but the model's "
                    f"input has {len(ids)} tokens: {tokens}; give one for each, special tokens included."
                )
            aligned[column.name].append(_left_of(numbers, kept, column))
    return aligned


def _kept(
    whole: BatchEncoding, cut: BatchEncoding, row: int, place: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """The positions, in a whole input, of the tokens that are left: each text has lost some at one end."""
    length, left = len(whole["input_ids"][row]), len(cut["input_ids"][row])
    if length == left:
        return list(range(length))
    if not whole.is_fast:
        raise AttendropError(
            f"the training data, {place}: the input has {length} tokens, of which {left} are left, and "
            f"{type(tokenizer).__name__} does not tell which; give a maximum length of {length}, or shorten the texts."
        )
    texts, texts_left = whole.sequence_ids(row), cut.sequence_ids(row)
    kept = [position for position, text in enumerate(texts) if text is None]
    for text in (0, 1):
        own = [position for position, of in enumerate(texts) if of == text]
        lost = len(own) - texts_left.count(text)
        kept += own[lost:] if tokenizer.truncation_side == "left" else own[: len(own) - lost]
    return sorted(kept)


def _left_of(numbers: list[Any], kept: list[int], column: TokenColumn) -> list[Any]:
    if column.kind == "positions":
        moved = {before: after for after, before in enumerate(kept)}
        return [moved.get(numbers[position], -1) for position in kept]
    if _is_list(numbers):
        return [numbers[position] for position in kept]
    return [[numbers[position][other] for other in kept] for position in kept]
