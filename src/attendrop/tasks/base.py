"""Tasks: columns, classes and metrics, and the data loaded for a task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from datasets import Dataset

from attendrop.tasks.bad_rows import SkippedRow
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import get_head


@dataclass(frozen=True)
class Task:
    """A task, without its data.

    Attributes:
        name: Such as "rte"; the task of custom files is called "files".
        kind: Kind of the head, such as "classification".
        text_columns: Column names of the source files, as many as the head reads.
        label_names: The classes, in the order of their ids; empty if there are none.
        metric: The score by which models are selected, a key of what :func:`compute_scores` returns.
        description: One line.
        other_metrics: Scores reported beside ``metric``.
        token_columns: Columns with numbers for each word, or token, that all splits have, beside "place".
        options: Options of the head, by name.
    """

    name: str
    kind: str
    text_columns: tuple[str, ...]
    label_names: tuple[str, ...]
    metric: str
    description: str
    other_metrics: tuple[str, ...] = ()
    token_columns: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def head(self) -> Head:
        """The head of this kind of task: model class, encoding, metrics, predictions."""
        return get_head(self.kind, self.label_names, self.options)

    @property
    def num_labels(self) -> int:
        """Number of outputs per prediction: the number of classes, 1 for regression."""
        return len(self.head.output_names)


@dataclass(frozen=True)
class TaskData:
    """The loaded splits of a task.

    Attributes:
        task: The task.
        splits: By name: "train", "dev", "test", and others that the task has ("dev_mismatched"). Columns:
            ``head.inputs`` ("text", "text_pair" ...), "label" (class id, float ...; absent if the split has no labels),
            "index" (id of the row in a file of predictions), and in custom training data the further columns that
            :func:`load_files` was asked for.
        source: Description of where the data came from.
        skipped: Rows that were skipped because they are invalid.
    """

    task: Task
    splits: dict[str, Dataset]
    source: str
    skipped: tuple[SkippedRow, ...] = ()
