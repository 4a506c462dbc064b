"""What a kind of task reads from files: which columns, what their values may be, and the labels that they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np

from attendrop.errors import AttendropError
from attendrop.tasks.table import Table
from attendrop.tasks.values import text_problem, value_problem


@dataclass(frozen=True)
class RowReader(ABC):
    """Reader of the rows of files: the part of a head that data need.

    A *problem* is what is wrong with a value of a file: a sentence without its full stop.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        unknown_names: Labels of evaluation data that are none of these, so that the model cannot predict them; their
            ids follow.
    """

    label_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()

    kind: ClassVar[str]  # ``Task.kind``
    label_type: ClassVar[str]  # value of ``--label-type``
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # columns of a data set that the head can read
    input_name: ClassVar[str] = "text"  # what an input is called in messages
    least_inputs: ClassVar[int] = 1  # of ``--text-columns``, of which `read_texts` makes the inputs
    most_inputs: ClassVar[int] = 2
    needs_labels: ClassVar[bool] = True  # whether rows for training and scoring need a label
    keeps_unknown: ClassVar[bool] = False  # whether there can be `unknown_names`

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of labels, in the order of their ids: those of the classes, and the unknown ones."""
        return (*self.label_names, *self.unknown_names)

    def with_unknown(self, labels: Sequence[Any]) -> Self:
        """Return the head with those of some labels that it does not know among its ``unknown_names``.

        Args:
            labels: Values of a file, without a :meth:`value_problem`.

        Raises:
            AttendropError: There can be none in this kind of task.
        """
        if not self.keeps_unknown:
            raise AttendropError(
                f"unknown-labels 'wrong' is for classes and for tags of words; omit it for {self.labels_are}."
            )
        new = dict.fromkeys(chain.from_iterable(map(self.unknown_labels, labels)))
        return replace(self, unknown_names=(*self.unknown_names, *new)) if new else self

    def unknown_counts(self, labels: Sequence[Any] | np.ndarray[Any, Any]) -> dict[str, int]:
        """Count the classes, or tags of words, that the model cannot predict, by name."""
        counts = Counter(chain.from_iterable(map(np.atleast_1d, labels if self.unknown_names else ())))
        named = enumerate(self.unknown_names, start=len(self.label_names))
        return {name: counts[number] for number, name in named if counts[number]}

    @property
    @abstractmethod
    def predicts(self) -> str:
        """What the model predicts, such as "2 classes" or "a number"."""

    @property
    def labels_are(self) -> str:
        """What the labels are, such as "numbers to predict"."""
        return self.predicts

    @classmethod
    def inputs_in(cls, columns: Collection[str]) -> list[str]:
        """List the columns that the head reads, of those that rows have."""
        return [name for name in cls.inputs if name in columns]

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """With label type "auto", tell whether the texts of the first row of a file may be of this kind."""
        return False

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """With label type "auto", tell whether the first label of a file may be of this kind."""
        return True

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """With label type "auto", tell whether all labels of the files are of this kind.

        Args:
            tables: As for :meth:`from_labels`; the head :meth:`may_read` the texts and :meth:`may_label`.
            column: As for :meth:`from_labels`.

        Raises:
            AttendropError: It is unclear.
        """
        return True

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        """Return the columns of a data set that are made of this number of text columns of a file."""
        return cls.inputs[:text_columns]

    @classmethod
    def located(cls, table: Table, columns: Sequence[str]) -> Table:
        """Return the table with paths of input files, if it has any, that can be opened from the working directory.

        Args:
            table: Rows of a file.
            columns: Its text columns, some of which may be missing.
        """
        return table

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Describe what is wrong with a text of a file, in the text column of this number, or return None."""
        return text_problem(value)

    @classmethod
    def texts_problem(cls, texts: Sequence[Any]) -> str | None:
        """Describe what is wrong with the texts of a row, each without a :meth:`text_problem`, or return None."""
        return None

    @classmethod
    def leaves_out(cls, texts: Sequence[Any]) -> bool:
        """Tell whether a row with these texts, such as an empty line, is left out of training and scoring."""
        return False

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Any]:
        """Convert the texts of a row, without a :meth:`texts_problem`, to the values of :meth:`inputs_of`."""
        return list(texts)

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Describe what is wrong with a label, independent of the classes, or return None."""
        return value_problem(value)

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head for the labels in files; by default, any labels will do.

        Args:
            tables: By split: "train", "dev" or both.
            column: Column of the labels; none has a :meth:`value_problem`.
            asked: Whether the user said what the labels are.

        Raises:
            AttendropError: No model can be trained on these labels.
        """
        return cls()

    def unknown_labels(self, value: Any) -> list[str]:
        """List the names in a label without a :meth:`value_problem` that the head does not know."""
        return []

    def label_problem(self, value: Any) -> str | None:
        """Describe what is wrong with a label that has no :meth:`value_problem`, or return None."""
        return None

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        """Describe why a row's inputs, as :meth:`read_texts` returns them, and its label do not fit, or return None."""
        return None

    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Convert values of a file that have no :meth:`label_problem` to labels."""
        return list(values)
