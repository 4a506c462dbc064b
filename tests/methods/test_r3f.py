"""R3F: the noise, and how both passes make up the loss."""

from __future__ import annotations

import pytest
import torch
from helpers import words, zoo
from torch import Tensor

from attendrop import R3F
from attendrop.training.regularization import Regularization

LENGTHS = (30, 5, 12)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_the_loss(kind: str) -> None:
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
