"""Tasks: GLUE, custom files and a generated demonstration set, from raw rows to scores and predictions.

Load a task with :func:`load_task` or :func:`load_files`, sample or split it with :func:`few_shot`, :func:`subset` and
:func:`hold_out`, tokenize it with :func:`encode`, score outputs with :func:`compute_scores`, and write them with
:func:`write_predictions`.
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
    """Return the names of the tasks of :func:`load_task`."""
    return list(_TASKS)


def get_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        AttendropError: There is no such task.
    """
    if name not in _TASKS:
        hint = did_you_mean(name, _TASKS) or f"; the tasks are {', '.join(_TASKS)}."
        raise AttendropError(f"there is no task {name!r}{hint}")
    return _TASKS[name]


def task_files(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the local files that :func:`load_task` would read; raise the same errors."""
    return glue_files(GLUE[name], data_dir) if get_task(name).name in GLUE else []


def load_task(name: str, *, data_dir: str | Path | None = None, splits: Sequence[str] = ("train", "dev")) -> TaskData:
    """Load splits of a named task.

    Args:
        name: Name of the task.
        data_dir: For GLUE, a folder with the official files: it contains ``glue/RTE`` or ``RTE``, or is that folder. By
            default, ``$ATTENDROP_DATA`` if it has the task, otherwise ``nyu-mll/glue`` on the hub. The grammar needs no
            files.
        splits: "dev" also loads the sets scored with it: "ood" of the grammar and, where present, "dev_mismatched" of
            MNLI (likewise "test_mismatched" with "test").

    Raises:
        AttendropError: The task or a split is unknown, a folder or file is missing, a file is broken, or the hub cannot
            be reached.
    """
    task = get_task(name)
    return load_grammar(splits) if task is GRAMMAR else load_glue(GLUE[name], data_dir, splits)
