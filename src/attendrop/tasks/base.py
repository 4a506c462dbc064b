"""What a task is: its columns, classes and metrics, and the data that was loaded for it."""

from dataclasses import dataclass
from functools import cached_property

from datasets import Dataset

from attendrop.tasks.bad_rows import SkippedRow
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.registry import get_head


@dataclass(frozen=True)
class Task:
    """A task, without its data.

    name: "rte"; a task of one's own files is called "files".
    kind: that of the head, "classification" or "regression".
    text_columns: one or two column names, as the source files call them.
    label_names: the classes, where the position is the class id; empty if there are none.
    metric: the score that decides, a key of what `compute_scores` returns.
    description: one line.
    other_metrics: the scores that are reported beside `metric`.
    """

    name: str
    kind: str
    text_columns: tuple[str, ...]
    label_names: tuple[str, ...]
    metric: str
    description: str
    other_metrics: tuple[str, ...] = ()

    @cached_property
    def head(self) -> Head:
        """What this kind of task brings: model class, encoding, metrics, predictions."""
        return get_head(self.kind, self.label_names)

    @property
    def num_labels(self) -> int:
        """Outputs of the model for a prediction: the number of classes, 1 for regression."""
        return len(self.head.output_names)


@dataclass(frozen=True)
class TaskData:
    """The loaded splits of a task.

    splits: by name, "train", "dev", "test", and what else the task has ("dev_mismatched", "ood"). Columns: "text", in
    tasks of two texts "text_pair", "label" (class id or float; absent where the split has no labels), "index" (the
    row's id in a file of predictions), and in training data of one's own what `load_files` was asked for besides.
    source: where the data came from, in words.
    skipped: rows that were left out because something was wrong with them.
    """

    task: Task
    splits: dict[str, Dataset]
    source: str
    skipped: tuple[SkippedRow, ...] = ()
