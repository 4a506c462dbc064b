"""Tasks: GLUE, one's own files and a generated demonstration set, from the raw rows to scores and predictions.

A task is loaded with `load_task` or `load_files`, thinned or divided with `few_shot`, `subset` and `hold_out`, turned
into token ids with `encode`, scored with `compute_scores`; `write_predictions` writes what a model answers.
"""

from collections.abc import Sequence
from pathlib import Path

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.glue import GLUE, glue_files, load_glue
from attendrop.tasks.grammar import GRAMMAR, load_grammar
from attendrop.tasks.metrics import compute_scores, constant_scores, with_metric
from attendrop.tasks.prediction_files import PredictionWriter, output_format, write_predictions
from attendrop.tasks.splits import few_shot, hold_out, subset
from attendrop.tasks.token_columns import TokenColumn
from attendrop.tasks.tokenization import encode

__all__ = [
    "PredictionWriter",
    "Task",
    "TaskData",
    "TokenColumn",
    "compute_scores",
    "constant_scores",
    "encode",
    "few_shot",
    "get_task",
    "hold_out",
    "load_files",
    "load_task",
    "output_format",
    "subset",
    "task_files",
    "task_names",
    "with_metric",
    "write_predictions",
]
_TASKS: dict[str, Task] = {name: source.task for name, source in GLUE.items()} | {GRAMMAR.name: GRAMMAR}


def task_names() -> list[str]:
    """The names that `load_task` knows."""
    return list(_TASKS)


def get_task(name: str) -> Task:
    """The task called `name`; raises AttendropError with the nearest name if there is none."""
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS) or f"; the tasks are {', '.join(_TASKS)}."
        raise AttendropError(f"there is no task {name!r}{hint}")
    return _TASKS[name]


def task_files(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """The local files that `load_task` would read from; raises AttendropError as it does."""
    return glue_files(GLUE[name], data_dir) if get_task(name).name in GLUE else []


def load_task(name: str, *, data_dir: str | Path | None = None, splits: Sequence[str] = ("train", "dev")) -> TaskData:
    """Load splits of a named task.

    data_dir: for GLUE, a folder in the official file format: it holds `glue/RTE`, or `RTE`, or is that folder. Without
        it, `$ATTENDROP_DATA` is read if it holds the task, else the hub's `nyu-mll/glue`. The grammar needs no files.
    splits: with "dev" come the sets that are scored beside it: "ood" of the grammar, and where they are present
        "dev_mismatched" of MNLI (likewise "test_mismatched" with "test").

    Raises AttendropError for an unknown task or split, a missing folder or file, a broken file, an unreachable hub.
    """
    task = get_task(name)
    return load_grammar(splits) if task is GRAMMAR else load_glue(GLUE[name], data_dir, splits)
