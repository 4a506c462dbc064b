"""Pinned losses of every method: an unintended change of what training computes shows here."""

from __future__ import annotations

import json

import pytest
from helpers.table import TABLE
from helpers.trajectories import FILE, trajectory

PINNED = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_row_is_pinned() -> None:
    assert PINNED.keys() == TABLE.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", TABLE)
def test_ten_steps_are_as_pinned(row: str) -> None:
    assert trajectory(TABLE[row]) == pytest.approx(PINNED[row], rel=1e-6, abs=1e-7)
