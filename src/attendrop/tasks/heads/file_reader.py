"""What a kind of task reads from files: texts, or what takes their place, and labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from attendrop.tasks.label_column import text_problem, value_problem
from attendrop.tasks.table import Table


class FileReader(ABC):
    """Which files are of a kind of task, what is wrong with their values, and what these become.

    Attributes:
        input_name: What an input is called in messages.
        least_inputs: Least number of ``--text-columns``, of which :meth:`read_texts` makes the inputs.
        most_inputs: Greatest number of those.
        needs_labels: Whether rows for training and scoring need a label.
    """

    input_name: ClassVar[str] = "text"
    least_inputs: ClassVar[int] = 1
    most_inputs: ClassVar[int] = 2
    needs_labels: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]]

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """Tell whether texts, those of the first row of a file, may be of this kind, if nobody said what labels are."""
        return False

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """Tell whether a label, the first of a file, may be of this kind, if nobody said what labels are."""
        return True

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """Tell whether labels of files, of which nobody said what they are, are of this kind.

        Args:
            tables: As for :meth:`from_labels`; the head :meth:`may_read` the texts and :meth:`may_label`.
            column: As for :meth:`from_labels`.

        Raises:
            AttendropError: It is unclear.
        """
        return True

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        """Return the columns of a data set that are made of so many text columns of a file."""
        return cls.inputs[:text_columns]

    @classmethod
    def located(cls, table: Table, columns: Sequence[str]) -> Table:
        """Return a table in which inputs that are names of files can be opened from here.

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
        """Tell whether a row with these texts is no row of data to train or score on, such as an empty line."""
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
    @abstractmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head for the labels in files.

        Args:
            tables: By split: "train", "dev" or both.
            column: Column of the labels; none has a :meth:`value_problem`.
            asked: Whether the user said what the labels are.

        Raises:
            AttendropError: No model can be trained on these labels.
        """

    @abstractmethod
    def label_problem(self, value: Any) -> str | None:
        """Describe what is wrong with a label that has no :meth:`value_problem`, or return None."""

    def unknown_labels(self, value: Any) -> list[str]:
        """List the classes or tags in a label that has no :meth:`value_problem` which the head does not know."""
        return []

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        """Describe in what a row's values, as of :meth:`read_texts`, and its label do not fit, or return None."""
        return None

    @abstractmethod
    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Convert values of a file that have no :meth:`label_problem` to labels."""
