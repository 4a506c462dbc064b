"""Optimizers with a fused kernel, the default of transformers, under a gradient scaler: hooks see what others see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.device import DEVICE

from attendrop import AttendOut, regularize
from attendrop_methods import L2SP


def trained(optimizer_class: Any, *, fused: bool, overflow: int | None = None) -> dict[str, Any]:
    """Train with L2-SP for three steps, without clipping; in one of them a gradient is infinite."""
    model, batch = zoo.build("bert"), zoo.on_device(zoo.batch_of("bert"))
    optimizer = optimizer_class(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**10)
    with regularize(model, L2SP(alpha=1.0, beta=1.0), optimizer=optimizer, scaler=scaler) as reg:
        for step in range(3):
            scaler.scale(reg.loss(batch)).backward()
            if step == overflow:
                model.classifier.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            reg.step()
    return dict(model.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_methods_edit_gradients_without_the_scale(optimizer_class: Any) -> None:
    found = [trained(optimizer_class, fused=fused, overflow=1) for fused in (True, False)]
    zoo.assert_same(found[0], found[1], 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_the_second_model_skips_the_steps_that_the_first_skips(fused: bool) -> None:
    model, batch = zoo.build("bert"), zoo.on_device(zoo.batch_of("bert"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE.type)
    method, moved = AttendOut(dropout_step=4, reward_batch_size=3), []
    with regularize(model, method, optimizer=optimizer, scaler=scaler, reward_data=[batch]) as reg:
        for step in range(3):
            scaler.scale(reg.loss(batch)).backward()
            if step == 1:
                model.classifier.weight.grad.fill_(float("inf"))
            models = (model, reg.method_state.players.defender.model)  # type: ignore[attr-defined]
            before = [each.classifier.weight.clone() for each in models]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            moved.append(
                [not torch.equal(each.classifier.weight, old) for each, old in zip(models, before, strict=True)]
            )
            reg.step()
    assert moved == [[True, True], [False, False], [True, True]]
