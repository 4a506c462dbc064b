"""Checkpoints with a manifest, which distinguishes complete from interrupted ones.

A process may die while it writes or deletes a checkpoint. So each has a manifest, written last, that lists its files
with their SHA-256. A checkpoint is complete if it has one and all files are as listed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.utils import logging

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.support.files import sha256, share_permissions, write_json

MANIFEST = "attendrop_manifest.json"
STATE = "attendrop_state.json"
METHOD_STATE = "attendrop_session.pt"
# File that transformers adds while it writes a checkpoint on SIGTERM, and then deletes.
_IN_PROGRESS = "checkpoint-is-incomplete.txt"
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
logger = logging.get_logger(__name__)


def write_manifest(checkpoint: Path, method: Method, state: Mapping[str, Any]) -> None:
    """Add the state of the run to a checkpoint, and then the manifest that makes it complete."""
    write_json(checkpoint / STATE, {"method": method.name, "options": method.options(), "state": dict(state)})
    share_permissions(checkpoint)
    files = {str(file.relative_to(checkpoint)): sha256(file) for file in _files(checkpoint)}
    write_json(checkpoint / MANIFEST, {"files": files})


def save_method_state(
    checkpoint: Path, state: Mapping[str, Any], rank_state: Mapping[str, Any], rank: int, world_size: int
) -> None:
    """Add the state of the method to a checkpoint, in place of an earlier run's: that of all processes, and its own.

    Raises:
        AttendropError: A value is neither a tensor nor a plain value, so that it could not be read again.
    """
    for own in (state, rank_state):
        _check_plain(own, "state")
    files = {_rank_file(checkpoint, rank): rank_state}
    if rank == 0:
        others = (_rank_file(checkpoint, other) for other in count(world_size))
        files |= {checkpoint / METHOD_STATE: state} | {file: {} for file in takewhile(Path.exists, others)}
    for file, content in files.items():
        file.unlink(missing_ok=True)
        if content:
            torch.save(dict(content), file)


def load_method_state(checkpoint: Path, rank: int, world_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what :func:`save_method_state` wrote; raise AttendropError if fewer or more processes did than read it."""
    fewer = not _rank_file(checkpoint, rank).exists() and _rank_file(checkpoint, 0).exists()
    if fewer or _rank_file(checkpoint, world_size).exists():
        raise AttendropError(
            f"The checkpoint '{checkpoint}' was written by {'fewer' if fewer else 'more'} processes than train now; "
            "start as many as then."
        )
    files = (checkpoint / METHOD_STATE, _rank_file(checkpoint, rank))
    whole, own = ((torch.load(file, "cpu", weights_only=True) if file.exists() else {}) for file in files)
    return whole, own


def mark_unfinished(checkpoint: Path) -> None:
    """Start writing a checkpoint: its manifest marks it as unfinished."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    write_json(checkpoint / MANIFEST, {"unfinished": True})


def delete_old(newest: Path, limit: int | None, best: str | None) -> None:
    """Delete checkpoints beside the newest so that at most ``limit`` are left, if any; the best one is kept.

    Those that were being written when their process died are deleted first, since they would count as the newest.
    Others with greater numbers than the newest come from an earlier run in the same folder, and count as the oldest.
    """
    for checkpoint in newest.parent.glob("checkpoint-*"):
        if "unfinished" in _manifest(checkpoint):
            shutil.rmtree(checkpoint, ignore_errors=True)
    if limit is None or limit <= 0:
        return
    numbered = _numbered(newest.parent)
    last = next(number for number, folder in numbered if folder == newest)
    kept = {newest} if best is None else {newest, Path(best)}
    oldest_first = sorted(numbered, key=lambda each: (each[0] <= last, each[0]))
    others = [folder for _, folder in oldest_first if folder not in kept]
    for folder in others[: max(0, len(numbered) - max(limit, len(kept)))]:
        shutil.rmtree(folder, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint has all its files, as they were written."""
    try:
        return all(sha256(checkpoint / name) == digest for name, digest in _manifest(checkpoint)["files"].items())
    except (OSError, KeyError, AttributeError):
        return False


