"""Locks on folders, so that one process at a time writes into a folder.

The operating system releases a lock when the process that holds it ends, even after a crash. The lock file names that
process, and is deleted when the lock is released.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from attendrop.errors import AttendropError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process. It is created if missing, and deleted if it stays empty.

    Raises:
        AttendropError: Another process holds it.
    """
    folder = folder.absolute()
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise AttendropError(f"The folder '{folder}' is in use by {_holder(folder)}; wait until it ends.") from None
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        with suppress(OSError):  # the disk may be full, and Windows does not let a locked file be written
            (folder / LOCK).write_text(json.dumps(holder), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # ends at the first folder that is not empty
            for path in made:
                path.rmdir()


def refuse_if_locked(folder: Path) -> None:
    """Raise AttendropError if another process has locked the folder."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass


def _holder(folder: Path) -> str:
    try:
        found = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        return f"process {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
