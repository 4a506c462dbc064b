"""Files in the folder of a run that belong to the run: recorded with their SHA-256, and unchanged since.

``run.json`` records what a run wrote (``files``) and what other commands added to it (``added``); each checkpoint has a
manifest. TensorBoard's files grow during training, so all of them belong to a run that reports to TensorBoard.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.output_files import sha256
from attendrop.runs.folder_lock import LOCK

RUN = "run.json"
NEW_RUN = ".new-run"
RESULTS = ".results.partial"
TENSORBOARD = "tensorboard"
# Checkpoints of the training that selects the number of steps, before the final training.
SELECTION = "selection"
_DELETED = ".deleted"
# Files and folders that exist only while a process writes.
_SCRATCH = (LOCK, NEW_RUN, RESULTS, _DELETED, f".{RUN}.partial", ".run.yaml.partial")
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_EVENTS = re.compile(r"events\.out\.tfevents\..+")
Run = Mapping[str, Any]


def digests(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of each file in a folder, by name, as recorded in ``run.json``."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def foreign(path: Path, run: Run) -> list[str]:
    """List the parts of a file or folder that are not the run's own, or were changed since the run wrote them."""
    name = path.name
    recorded = {**run.get("files", {}), **run.get("added", {})}
    if name == RUN or name in _SCRATCH:
        return []
    if path.is_file() and name in recorded:
        return [] if sha256(path) == recorded[name] else [f"{name} (changed since)"]
    if path.is_dir() and _CHECKPOINT.fullmatch(name):
        from attendrop.training.checkpoints import unexpected_files

        return [f"{name}/{file}" for file in unexpected_files(path)]
    if path.is_dir() and name == SELECTION:
        return [f"{name}/{part}" for each in sorted(path.iterdir()) for part in foreign(each, {})]
    if path.is_dir() and name == TENSORBOARD and run.get("config", {}).get("report_to") == TENSORBOARD:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [f"{name}/{file.relative_to(path)}" for file in files if not _EVENTS.fullmatch(file.name)]
    return [name]


def refuse_foreign(folder: Path, run: Run, names: Iterable[str]) -> None:
    """Raise AttendropError if files with these names exist and do not belong to the run."""
    for name in names:
        if os.path.lexists(folder / name) and (found := foreign(folder / name, run)):
            raise AttendropError(
                f"'{folder / found[0]}' was not written by attendrop, but has the name of a result of the run; move it "
                "away, then complete the run with --resume."
            )


def delete_own(folder: Path, run: Run, *, last: tuple[str, ...]) -> None:
    """Delete the files of a run, except those that exist only while a process writes."""
    own = [path for path in folder.iterdir() if path.name not in (LOCK, NEW_RUN) and not foreign(path, run)]
    for path in sorted(own, key=lambda path: last.index(path.name) if path.name in last else -1):
        remove(path)


def remove(path: Path) -> None:
    """Delete a file, or a folder atomically: an interruption leaves no partial folder under its name."""
    if path.is_dir() and not path.is_symlink():
        deleted = path.with_name(_DELETED)
        if path != deleted:
            shutil.rmtree(deleted, ignore_errors=True)
            os.replace(path, deleted)
        shutil.rmtree(deleted)
    else:
        path.unlink()
