"""Speed of one model relative to another, with the range of single measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attendrop.support.models import logits_of

# Minimum duration of a measurement, and its number of rounds, which have the same work.
SECONDS, ROUNDS = 2.0, 5
Run = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Speed:
    """Relative speed: median and range of several rounds."""

    median: float
    low: float
    high: float
    rounds: int


def measure_speed(before: Run, after: Run, batches: Sequence[Mapping[str, Any]]) -> Speed:
    """Time two models on the same batches, in turn, so that other load on the machine affects both."""
    with torch.no_grad():
        for batch in batches:  # warm-up, since the first call of a shape may take longer
            _seconds(before, batch), _seconds(after, batch)
        ratios = [_round(before, after, batches) for _ in range(ROUNDS)]
    return Speed(statistics.median(ratios), min(ratios), max(ratios), ROUNDS)


def _round(before: Run, after: Run, batches: Sequence[Mapping[str, Any]]) -> float:
    spent = [0.0, 0.0]
    while sum(spent) < SECONDS / ROUNDS:
        for batch in batches:
            for number, run in enumerate((before, after)):
                spent[number] += _seconds(run, batch)
    return spent[0] / spent[1]


def _seconds(run: Run, batch: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    logits_of(run(batch)).cpu()  # waits for a GPU
    return time.perf_counter() - start
