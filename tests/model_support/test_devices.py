"""Devices: which are used, and which cannot be."""

from __future__ import annotations

import pytest
import torch

from attendrop.errors import AttendropError
from attendrop.model_support.devices import compute_device, refuse_device


@pytest.mark.parametrize(
    ("asked", "there", "used"),
    [("auto", "cuda", "cuda"), ("cpu", "cuda", "cpu"), ("auto", None, "cpu"), ("auto", "mps", "cpu")],
)
def test_the_accelerator_is_used_but_for_apples(
    monkeypatch: pytest.MonkeyPatch, asked: str, there: str | None, used: str
) -> None:
    found = None if there is None else torch.device(there)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    assert compute_device(asked).type == used


def test_apples_gpus_are_refused_in_words() -> None:
    refuse_device(torch.device("cuda"))
    with pytest.raises(AttendropError, match=r"Apple's GPUs \(MPS\) have no 64-bit"):
        refuse_device(torch.device("mps"))
