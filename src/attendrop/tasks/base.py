"""What a task is: its columns, classes and metrics, and the data that was loaded for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from datasets import Dataset

from attendrop.tasks.bad_rows import SkippedRow


@dataclass(frozen=True)
class Task:
    """A task, without its data.

    name: "rte"; a task of one's own files is called "files".
    kind: "classification" or "regression".
    text_columns: one or two column names, as the source files call them.
    label_names: the classes, where the position is the class id; empty for regression.
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

    @property
    def num_labels(self) -> int:
        """Outputs of the head: the number of classes, 1 for regression."""
        return len(self.label_names) or 1


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


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error message: "; did you mean 'x'?" where a choice is close to `name`, else nothing."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower().strip(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
