"""Dropout with learnt probabilities or variances: the noise, the priors, and how probabilities learn."""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.plans import weighted
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence
from torch.nn import functional

from attendrop import Method
from attendrop.extend import row_losses, row_shares
from attendrop.methods.core.context import Processes
from attendrop.randomness.keyed_random import SampleKey, sample_mask, uniform
from attendrop.training.regularization import Regularization
from attendrop_methods import ConcreteDropout, ContextualDropout, LearnableBernoulli, VariationalDropout
from attendrop_methods.learnt_dropout import bernoulli_divergence, query_weights


def concrete(model: Any, processes: Processes | None = None, **options: Any) -> Regularization:
    return Regularization(zoo.training(model, processes), ConcreteDropout(**({"num_train_rows": 10} | options)))


BATCH = (8, 5, 3)
KEY, SHAPE, ORIGINS = SampleKey(0, 0, 0, 3), (3, 2, 8, 8), torch.zeros(3, 2, dtype=torch.long)


def relaxed(layer: str) -> Tensor:
    """What weights are multiplied by with p = 0.4 and a temperature of 0.5."""
    u = uniform(KEY, layer, SHAPE, ORIGINS, ORIGINS.device).double()
    z = ((math.log(0.4 / 0.6) + u.log() - (1 - u).log()) / 0.5).sigmoid()
    return (1 - z) / 0.6


def normal(layer: str) -> Tensor:
    """Samples of N(1, 0.2), one by one."""
    sampled = uniform(KEY, layer, SHAPE, ORIGINS, ORIGINS.device)
    return 1 + math.sqrt(0.2) * sampled.double().apply_(NormalDist().inv_cdf)


def kept(layer: str) -> Tensor:
    return (~sample_mask(0.3, KEY, layer, SHAPE, ORIGINS, ORIGINS.device)).double() / 0.7


def penalty(alpha: float) -> float:
    """Eq. 14."""
    return -(0.5 * math.log(alpha) + 1.16145124 * alpha - 1.50204118 * alpha**2 + 0.58629921 * alpha**3)


