"""A folder that is there when it is whole, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attendrop.errors import AttendropError


def check_new(target: Path) -> None:
    """Refuse a folder that cannot be made, or that holds something, without writing anything.

    Raises:
        AttendropError: It is a file, is not empty, or may not be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AttendropError(f"The output folder '{target}' is not empty; name a new one.")
    ancestor = next(path for path in (target, *target.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise AttendropError(f"The output folder '{target}' cannot be written: '{ancestor}' does not allow it.")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a folder to fill, beside ``target``, which takes its place when the block ends.

    After an exception nothing is left. What a killed process left goes when the same target is filled again.

    Raises:
        AttendropError: See :func:`check_new`.
    """
    check_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}.*.unfinished"):
        shutil.rmtree(leftover, ignore_errors=True)
    staged = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    staged.mkdir()
    try:
        yield staged
        check_new(target)
        if target.exists():
            target.rmdir()
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
