"""How speed is measured, by a clock that only the models move."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attendrop.runs.prune import measure_speed


class Clock:
    """Time, and who took it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def model(self, name: str, seconds: Callable[[int], float]) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            self.now += seconds(self.calls.count(name))
            self.calls.append(name)
            return SimpleNamespace(logits=torch.zeros(1))

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("attendrop.runs.prune.time.perf_counter", lambda: clock.now)
    return clock


@pytest.mark.parametrize("seconds", [0.0005, 0.03, 3.0])
def test_at_least_two_seconds_in_turn(clock: Clock, seconds: float) -> None:
    before, after = clock.model("before", lambda _: seconds), clock.model("after", lambda _: seconds / 2)
    found = measure_speed(before, after, [{}, {}, {}])
    assert [found[name] for name in ("median", "low", "high")] == pytest.approx([2, 2, 2])
    assert clock.now > 2.0
    assert clock.calls[::2] == ["before"] * (len(clock.calls) // 2)
    assert clock.calls[1::2] == ["after"] * (len(clock.calls) // 2)


def test_median_and_range_of_the_rounds(clock: Clock) -> None:
    after = clock.model("after", lambda call: [9.0, 1.0, 0.5, 2.0, 4.0, 1.0][call])  # the first is not timed
    found = measure_speed(clock.model("before", lambda _: 2.0), after, [{}])
    assert found == {"median": 2.0, "low": 0.5, "high": 4.0, "rounds": 5}
