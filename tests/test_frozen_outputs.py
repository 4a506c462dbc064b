"""What the commands print and write stays as it is, but for intended changes: `make frozen` updates `tests/frozen`."""

from __future__ import annotations

import pytest
from helpers.frozen_outputs import FROZEN, frozen_outputs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    return dict(frozen_outputs())


def test_nothing_appeared_or_went(outputs: dict[str, str]) -> None:
    assert set(outputs) == {path.stem for path in FROZEN.iterdir()}


@pytest.mark.parametrize("name", sorted(path.stem for path in FROZEN.iterdir()))
def test_output_is_unchanged(name: str, outputs: dict[str, str]) -> None:
    assert outputs[name] == (FROZEN / f"{name}.txt").read_text(encoding="utf-8")
