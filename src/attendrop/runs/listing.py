"""List of the runs below a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import labelled_method
from attendrop.runs.run_folder import RUN, read_metrics, read_run

_COPIED = ("task", "model", "method", "seed", "metric", "selection_score", "score", "steps", "train_seconds")


def list_runs(folder: str) -> list[dict[str, Any]]:
    """List the runs in a folder and in all folders below it, in the order of their paths.

    Returns:
        Of each run ``folder``, ``finished``, ``pruned``, ``label`` (the method with its options), and of its
        ``metrics.json`` ``task``, ``model``, ``method``, ``seed``, ``metric``, ``selection_score``, ``score`` (of dev),
        ``steps``, ``train_seconds``; an unfinished run has None for what is not known yet.

    Raises:
        AttendropError: There is no such folder.
    """
    if not Path(folder).is_dir():
        raise AttendropError(f"There is no folder '{folder}'.")
    found = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        if RUN in files and (run := _describe(Path(path))) is not None:
            found.append(run)
    return found


def _describe(folder: Path) -> dict[str, Any] | None:
    """Describe a run; None for a ``run.json`` of another program."""
    try:
        run, metrics = read_run(folder), read_metrics(folder)
    except AttendropError:
        return None
    config = (run or {}).get("config")
    if not isinstance(config, dict):
        return None
    known = {"task": config.get("task") or "files", **{name: config.get(name) for name in ("model", "method", "seed")}}
    options = (metrics or {}).get("options") or config.get("options") or {}
    return {
        "folder": str(folder),
        "finished": metrics is not None,
        "pruned": "pruned" in (metrics or {}),
        **{name: (metrics or known).get(name) for name in _COPIED},
        "label": labelled_method(str((metrics or known)["method"]), options),
    }
