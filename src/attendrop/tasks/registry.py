"""Registry of named tasks: their data, from local files or from the hub."""

from collections.abc import Sequence
from pathlib import Path

from attendrop.argument_checks import check_known
from attendrop.tasks.base import Source, Task, TaskData
from attendrop.tasks.custom_files import load_files as load_files  # beside load_task, for programs of one's own
from attendrop.tasks.glue import GLUE
from attendrop.tasks.named_tasks import NAMED_TASKS

_SOURCES = {source.task.name: source for source in (*GLUE.values(), *NAMED_TASKS)}


def task_names() -> list[str]:
    """Return the names of the tasks of :func:`load_task`."""
    return list(_SOURCES)


def get_task(name: str) -> Task:
    """Return a task by its name; raise AttendropError if there is none."""
    return _source(name).task


def _source(name: str) -> Source:
    check_known(name, _SOURCES, f"there is no task {name!r}", f"the tasks are {', '.join(_SOURCES)}")
    return _SOURCES[name]


def task_files(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Return the local files that :func:`load_task` would read; raise the same errors."""
    return _source(name).files(data_dir)


def load_task(name: str, *, data_dir: str | Path | None = None, splits: Sequence[str] = ("train", "dev")) -> TaskData:
    """Load splits of a named task.

    Args:
        name: Name of the task.
        data_dir: A folder with the official files: it contains the folder of the task (of GLUE, ``glue/RTE`` or
            ``RTE``; ``conll2003``, ``ptb``, ``ud``, ``swag``, ``arc``, ``wmt16/tr-en``), or is that folder.
            By default, ``$ATTENDROP_DATA`` if it has the task, otherwise the hub.
        splits: "dev" also loads, where present, "dev_mismatched" of MNLI (likewise "test_mismatched" with "test").

    Raises:
        AttendropError: The task or a split is unknown, a folder or file is missing, a file is broken, or the hub cannot
            be reached.
    """
    return _source(name).load(data_dir, splits)
