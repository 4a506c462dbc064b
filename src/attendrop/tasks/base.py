"""Tasks: columns, classes and metrics, and the data loaded for a task."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import get_head
from attendrop.tasks.long_texts import HEAD
from attendrop.tasks.table import SkippedRow


@dataclass(frozen=True)
class Task:
    """A task, without its data."""

    name: str  # such as "rte"; the task of custom files is called "files"
    kind: str  # of the head, such as "classification"
    text_columns: tuple[str, ...]  # of the source files, one for each input of the head
    label_names: tuple[str, ...]  # the classes, in the order of their ids; empty if there are none
    metric: str  # the score by which models are selected, a key of what `compute_scores` returns
    description: str  # one line
    other_metrics: tuple[str, ...] = ()  # scores reported beside `metric`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the head, by name
    long_texts: str = HEAD  # what is done with texts that are too long, see `tasks/long_texts.py`
    group_columns: tuple[str, ...] = ()  # whose values make groups of rows that are also scored for themselves
    # Classes of models trained on other tasks, each with the class of this task that it is read as. Where there are
    # any, models with other classes are not scored.
    readings: tuple[Mapping[str, str], ...] = ()
    unknown_names: tuple[str, ...] = ()  # as in `Head`

    @cached_property
    def head(self) -> Head:
        """The head of this kind of task: model class, encoding, metrics, predictions."""
        return replace(get_head(self.kind, self.label_names, self.options), unknown_names=self.unknown_names)

    @property
    def num_labels(self) -> int:
        """Number of outputs per prediction: the number of classes, 1 for regression."""
        return len(self.head.output_names)

    def with_long_texts(self, wanted: str | None) -> Self:
        """Return the task with another treatment of long texts; None leaves it as it is.

        Raises:
            AttendropError: Rows of this task do not support it.
        """
        if wanted in (None, HEAD):
            return self if wanted is None else replace(self, long_texts=wanted)
        what, texts = f"long-texts {wanted!r} is for", len(self.text_columns)
        if not self.head.one_vector:
            raise AttendropError(f"{what} one prediction for each text, and the task is {self.kind}; omit it.")
        if texts > 1:
            raise AttendropError(f"{what} single texts, and the rows have {texts}; omit it.")
        return replace(self, long_texts=wanted)


@dataclass(frozen=True)
class TaskData:
    """The loaded splits of a task, by name: "train", "dev", "test", and others that it has ("dev_mismatched").

    Columns are ``head.inputs`` ("text", "text_pair" ...), "label" (class id, float ...; absent if the split has no
    labels), "index" (id of the row in a file of predictions), and in custom training data the further columns that
    :func:`load_files` was asked for.
    """

    task: Task
    splits: dict[str, Dataset]
    source: str  # description of where the data came from
    skipped: tuple[SkippedRow, ...] = ()  # because they are invalid
    looks_grouped: str = ""  # in words, by a column of the training file, where none was given
