"""Output folders that are created only when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attendrop.errors import AttendropError
from attendrop.output_files import disk_errors, share_permissions
from attendrop.runs.folder_lock import locked


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``target`` at the end of the block; only one process may fill it.

    After an exception, nothing is left. The remains of a killed process are deleted when the target is filled again.

    Raises:
        AttendropError: The target is a file, is not empty, or is not writable; or another process fills it.
    """
    _check_new(target)
    beside = target.with_name(f".{target.name}.unfinished")
    with locked(beside):
        staged = beside / target.name
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        try:
            with disk_errors(target):
                yield staged
            share_permissions(staged)
            _check_new(target)
            if target.exists():
                target.rmdir()
            staged.rename(target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    with suppress(OSError):  # the lock deletes only a folder that it made
        beside.rmdir()


def _check_new(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AttendropError(f"The output folder '{target}' is not empty; name a new one.")
    ancestor = next(path for path in (target, *target.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise AttendropError(f"The output folder '{target}' cannot be written: '{ancestor}' does not allow it.")
