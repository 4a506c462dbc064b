"""Folder locks, so that one process at a time writes into a folder, and folders that appear when complete.

The operating system releases a lock when the process that holds it ends, even after a crash. The lock file names that
process, and is deleted when the lock is released.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from attendrop.errors import AttendropError
from attendrop.support.files import broken_link, disk_errors, refuse_links, share_permissions

LOCK = ".lock"
_UNFINISHED = ".unfinished"
# The folders that this process holds, and their lock files.
_held: list[tuple[Path, os.stat_result]] = []


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; it is created if missing, and deleted if it stays empty.

    Raises:
        AttendropError: Another process holds it; it has a symbolic link; or the lock was deleted, and the block failed.
    """
    folder = folder.absolute()
    refuse_links(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise AttendropError(f"The folder '{folder}' is in use by {_holder(folder)}; wait until it ends.") from None
    held = (folder, os.stat(folder / LOCK))
    _held.append(held)
    try:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        with suppress(OSError):  # the disk may be full, and Windows does not let a locked file be written
            (folder / LOCK).write_text(json.dumps(holder), encoding="utf-8")
        yield
    except Exception:
        check_held(folder)  # whatever failed, it did because another process changed the files
        raise
    finally:
        if _is_there(*held):  # and not that of another process
            with suppress(OSError):
                (folder / LOCK).unlink()
        _held.remove(held)
        lock.release()
        with suppress(OSError):  # ends at the first folder that is not empty
            for path in made:
                path.rmdir()


def check_held(folder: Path) -> None:
    """Raise AttendropError if the lock that this process has on a folder was deleted: others may write there, too."""
    folder = folder.absolute()
    if not all(_is_there(*held) for held in _held if held[0] == folder):
        raise AttendropError(
            f"'{folder / LOCK}' was deleted while this process used the folder, so that another may have changed its "
            "files: let only one run, and run the same command with --resume."
        )


def _is_there(folder: Path, lock: os.stat_result) -> bool:
    try:
        return os.path.samestat(lock, os.lstat(folder / LOCK))
    except OSError:
        return False


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


def check_writable(folder: Path) -> None:
    """Raise AttendropError if a folder, or the one that it would be created in, cannot be written."""
    ancestor = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        raise AttendropError(f"The output folder '{folder}' cannot be written: '{ancestor}' does not allow it.")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``target`` at the end of the block; only one process may fill it.

    Files are moved into a target that exists, and is empty: it may be a link, a mount or the current directory. After
    an exception, nothing is left. The remains of a killed process are deleted when the target is filled again.
    """
    _check_new(target)
    real = target.resolve()
    exists = real.exists()
    workspace = real / _UNFINISHED if exists else real.with_name(f".{real.name}{_UNFINISHED}")
    if workspace.is_symlink():
        raise AttendropError(f"'{workspace}', in which '{target}' is to be made, is a symbolic link; delete it.")
    with locked(workspace):
        staged = workspace / real.name
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        try:
            with disk_errors(target):
                yield staged
            share_permissions(staged)
            _check_new(target)
            if exists:
                for path in list(staged.iterdir()):
                    path.rename(real / path.name)
            else:
                if real.exists():  # made meanwhile, and empty
                    real.rmdir()
                staged.rename(real)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    with suppress(OSError):  # the lock deletes only a folder that it made
        workspace.rmdir()


def _check_new(target: Path) -> None:
    if (link := broken_link(target)) is not None:
        raise AttendropError(link)
    if target.exists() and (not target.is_dir() or any(path.name != _UNFINISHED for path in target.iterdir())):
        raise AttendropError(f"The output folder '{target}' is not empty; name a new one.")
    check_writable(target)