@pytest.mark.parametrize(
    ("method", "factors", "term"),
    [
        (ConcreteDropout(p=0.4, temperature=0.5, num_train_rows=10**9), relaxed, 0.0),
        (VariationalDropout(alpha=0.2, kl_weight=3.0, num_train_rows=10), normal, 3.0 / 10 * 2 * penalty(0.2)),
        (LearnableBernoulli(p=0.3, num_train_rows=10**9), kept, 0.0),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_the_loss_is_that_of_weights_with_noise_and_the_penalty(method: Method, factors: Any, term: float) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", BATCH)
    reg = Regularization(zoo.training(model), method)
    loss = reg.loss(batch)
    reg.close()
    expected = weighted(model, batch, {key: factors(key) for key in ("encoder.0", "encoder.1")}).loss + term
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_the_penalty_is_that_of_the_paper() -> None:
    model, batch = zoo.build("gpt2", dtype=torch.float64), zoo.batch_of("gpt2")
    p, scale, count, rows = 0.2, 0.7, 3.0, 50
    reg = concrete(model, p=p, length_scale=scale, entropy_weight=count, num_train_rows=rows)
    with_penalty = reg.loss(batch)
    setattr(reg.method_state, "penalty", lambda step, outputs: None)  # noqa: B010
    reg.begin_step(0)
    without = reg.loss(batch)
    reg.close()
    expected = 2 * count * (p * math.log(p) + (1 - p) * math.log(1 - p))
    for block in model.transformer.h:
        # Theirs is the norm of the weights before what is kept is scaled up.
        expected += scale**2 * (1 - p) / 2 * (block.attn.c_attn.weight[:, 32:] / (1 - p)).square().sum().item()
    assert (with_penalty - without).item() == pytest.approx(expected / rows, rel=1e-5)


def learnt(reg: Regularization) -> list[float]:
    return list(reg.method_state.final_report([])["concrete_dropout"].values())


def gradient(scale: float = 1.0, processes: Processes | None = None) -> Tensor:
    """The gradient that the optimizer of the probabilities sees."""
    reg, found = concrete(zoo.build("bert", dtype=torch.float64), processes), list[Tensor]()
    method_state: Any = reg.method_state
    reg.loss_scale = scale
    (reg.loss(zoo.batch_of("bert")) * scale).backward()
    method_state.optimizer.register_step_pre_hook(lambda *_: found.append(method_state.values.grad.clone()))
    reg.step()
    reg.close()
    assert method_state.values.grad is None
    return found[0]


def test_the_gradient_is_a_mean_over_processes_without_the_loss_scale() -> None:
    found = gradient(1024.0, Processes(0, 2, lambda total: 2 * total))
    torch.testing.assert_close(found, gradient(), rtol=1e-5, atol=1e-7)


def test_variances_grow_to_one_at_most_where_the_prior_decides() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    method = VariationalDropout(num_train_rows=10, kl_weight=100.0, learning_rate=0.5)
    reg = Regularization(zoo.training(model), method)
    for _ in range(10):
        reg.loss(batch).backward()
        reg.step()
    assert reg.logs()["variational_dropout/variance/encoder.0"] > 0.11
    assert set(reg.method_state.final_report([])["variational_dropout"].values()) == {1.0}
    reg.close()


# One row of two tokens, and two heads: eight positions in a layer.
MASKS = torch.tensor(list(product((0.0, 1.0), repeat=8)), dtype=torch.float64).view(-1, 2, 2, 2)


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


def test_the_gradient_of_bernoulli_dropout_is_an_unbiased_estimate() -> None:
    """Of each step, which is a mean over 256 independent pairs of samples of the same row."""
    model = zoo.build("bert", dtype=torch.float64)
    exact = exact_gradient(model, 0.3).sum().item()
    method = LearnableBernoulli(p=0.3, layers="first", num_train_rows=10**9)
    reg, found = Regularization(zoo.training(model), method), []
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


@pytest.mark.parametrize(
    ("name", "problem"),
    [*((name, "") for name in ("bert-tokens", "gpt2", "bert")), ("bert", "multi_label_classification")],
)
def test_losses_of_rows_sum_to_that_of_the_model(name: str, problem: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    if problem:
        model.config.problem_type = problem
        batch["labels"] = torch.tensor([[1.0, 0.0, 1.0]] * 3, dtype=torch.float64)
    elif name == "bert":
        batch["labels"][1] = -100  # ignored
    outputs = model(**batch)
    losses = row_losses(model, outputs, batch)
    assert losses.shape == (3,)
    torch.testing.assert_close(losses.sum().float(), outputs.loss.float())
    if name == "bert" and not problem:
        assert row_shares(model, outputs, batch).tolist() == [0.5, 0, 0.5]
        likely = torch.eye(3)[batch["labels"].clamp(min=0)]  # as probabilities
        torch.testing.assert_close(row_losses(model, outputs, batch | {"labels": likely})[::2], losses[::2] * 2 / 3)


def test_the_gradient_is_that_of_the_method_without_context() -> None:
    """Whose estimate is unbiased. It is the sum over heads; log-odds at the start are the bias of the last layer."""
    found: list[dict[str, Tensor]] = []
    for method in (ContextualDropout(p=0.3, prior_weight=0.0), LearnableBernoulli(p=0.3, num_train_rows=2 * 10**9)):
        reg = Regularization(zoo.training(zoo.build("bert", dtype=torch.float64)), method)
        reg.loss(zoo.batch_of("bert", (8, 5, 3))).backward()
        found.append({name: value.grad for name, value in reg.method_state.parameters.items()})  # type: ignore[attr-defined]
        reg.close()
    networks, values = found
    for layer, expected in enumerate(values["values"]):
        heads = networks[f"encoder.{layer}/second bias"]
        assert heads.sum().item() == pytest.approx(expected.item(), rel=1e-4)
        assert heads[0] != heads[1]
        assert networks[f"encoder.{layer}/second"].abs().max() > 0
    assert networks["encoder.0/prior"] == 0


def test_the_share_of_a_row_is_divided_among_its_sequences_and_their_queries() -> None:
    queries = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    expected = torch.tensor([[2, 2, 2, 2], [4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 4, 4]]) / 32
    torch.testing.assert_close(query_weights(queries, torch.tensor([0.5, 0.25])), expected)


def test_the_divergence_from_the_prior() -> None:
    log_odds, prior = torch.tensor([-3.0, 0.0, 40.0]), torch.tensor(-1.0)
    expected = kl_divergence(Bernoulli(logits=log_odds), Bernoulli(logits=prior))
    torch.testing.assert_close(bernoulli_divergence(log_odds, prior), expected)
    assert bernoulli_divergence(prior, prior) == 0
