"""NEFTune, R3F and SMART: the noise in the word embeddings, and how the passes make up the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import words, zoo
from torch import Tensor

from attendrop import R3F, SMART, NEFTune, regularize
from attendrop.training.regularization import Regularization

LENGTHS = (30, 5, 12)


def test_the_noise_is_uniform_with_a_bound_that_falls_with_the_length() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss, (noise,) = words.stepped(model, NEFTune(alpha=6.0), batch)
    for row, length in zip(noise, LENGTHS, strict=True):
        bound = 6.0 / math.sqrt(length * 16)
        found = row[:length] / bound
        assert 0.9 < found.abs().max() <= 1
        assert found.square().mean().item() == pytest.approx(1 / 3, abs=0.08)  # that of uniform numbers in (-1, 1)
        assert not row[length:].any()
    torch.testing.assert_close(loss, words.added(model, batch, noise).loss)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_of_an_encoder_decoder_model_the_encoder_is_changed(name: str) -> None:
    """Also where the decoder shares the embedding: what it embeds stays as it is."""
    model, batch = zoo.build(name), zoo.batch_of(name)
    module = model.get_decoder().embed_tokens
    decoded = []
    with regularize(model, NEFTune(alpha=20.0)) as reg:
        reg.loss(batch)  # registers the hooks of the method, which run before this one
        hook = module.register_forward_hook(lambda _, args, output: decoded.append((args[0], output.detach())))
        reg.loss(batch)
        hook.remove()
    ids, embedded = decoded[-1]
    assert torch.equal(embedded, module(ids))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_the_loss_of_r3f(kind: str) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss, (clean, noise) = words.stepped(model, R3F(weight=0.7, scale=0.5, noise=kind), batch)
    assert not clean.any()
    outputs, noisy = model(**batch), words.added(model, batch, noise)
    expected = outputs.loss + 0.7 * words.symmetric_kl(outputs.logits, noisy.logits)
    torch.testing.assert_close(loss, expected)
    for row, length in zip(noise, LENGTHS, strict=True):
        assert not row[length:].any()
    sampled = torch.cat([row[:length].flatten() for row, length in zip(noise, LENGTHS, strict=True)]) / 0.5
    assert sampled.mean().item() == pytest.approx(0, abs=0.1)
    assert sampled.var().item() == pytest.approx(1 / 3 if kind == "uniform" else 1, abs=0.1)
    assert (sampled.abs().max() <= 1) == (kind == "uniform")


def divergence_of(name: str, labels: Tensor | None = None, **config: object) -> tuple[Tensor, Tensor, Tensor]:
    """The divergence of a step of R3F, and the logits of its passes."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    model.config.update(config)
    batch |= {} if labels is None else {"labels": labels}
    logits: list[Tensor] = []
    regularization = Regularization(zoo.training(model), R3F(scale=0.5))
    regularization.adapter.trace({**batch})  # type: ignore[union-attr]
    hook = model.register_forward_hook(lambda module, args, output: logits.append(output.logits.detach()))
    loss = regularization.loss(batch)
    hook.remove()
    regularization.close()
    return loss.detach() - model(**batch).loss.detach(), logits[0], logits[1]


def test_numbers_have_a_squared_difference() -> None:
    labels = torch.tensor([[0.1, 0.2, 0.3]] * 3, dtype=torch.float64)
    found, one, other = divergence_of("bert", labels, problem_type="regression")
    torch.testing.assert_close(found, (one - other).square().sum(-1).mean())


def test_several_labels_are_a_sum_of_bernoulli_variables() -> None:
    labels = torch.tensor([[1.0, 0.0, 1.0]] * 3, dtype=torch.float64)
    found, one, other = divergence_of("bert", labels, problem_type="multi_label_classification")
    both = [torch.stack([logits, torch.zeros_like(logits)], -1).flatten(0, 1) for logits in (one, other)]
    torch.testing.assert_close(found, 3 * words.symmetric_kl(*both))


SHORT = (8, 5, 3)
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
def test_the_loss_of_smart(steps: int) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", SHORT)
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
