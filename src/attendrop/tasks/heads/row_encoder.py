"""How rows of a kind of task become inputs and targets of a model, and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.long_texts import DOCUMENT, of_documents
from attendrop.tasks.token_columns import TokenColumn, align
from attendrop.tasks.tokenizers import length_limit

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

Columns = Mapping[str, list[Any]]


class RowEncoder(ABC):
    """Tokenization of rows, and the targets, masks and batches that are made of them.

    Attributes:
        inputs: Columns of a data set that the head can read.
        training_columns: Columns of encoded rows that :meth:`training_collator` reads, and no model.
        no_token_columns: Why columns with an entry for each token are refused, a part of a sentence, if they are.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    training_columns: ClassVar[tuple[str, ...]] = ()
    no_token_columns: ClassVar[str] = ""

    @classmethod
    def inputs_in(cls, columns: Collection[str]) -> list[str]:
        """List the columns that the head reads, of those that rows have."""
        return [name for name in cls.inputs if name in columns]

    @classmethod
    def joins_pairs(cls, columns: Collection[str]) -> bool:
        """Tell whether rows with these columns are tokenized as pairs of texts."""
        return len(cls.inputs_in(columns)) > 1

    def without_answers(self, columns: Columns) -> dict[str, Any]:
        """Return rows without what is to be predicted."""
        return {name: values for name, values in columns.items() if name != "label"}

    def training_rows(self, rows: Dataset) -> Dataset:
        """Return training rows as :meth:`tokenize` is to see them."""
        return rows

    def tokenize(self, columns: Columns, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; with ``max_length=None``, without truncation."""
        texts = [columns[name] for name in self.inputs_in(columns)]
        limits: dict[str, Any] = (
            {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}
        )
        encoding: BatchEncoding = tokenizer(*texts, **limits)
        return encoding

    def length_limit(self, tokenizer: PreTrainedTokenizerBase, max_length: int, columns: Collection[str]) -> int:
        """Return the number of tokens to which rows with these columns are truncated, given the one that was asked for.

        Raises:
            AttendropError: It leaves no room for text.
        """
        return length_limit(tokenizer, max_length, pair=self.joins_pairs(columns))

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """Return the length of each row, in tokens."""
        return [len(ids) for ids in encoded["input_ids"]]

    def truncated(self, rows: Dataset, lengths: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> int:
        """Count the rows that were truncated to a limit, given their lengths: those that fill it and are longer."""
        full = [row for row, length in enumerate(lengths) if length >= limit]
        if not full:
            return 0
        whole = self.tokenize(rows.select(full).to_dict(), tokenizer, None)
        return sum(length > limit for length in self.lengths(whole))

    def input_report(
        self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, limit: int
    ) -> dict[str, int]:
        """Count what encoding lost, for the report on data.

        Args:
            rows: The rows.
            encoded: The same rows, encoded.
            tokenizer: The tokenizer.
            limit: Length to which rows were truncated.

        Returns:
            ``truncated`` (rows longer than the limit) and ``unknown`` (see :meth:`unknown_rows`); empty for inputs that
            can be neither.
        """
        return {
            "truncated": self.truncated(rows, of_documents(encoded["length"], encoded), tokenizer, limit),
            "unknown": self.unknown_rows(encoded, tokenizer),
        }

    def unknown_rows(self, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> int:
        """Count the rows that have no token known to the tokenizer."""
        special, rows = set(tokenizer.all_special_ids), self.row_numbers(encoded)
        known = {row for row, ids in zip(rows, self.token_ids(encoded), strict=True) if set(ids) - special}
        return len(set(rows) - known)

    def row_numbers(self, encoded: Mapping[str, Any]) -> Sequence[Any]:
        """Return for each encoded row the number of its row, of which there are several where texts are in windows."""
        return encoded[DOCUMENT][:] if DOCUMENT in encoded else range(len(encoded["length"]))

    def token_ids(self, encoded: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """Return all token ids of each row."""
        return encoded["input_ids"]  # type: ignore[no-any-return]

    def align(
        self,
        token_columns: Sequence[TokenColumn],
        columns: Columns,
        encoded: BatchEncoding,
        tokenizer: PreTrainedTokenizerBase,
    ) -> dict[str, list[Any]]:
        """Make columns with an entry for each token of the encoded rows, from those of the rows.

        Args:
            token_columns: The columns.
            columns: Rows, with these columns and "place".
            encoded: The same rows, tokenized and truncated.
            tokenizer: The tokenizer.

        Raises:
            AttendropError: A row has more or fewer entries than its whole input has tokens, or no such column is read.
        """
        if self.no_token_columns:
            raise AttendropError(
                f"The column {token_columns[0].name!r} has entries for the tokens of {self.no_token_columns}; "
                "use a method without such a column."
            )
        return align(token_columns, columns, self.tokenize(columns, tokenizer, None), encoded, tokenizer)

    @abstractmethod
    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
        """Make the ``labels`` of the model, without padding."""

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of encoded rows: tensors, padded to the longest."""
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    def training_collator(
        self, collate: Callable[[list[Any]], Any], tokenizer: PreTrainedTokenizerBase, seed: int
    ) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of training rows; the trainer sets its ``epoch``, if it has one.

        Args:
            collate: That of :meth:`collator`.
            tokenizer: The tokenizer.
            seed: Seed of the training.
        """
        return collate
