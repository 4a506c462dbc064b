"""SMART: the adversarial perturbation, and how the passes make up the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import words, zoo
from torch import Tensor

from attendrop import SMART

LENGTHS = (8, 5, 3)
LIMITS = {"epsilon": 0.05, "step_size": 0.03, "noise": 0.02}


def ascended(model: Any, batch: zoo.Batch, delta: Tensor, method: SMART) -> Tensor:
    """One step of Algorithm 1, sequence by sequence."""
    delta = delta.detach().requires_grad_()
    fixed = model(**batch).logits.detach()
    (gradient,) = torch.autograd.grad(words.symmetric_kl(fixed, words.added(model, batch, delta).logits), delta)
    rows = []
    for row, slope in zip(delta.detach(), gradient, strict=True):
        moved = row + method.step_size * slope / slope.abs().max()
        rows.append(moved.clamp(-method.epsilon, method.epsilon))
    return torch.stack(rows)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_loss(steps: int) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    method = SMART(weight=0.7, steps=steps, **LIMITS)
    loss, (clean, start, *deltas) = words.stepped(model, method, batch)
    assert not clean.any() and len(deltas) == steps
    expected = start
    for delta in deltas:
        expected = ascended(model, batch, expected, method)
        torch.testing.assert_close(delta, expected, rtol=1e-4, atol=1e-6)  # the noise is in float32
    outputs, perturbed = model(**batch), words.added(model, batch, deltas[-1])
    divergence = words.symmetric_kl(outputs.logits, perturbed.logits)
    torch.testing.assert_close(loss, outputs.loss + 0.7 * divergence)
    assert divergence > words.symmetric_kl(outputs.logits, words.added(model, batch, start).logits)


def test_the_noise_is_normal_and_leaves_padding_alone() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", (30, 20))
    _, (_, start, delta) = words.stepped(model, SMART(**LIMITS), batch)
    assert start[0].std().item() == pytest.approx(0.02, rel=0.1)
    assert start[0].mean().item() == pytest.approx(0, abs=0.003)
    assert not start[1, 20:].any()
    assert delta.abs().max() <= 0.05 + 1e-6


def test_the_default_limit_is_reached_in_one_step() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    _, (_, _, delta) = words.stepped(model, SMART(), batch)
    at_limit = delta[0].abs() > 0.999e-5
    assert at_limit.float().mean() > 0.8
