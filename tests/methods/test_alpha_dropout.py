"""Alpha Dropout: the formula, the moments it keeps, how often it drops, and what its draws depend on."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.one_layer import edit_of
from torch import Tensor

from attendrop import AlphaDropout
from attendrop.methods.head_dropout import affine

ALPHA = -1.7580993408473766


def acted(p: float, inputs: Tensor) -> Tensor:
    """What becomes of hidden units ``(batch, query, heads, dim)`` of a layer."""
    batch, queries, heads, _ = inputs.shape
    edit = edit_of(AlphaDropout(p=p), (batch, heads, queries, queries))
    assert edit.output is not None
    found = edit.output(inputs)
    assert torch.equal(edit.output(inputs), found)  # under activation checkpointing it is called again
    return found


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
def test_each_unit_is_kept_or_saturated_and_then_transformed(p: float) -> None:
    inputs = torch.randn(2, 6, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = 1 - p
    a = 1 / math.sqrt(q + ALPHA**2 * q * (1 - q))
    b = -a * (1 - q) * ALPHA
    dropped = 0
    for before, after in zip(inputs.flatten().tolist(), acted(p, inputs).flatten().tolist(), strict=True):
        if math.isclose(after, a * ALPHA + b, abs_tol=1e-9):
            dropped += 1
        else:
            assert math.isclose(after, a * before + b, abs_tol=1e-9)
    assert dropped / inputs.numel() == pytest.approx(p, abs=4 * math.sqrt(p * q / inputs.numel()))
    assert affine(p) == pytest.approx((a, b))
