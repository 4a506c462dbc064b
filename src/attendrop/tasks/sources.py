"""Sources of named tasks: what they have in common, and what loading from folders and from the hub shares."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import datasets
from datasets import Dataset

from attendrop.argument_checks import did_you_mean
from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData


class TaskSource(Protocol):
    """Where the data of a named task come from."""

    @property
    def task(self) -> Task:
        """The task."""

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, from the places listed in :func:`attendrop.tasks.registry.load_task`."""

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files that :meth:`load` would read; none if there are none."""


def check_splits(task: Task, splits: Sequence[str], known: Collection[str]) -> None:
    """Raise AttendropError if a task has no split of a name."""
    for split in splits:
        if split not in known:
            hint = did_you_mean(split, known) or f"; it has {', '.join(known)}."
            raise AttendropError(f"{task.name} has no split {split!r}{hint}")


def find_folder(
    data_dir: str | Path | None, names: Collection[str], *, within: str | None = None, files: Collection[str] = ()
) -> Path | None:
    """Find the folder of a task in ``data_dir``, otherwise in ``$ATTENDROP_DATA``; None if the task has none there.

    Args:
        data_dir: A folder with the task's folder, perhaps in a folder ``within``; or the task's folder itself, which
            has one of these names or one of the ``files``.
        names: Names of the task's folder, in lower case without dashes; the first is the usual one.
        within: Folder of a group of tasks, such as "glue".
        files: Names of the task's files, or patterns.

    Raises:
        AttendropError: ``data_dir`` does not exist, or has no folder of the task.
    """
    root = data_dir or os.environ.get("ATTENDROP_DATA")
    if not root:
        return None
    root = Path(root)
    if data_dir and not root.is_dir():
        raise AttendropError(f"the data folder {str(root)!r} does not exist; name a folder of the task's files.")
    parents = ([root / within] if within else []) + [root]
    children = [child for parent in parents if parent.is_dir() for child in sorted(parent.iterdir())]
    for folder in (*children, root):
        if folder.is_dir() and folder.name.lower().replace("-", "") in names:
            return folder
    if not data_dir:
        return None
    if any(any(root.glob(file)) for file in files):
        return root
    name = next(iter(names))
    places = f"neither '{within}/{name}' nor '{name}'" if within else f"no folder '{name}'"
    such = f", nor a file such as {next(iter(files))!r}" if files else ""
    raise AttendropError(f"the data folder {str(root)!r} holds {places}{such}; name a folder that has one.")


def load_from_hub(task: Task, name: str, *args: Any, split: str, **options: Any) -> Dataset:
    """Load a split of a data set of the hub; other arguments are those of ``datasets.load_dataset``.

    Raises:
        AttendropError: The hub cannot be reached, or has no such data set.
    """
    try:
        return datasets.load_dataset(name, *args, split=split, **options)
    except Exception as error:  # the hub's client and its HTTP library raise many classes
        reason = str(error).strip().partition("\n")[0]
        raise AttendropError(
            f"{task.name} is not in a local folder, and loading {name} from the hub failed "
            f"({type(error).__name__}: {reason}); name a folder of its files with --data-dir or ATTENDROP_DATA."
        ) from error
