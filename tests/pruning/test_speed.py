"""How speed is measured, by a clock that only the models move."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attendrop.runs.prune import measure_speed


def measured(
    monkeypatch: pytest.MonkeyPatch, batches: int, *seconds: Callable[[int], float]
) -> tuple[dict[str, float], list[int], float]:
    """What is measured of two models that take so long in each of their calls, whose calls these were, and the time."""
    times, calls = [0.0], []
    monkeypatch.setattr("attendrop.runs.prune.time.perf_counter", lambda: times[-1])

    def model(number: int) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            times.append(times[-1] + seconds[number](calls.count(number)))
            calls.append(number)
            return SimpleNamespace(logits=torch.zeros(1))

        return run

    return measure_speed(model(0), model(1), [{}] * batches), calls, times[-1]


@pytest.mark.parametrize("seconds", [0.0005, 0.03, 3.0])
def test_at_least_two_seconds_in_turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    found, calls, now = measured(monkeypatch, 3, lambda _: seconds, lambda _: seconds / 2)
    assert [found[name] for name in ("median", "low", "high")] == pytest.approx([2, 2, 2])
    assert now > 2.0
    assert calls == [0, 1] * (len(calls) // 2)


def test_median_and_range_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    after = [9.0, 1.0, 0.5, 2.0, 4.0, 1.0]  # the first is not timed
    found, *_ = measured(monkeypatch, 1, lambda _: 2.0, after.__getitem__)
    assert found == {"median": 2.0, "low": 0.5, "high": 4.0, "rounds": 5}
