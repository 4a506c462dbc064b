"""Kept runs, one in each line of a file of results: reading them, and differences of their scores by row."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.studies.statistics import paired_difference
from attendrop.tasks.metrics import RowScores


def kept_runs(file: Path) -> list[dict[str, Any]]:
    """Read the runs; none if there is no file yet."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def by_row(scores: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Stack the scores by row of some draws, ``(draws, rows)``."""
    return np.stack([RowScores.from_dict(each).values for each in scores]).astype(float)


def difference(first: np.ndarray, second: np.ndarray) -> str:
    """Write the mean difference on the same draws and rows, with its 95 % CI over both."""
    found = paired_difference(first.mean(axis=1), second.mean(axis=1), first - second, first.shape[1]).mean
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
