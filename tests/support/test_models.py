"""Models and devices: how many tokens there are positions for, and which devices are used."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo

from attendrop.support.models import compute_device, position_limit


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 40), ("roberta", 39), ("bart", 40), ("vit", None), ("llama", None)]
)
def test_rows_that_no_token_takes_do_not_count(name: str, limit: int | None) -> None:
    assert position_limit(zoo.build(name)) == limit


@pytest.mark.parametrize(
    ("asked", "there", "used"), [("auto", "cuda", "cuda"), ("cpu", "cuda", "cpu"), ("auto", "mps", "cpu")]
)
def test_the_accelerator_is_used_but_for_apples(
    monkeypatch: pytest.MonkeyPatch, asked: str, there: str, used: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(there))
    assert compute_device(asked).type == used
