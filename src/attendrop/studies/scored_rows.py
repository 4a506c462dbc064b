"""What the scores of a run are on, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.tasks.file_formats import files_of


def scored_on(run: Mapping[str, Any]) -> str:
    """Name the rows on which a run is scored, and how many they are, given its ``metrics.json``."""
    rows, trained = run["data"]["rows"].get("dev"), _trained_on(run)
    return _place(run) + ("" if rows is None else f" ({rows} rows)") + trained


def scored_data(run: Mapping[str, Any]) -> str:
    """Name the data on which a run is scored, and the file that it was trained on."""
    return _place(run) + _trained_on(run)


def _place(run: Mapping[str, Any]) -> str:
    config = run.get("config", {})
    trained = _names(config.get("train_file")) or str(config.get("task") or run["task"])
    if config.get("test_fraction"):
        return f"{100 * config['test_fraction']:g} % of {trained}, set aside"
    return _names(config.get("eval_file")) or trained


def _trained_on(run: Mapping[str, Any]) -> str:
    config = run.get("config", {})
    return f", trained on {_names(config['train_file'])}" if config.get("eval_file") else ""


def _names(data: str | None) -> str:
    return "" if data is None else ", ".join(file.name for file in files_of(data))
