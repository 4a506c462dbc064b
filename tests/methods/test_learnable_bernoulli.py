"""Learnable Bernoulli Dropout: the dropout, and the gradient of the probabilities."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.weighted import weighted
from torch import Tensor
from torch.nn import functional

from attendrop import AttendropError, ContextualDropout, LearnableBernoulli, regularize
from attendrop.methods.common.antithetic import row_losses, row_shares
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop.training.regularization import Regularization

# One row of two tokens, and two heads: eight positions in a layer.
MASKS = torch.tensor(list(product((0.0, 1.0), repeat=8)), dtype=torch.float64).view(-1, 2, 2, 2)


def at_work(model: Any, **options: Any) -> Regularization:
    return Regularization(zoo.training(model), LearnableBernoulli(**({"num_train_rows": 10**9} | options)))


def one_row(copies: int) -> zoo.Batch:
    return {name: value.repeat_interleave(copies, 0) for name, value in zoo.batch_of("bert", (2,)).items()}


def exact_gradient(model: Any, p: float) -> Tensor:
    """The gradient of the expected loss by the log-odds of each head of the first layer, over all masks."""
    log_odds = torch.full((2,), math.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
    drop = log_odds.sigmoid()[:, None, None]
    chances = torch.where(MASKS > 0, 1 - drop, drop).flatten(1).prod(1)
    batch = one_row(len(MASKS))
    logits = weighted(model, batch, {"encoder.0": MASKS / (1 - drop)}).logits
    losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
    (gradient,) = torch.autograd.grad((chances * losses).sum(), log_odds)
    return gradient


def test_the_loss_is_that_of_dropout() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3))
    reg = at_work(model, p=0.3)
    loss = reg.loss(batch)
    reg.close()
    origins = torch.zeros(3, 2, dtype=torch.long)
    factors = {}
    for key in ("encoder.0", "encoder.1"):
        drop = sample_mask(0.3, SampleKey(0, 0, 0, 3), key, (3, 2, 8, 8), origins, origins.device)
        factors[key] = (~drop).double() / 0.7
    torch.testing.assert_close(loss, weighted(model, batch, factors).loss, rtol=1e-6, atol=1e-6)


def test_the_gradient_is_an_unbiased_estimate() -> None:
    """Of each step, which is a mean over 256 independent pairs of samples of the same row."""
    model = zoo.build("bert", dtype=torch.float64)
    exact = exact_gradient(model, 0.3).sum().item()
    reg, found = at_work(model, p=0.3, layers="first"), []
    values: Any = None
    for step in range(30):
        reg.begin_step(step)
        reg.loss(one_row(256)).backward()
        values = reg.method_state.values  # type: ignore[attr-defined]
        found.append(values.grad.item())
        values.grad = None
    reg.close()
    samples = torch.tensor(found)
    error = samples.std().item() / math.sqrt(len(found))
    assert samples.mean().item() == pytest.approx(exact, abs=4 * error)
    assert error < 0.2 * abs(exact)  # else the test would tell nothing


def test_the_antithetic_pass_has_the_same_dropout_and_leaves_no_trace() -> None:
    """With ``p`` near 0 nothing is dropped in either pass: they are equal, and so is the state of plain fine-tuning."""
    model, batch = zoo.build("bert", dropout=0.3, dtype=torch.float64), zoo.batch_of("bert")
    torch.manual_seed(3)
    plain = model(**batch).loss
    after = torch.get_rng_state()
    reg = at_work(model, p=1e-9)
    torch.manual_seed(3)
    loss = reg.loss(batch)
    assert torch.equal(torch.get_rng_state(), after)
    loss.backward()
    reg.close()
    torch.testing.assert_close(loss, plain)
    assert reg.method_state.values.grad.abs().max() < 1e-6  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["bert", "bert-tokens", "bert-choice", "gpt2", "bart"])
def test_losses_of_rows_sum_to_that_of_the_model(name: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    outputs = model(**batch)
    losses = row_losses(model, outputs, batch)
    assert losses.shape == (3,)
    torch.testing.assert_close(losses.sum().float(), outputs.loss.float())


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_losses_of_numbers_and_several_labels(problem: str) -> None:
    model = zoo.build("bert", dtype=torch.float64)
    model.config.problem_type = problem
    batch = zoo.batch_of("bert") | {"labels": torch.tensor([[1.0, 0.0, 1.0]] * 3, dtype=torch.float64)}
    outputs = model(**batch)
    torch.testing.assert_close(row_losses(model, outputs, batch).sum(), outputs.loss)


# Beyond the eight tokens of the batch, an answer is not in the window; a negative position counts as the first.
@pytest.mark.parametrize("start", [[1, 2, 0], [1, 8, 30], [-100, 2, 30]], ids=str)
def test_losses_of_answers_ignore_what_the_model_ignores(start: list[int]) -> None:
    model = zoo.from_class("BertForQuestionAnswering", {**zoo.ZOO["bert"].options, "num_labels": 2}).double().train()
    batch = zoo.batch_of("bert", labels=False)
    batch |= {"start_positions": torch.tensor(start), "end_positions": torch.tensor([3, 9, 2])}
    outputs = model(**batch)
    losses, shares = row_losses(model, outputs, batch), row_shares(model, outputs, batch)
    torch.testing.assert_close(losses.sum(), outputs.loss)
    counted = torch.tensor([[each < 8 for each in start], [True, False, True]]).double()
    torch.testing.assert_close(shares.double(), (counted / counted.sum(1, keepdim=True)).mean(0))
    for method in (LearnableBernoulli(num_train_rows=9), ContextualDropout()):
        with regularize(model, method) as reg:
            assert reg.loss(batch).isfinite()


def test_losses_of_rows_without_a_class_are_ignored() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    batch["labels"][1] = -100
    outputs = model(**batch)
    torch.testing.assert_close(row_losses(model, outputs, batch).sum(), outputs.loss)
    assert row_shares(model, outputs, batch).tolist() == [0.5, 0, 0.5]


def test_losses_need_labels() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with pytest.raises(AttendropError, match="needs labels in the batch"):
        row_losses(model, model(**batch), {})
