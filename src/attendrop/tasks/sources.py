"""Sources of named tasks: what they have in common, and what loading from folders and from the hub shares."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import datasets
from datasets import Dataset, concatenate_datasets

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


@dataclass(frozen=True)
class FolderSource(ABC):
    """Files of a task in a folder of its own, and its data sets on the hub.

    Attributes:
        task: The task.
        folders: Names of its folder, in lower case without dashes; the usual one first.
        file_names: By split, of each of its files the names or patterns that it may have; the first that there is
            counts.
        read: Reads the rows of a split from one of its files.
        hub: Names of the data sets on the hub, each with that of its configuration if it has several; none: the task is
            not there.
        revision: Revision on the hub.
        hub_splits: Names of the splits on the hub, where they are others.
    """

    task: Task
    folders: tuple[str, ...]
    file_names: Mapping[str, tuple[tuple[str, ...], ...]]
    read: Callable[[Path, str], Iterator[Any]]
    hub: tuple[tuple[str, ...], ...] = ()
    revision: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"}, kw_only=True)

    @abstractmethod
    def columns(self, path: Path, rows: Sequence[Any]) -> dict[str, list[Any]]:
        """Convert rows to the columns of a data set, without "index"; raise AttendropError for a row that is wrong."""

    @abstractmethod
    def read_hub(self, raw: Dataset) -> Iterator[Any]:
        """Read the rows of a data set of the hub."""

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, from the places listed in :func:`attendrop.tasks.registry.load_task`."""
        check_splits(self.task, splits, self.file_names)
        folder = self._folder(data_dir)
        if folder is None:
            title = f"Hugging Face hub {self.hub[0][0] if self.hub else ''}"
            return TaskData(self.task, {split: self._from_hub(split) for split in splits}, title)
        found = {split: self._from_files(folder, split) for split in splits}
        return TaskData(self.task, found, f"local folder {folder}")

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files; none if the task is loaded from the hub."""
        folder = self._folder(data_dir)
        every = [names for files in self.file_names.values() for names in files]
        found = [] if folder is None else [_first_file(folder, names) for names in every]
        return list(dict.fromkeys(file for file in found if file is not None))

    def _folder(self, data_dir: str | Path | None) -> Path | None:
        names = [name for files in self.file_names.values() for names in files for name in names]
        return find_folder(data_dir, self.folders, files=names)

    def _from_files(self, folder: Path, split: str) -> Dataset:
        parts = []
        for names in self.file_names[split]:
            path = _first_file(folder, names)
            if path is None:
                raise AttendropError(
                    f"the folder {str(folder)!r} has no file of {self.task.name} {split}, such as {names[0]!r}."
                )
            rows = list(self.read(path, split))
            if not rows:
                raise AttendropError(f"{path} has no row of {self.task.name} {split}.")
            parts.append(Dataset.from_dict(self.columns(path, rows)))
        return _numbered(parts)

    def _from_hub(self, split: str) -> Dataset:
        if not self.hub:
            raise AttendropError(
                f"{self.task.name} is not in a local folder, and not on the hub; name the folder that holds "
                f"'{self.folders[0]}' with --data-dir or ATTENDROP_DATA."
            )
        there, options = self.hub_splits.get(split, split), {} if self.revision is None else {"revision": self.revision}
        raw = [load_from_hub(self.task, *names, split=there, **options) for names in self.hub]
        rows = [list(self.read_hub(part)) for part in raw]
        return _numbered(
            [Dataset.from_dict(self.columns(Path(names[0]), part)) for names, part in zip(self.hub, rows, strict=True)]
        )


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first file that has one of some names or patterns; None if there is none."""
    return next((path for name in names for path in sorted(folder.glob(name))), None)


def _numbered(parts: Sequence[Dataset]) -> Dataset:
    """Join data sets, and number their rows."""
    rows: Dataset = concatenate_datasets(list(parts))
    return rows.add_column("index", list(range(len(rows))))


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
