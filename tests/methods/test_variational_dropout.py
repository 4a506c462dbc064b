"""Variational dropout: the noise, the penalty, and how the variances learn."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.weighted import weighted
from torch import Tensor

from attendrop import VariationalDropout
from attendrop.methods.learnt_dropout import divergence
from attendrop.randomness.keyed_random import SampleKey, uniform
from attendrop.training.regularization import Regularization

LENGTHS = (8, 5, 3)


def at_work(model: Any, **options: Any) -> Regularization:
    return Regularization(zoo.training(model), VariationalDropout(**({"num_train_rows": 10} | options)))


def noise(layer: str) -> Tensor:
    """Samples of N(0, 1) of the first step, one by one."""
    shape, origins = (3, 2, 8, 8), torch.zeros(3, 2, dtype=torch.long)
    sampled = uniform(SampleKey(0, 0, 0, 3), layer, shape, origins, origins.device)
    return sampled.double().apply_(NormalDist().inv_cdf)


def penalty(alpha: float) -> float:
    """Eq. 14."""
    return -(0.5 * math.log(alpha) + 1.16145124 * alpha - 1.50204118 * alpha**2 + 0.58629921 * alpha**3)


def test_the_loss() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    reg = at_work(model, alpha=0.2, kl_weight=3.0)
    loss = reg.loss(batch)
    reg.close()
    factors = {key: 1 + math.sqrt(0.2) * noise(key) for key in ("encoder.0", "encoder.1")}
    expected = weighted(model, batch, factors).loss + 3.0 / 10 * 2 * penalty(0.2)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_the_penalty_approximates_the_divergence_from_the_log_uniform_prior() -> None:
    """Which is, up to a constant, E log|e| - log(alpha) / 2 with e from N(1, alpha)."""
    generator = torch.Generator().manual_seed(0)
    sampled = torch.randn(400_000, dtype=torch.float64, generator=generator)
    alphas = (0.05, 0.2, 0.5, 1.0)
    exact = [(1 + math.sqrt(a) * sampled).abs().log().mean().item() - 0.5 * math.log(a) for a in alphas]
    found = [divergence(torch.tensor(math.log(a))).item() for a in alphas]
    for alpha, one, other in zip(alphas, exact, found, strict=True):
        assert other == pytest.approx(penalty(alpha), rel=1e-5)
        assert one - exact[0] == pytest.approx(other - found[0], abs=0.02)


def test_variances_grow_to_one_at_most_where_the_prior_decides() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    reg = at_work(model, kl_weight=100.0, learning_rate=0.5)
    for _ in range(10):
        reg.loss(batch).backward()
        reg.step()
    assert reg.logs()["variational_dropout/variance/encoder.0"] > 0.11
    assert set(reg.method_state.final_report([])["variational_dropout"].values()) == {1.0}
    reg.close()


def test_the_gradient_of_the_variances_is_that_of_the_loss() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    reg = at_work(model, alpha=0.2)
    reg.loss(batch).backward()
    values = reg.method_state.values  # type: ignore[attr-defined]
    for layer in range(2):
        losses = []
        for shift in (1e-2, -1e-2):
            values.data[layer] += shift
            reg.begin_step(0)
            losses.append(reg.loss(batch).item())
            values.data[layer] -= shift
        assert values.grad[layer].item() == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=1e-2, abs=1e-5)
    reg.close()
