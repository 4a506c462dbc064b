"""What the scores of a run are on, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendrop.tasks.file_formats import files_of

HOLDS_FOR_SHIFTED = (
    "Here, intervals on new rows hold for other rows of the same held-out groups: other groups may differ by more."
)


def scored_unlike(run: Mapping[str, Any]) -> str:
    """Name the rows that are unlike the training rows, and how many they are, given the ``metrics.json`` of a run."""
    column, rows = run.get("config", {}).get("shift_column"), run["data"]["rows"]["shifted"]
    held = "whole groups of like texts" if column is None else f"whole values of '{column}'"
    return f"rows unlike the training rows ({rows}, {held}, held out)"


def scored_on(run: Mapping[str, Any]) -> str:
    """Name the rows on which a run is scored, and how many they are, given its ``metrics.json``."""
    rows, trained = run["data"]["rows"].get("dev"), _trained_on(run)
    return _place(run) + ("" if rows is None else f" ({rows} rows)") + trained


def scored_data(run: Mapping[str, Any]) -> str:
    """Name the data on which a run is scored, and the file that it was trained on."""
    return _place(run) + _trained_on(run)


def holds_for(run: Mapping[str, Any], *, new_rows: bool) -> str:
    """Say what the intervals of a comparison hold for.

    Args:
        run: The ``metrics.json`` of a run.
        new_rows: Whether there are intervals on new rows.
    """
    config = run.get("config", {})
    file = config.get("eval_file") or config.get("train_file")
    if config.get("shots"):
        trained = f" and other samples of {config['shots']} training rows per class"
    elif config.get("max_train_samples"):
        trained = f" and other samples of {config['max_train_samples']} training rows"
    else:
        trained = ", with the same training rows"
    if not new_rows:
        return f"The intervals hold for other seeds{trained}, on these evaluation rows only."
    return (
        f"Intervals on new rows hold for other seeds{trained}, and other evaluation rows like those of "
        f"{_names(file) or run['task']}; those on these rows hold for these evaluation rows only."
    )


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