def last_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """Find the complete ``OUTPUT_DIR/checkpoint-N`` with the greatest N; others are skipped with a warning."""
    numbered = _numbered(Path(output_dir))
    for _, folder in sorted(numbered, reverse=True):
        if is_complete(folder):
            return folder
        if not (folder / MANIFEST).exists():
            reason = f"it has no {MANIFEST}: another trainer wrote it, or it was being deleted"
        elif "unfinished" in _manifest(folder):
            reason = "it is not complete; the process probably died while writing it"
        else:
            reason = "it is not complete (a file is missing or was changed)"
        logger.warning(f"Skipped {folder}: {reason}.")
    return None


@contextmanager
def reading(checkpoint: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Convert errors of libraries that read part of a checkpoint, such as ``"its optimizer"``, to one sentence.

    A manifest says that a checkpoint is as it was written, and not by whom, or of which model. What PyTorch says of a
    file that it cannot read without running code advises to run that.
    """
    try:
        yield
    except (AttendropError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each file has its own library
        raise AttendropError(
            f"The checkpoint '{checkpoint}' cannot be resumed from: {what} cannot be read ({type(error).__name__}), "
            "since it is damaged, or of another program or model. Delete it to resume from the one before, or train "
            "anew."
        ) from error


def refuse_pickled_weights(checkpoint: Path) -> None:
    """Raise AttendropError if a checkpoint has weights that only ``torch.load`` reads; they are read by no trainer."""
    pickled = [file.name for file in _files(checkpoint) if file.suffix == ".bin" and file.name != TRAINING_ARGS_NAME]
    if pickled:
        raise AttendropError(
            f"The checkpoint '{checkpoint}' holds pickled weights ({pickled[0]}), and unpickling can run any code; "
            "delete it, and resume from one with safetensors, or train anew."
        )


def trainer_state(checkpoint: Path) -> Any:
    """Read how far the trainer had come, a ``TrainerState``; raises AttendropError if that cannot be read."""
    with reading(checkpoint, TRAINER_STATE_NAME):
        return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def load_state(checkpoint: Path, method: Method) -> dict[str, Any]:
    """Read the state of the run; raise AttendropError for no or half a checkpoint, or another method or options."""
    if not (checkpoint / MANIFEST).exists():
        raise AttendropError(
            f"'{checkpoint}' is no checkpoint of RegularizedTrainer: it has no {MANIFEST}. Name one that it wrote."
        )
    if not is_complete(checkpoint):
        raise AttendropError(f"The checkpoint '{checkpoint}' is not complete (a file is missing or was changed).")
    with reading(checkpoint, STATE):
        found = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        state: dict[str, Any] = dict(found["state"])
        found = {"method": str(found["method"]), "options": dict(found["options"])}
    if found["method"] != method.name:
        raise AttendropError(
            f"The checkpoint '{checkpoint}' is from method '{found['method']}', not from '{method.name}'."
        )
    changed = [name for name, value in method.options().items() if found["options"].get(name) != value]
    if changed:
        name = changed[0]
        raise AttendropError(
            f"The checkpoint '{checkpoint}' was made with {name}={found['options'].get(name)!r}, not "
            f"{name}={method.options()[name]!r}; resume with the options that the run began with."
        )
    return state


def _check_plain(value: Any, name: str) -> None:
    """Refuse what ``torch.load(weights_only=True)`` does."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_plain(key, f"key {key!r} of {name}")
            _check_plain(each, f"{name}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for place, each in enumerate(value):
            _check_plain(each, f"{name}[{place}]")
    elif not (isinstance(value, torch.Tensor) or type(value) in _PLAIN):
        raise AttendropError(
            f"The {name} of the method is of type {type(value).__name__}; keep tensors and plain values (numbers, "
            "texts, lists, dictionaries) in state_dict."
        )


def _rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / METHOD_STATE.replace(".pt", f"_{rank}.pt")


def _manifest(checkpoint: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _numbered(output_dir: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in a folder, each with its number."""
    found = ((re.fullmatch(r"checkpoint-(\d+)", folder.name), folder) for folder in output_dir.glob("*"))
    return [(int(match[1]), folder) for match, folder in found if match and folder.is_dir()]


def _files(checkpoint: Path) -> list[Path]:
    passing = (MANIFEST, _IN_PROGRESS)
    return [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name not in passing]
