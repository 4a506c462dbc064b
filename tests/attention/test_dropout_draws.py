"""Draws of dropout that two passes have in common are made once, and change no result."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from torch.nn import functional

from attendrop import ADDrop, regularize
from attendrop.attention import edits
from attendrop.attention.edits import DropoutDraws

SHAPE = (2, 3, 17, 17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_drawn_or_kept_it_is_the_dropout_of_torch(p: float, dtype: torch.dtype) -> None:
    weights, draws = torch.randn(SHAPE, dtype=dtype), DropoutDraws()
    found = []
    for dropout in (functional.dropout, draws.dropout, draws.dropout):
        torch.manual_seed(3)
        found.append([dropout(weights, p), dropout(weights, p), torch.rand(4)])
    for passes in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(passes, found[0], strict=True))


def test_another_random_state_shape_or_probability_draws_anew() -> None:
    draws = DropoutDraws()
    for seed, shape, p in [(3, SHAPE, 0.5), (4, SHAPE, 0.5), (3, (*SHAPE[:3], 9), 0.5), (3, SHAPE, 0.4)]:
        torch.manual_seed(seed)
        found = draws.dropout(torch.ones(shape), p)
        torch.manual_seed(seed)
        assert torch.equal(found, functional.dropout(torch.ones(shape), p))


@pytest.mark.parametrize("attribution", ["gradient", "attention"])
def test_ad_drop_draws_the_dropout_of_each_layer_once(attribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(edits, "pack", lambda kept: drawn.append(kept) or (kept, kept.shape))
    monkeypatch.setattr(edits, "unpack", lambda kept, shape: kept)
    model = zoo.build("bert", dropout=0.5, num_hidden_layers=3)
    with regularize(model, ADDrop(attribution=attribution, layers="all")) as reg:
        reg.loss(zoo.batch_of("bert")).backward()
    assert len(drawn) == 3
