"""Checkpoints with a manifest, written last, that lists their files with their SHA-256.

A process may die while it writes or deletes a checkpoint: it is complete if it has one, and all files are as listed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import logging

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.support.files import sha256, share_permissions, write_json

MANIFEST = "attendrop_manifest.json"
STATE = "attendrop_state.json"
METHOD_STATE = "attendrop_session.pt"
logger = logging.get_logger(__name__)


def write_manifest(checkpoint: Path, method: Method, state: Mapping[str, Any]) -> None:
    """Add the state of the run to a checkpoint, and then the manifest that makes it complete."""
    write_json(checkpoint / STATE, {"method": method.name, "options": method.options(), "state": dict(state)})
    share_permissions(checkpoint)
    paths = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MANIFEST]
    files = {str(file.relative_to(checkpoint)): sha256(file) for file in paths}
    write_json(checkpoint / MANIFEST, {"files": files})


def save_method_state(
    checkpoint: Path, state: Mapping[str, Any], rank_state: Mapping[str, Any], rank: int, world_size: int
) -> None:
    """Add the state of the method to a checkpoint, in place of an earlier run's: that of all processes, and its own.

    Raises AttendropError if a value is neither a tensor nor a plain value, so that it could not be read again.
    """
    files = {_rank_file(checkpoint, rank): rank_state}
    if rank == 0:
        others = (_rank_file(checkpoint, other) for other in count(world_size))
        files |= {checkpoint / METHOD_STATE: state} | {file: {} for file in takewhile(Path.exists, others)}
    for file, content in files.items():
        file.unlink(missing_ok=True)
        if content:
            torch.save(dict(content), file)
            try:
                torch.load(file, "cpu", weights_only=True, mmap=True)
            except UnpicklingError as error:
                told = str(error).partition("\n")[0]
                raise AttendropError(
                    "The state of the method could not be read again; keep tensors and plain values (numbers, texts, "
                    f"lists, dictionaries) in state_dict ({told})."
                ) from None


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


def delete_old(newest: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints so that at most ``limit`` are left, if any; the newest and the best are kept.

    Age is by time: those of an earlier run in the same folder may have greater numbers.
    """
    kept = {newest} if best is None else {newest, Path(best)}
    numbered = [folder for folder in newest.parent.glob("checkpoint-*") if folder.name[11:].isdecimal()]
    found = sorted(numbered, key=lambda folder: folder.stat().st_mtime_ns)
    others = [folder for folder in found if folder not in kept]
    for folder in others[: max(0, len(found) - max(limit, len(kept)))] if limit is not None and limit > 0 else ():
        shutil.rmtree(folder, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint has all its files, as they were written."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(sha256(checkpoint / name) == digest for name, digest in files.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def last_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """Find the complete ``OUTPUT_DIR/checkpoint-N`` with the greatest N; others are skipped with a warning."""
    folders = Path(output_dir).glob("checkpoint-*")
    numbered = [folder for folder in folders if folder.name[11:].isdecimal() and folder.is_dir()]
    for folder in sorted(numbered, key=lambda folder: int(folder.name[11:]), reverse=True):
        if is_complete(folder):
            return folder
        why = "is not complete; the process probably died while writing it"
        if not (folder / MANIFEST).exists():
            why = f"has no {MANIFEST}: the process died while writing it, or it is another trainer's"
        logger.warning(f"Skipped {folder}: it {why}.")
    return None


@contextmanager
def reading(checkpoint: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Convert errors of libraries that read part of a checkpoint, such as ``"its optimizer"``, to one sentence.

    What PyTorch says of a file that it cannot read without running code advises to run that.
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
    pickled = [file.name for file in sorted(checkpoint.rglob("*.bin")) if file.name != TRAINING_ARGS_NAME]
    if pickled:
        raise AttendropError(
            f"The checkpoint '{checkpoint}' holds pickled weights ({pickled[0]}), and unpickling can run any code; "
            "delete it, and resume from one with safetensors, or train anew."
        )


def load_state(checkpoint: Path, method: Method) -> dict[str, Any]:
    """Read the state of the run; raise AttendropError for no or half a checkpoint, or another method or options."""
    if not is_complete(checkpoint):
        raise AttendropError(
            f"'{checkpoint}' is no complete checkpoint of RegularizedTrainer (it has no {MANIFEST}, or a file is "
            "missing or was changed); name another."
        )
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


def _rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / METHOD_STATE.replace(".pt", f"_{rank}.pt")
