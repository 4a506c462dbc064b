"""Contextual dropout: the networks, the prior, and the gradient that trains them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence

from attendrop import regularize
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall
from attendrop.training.regularization import Regularization
from attendrop_methods import ContextualDropout, LearnableBernoulli
from attendrop_methods.contextual_dropout import _NetworksPlan, bernoulli_divergence, mean_values, query_weights


def at_work(model: Any, **options: Any) -> Regularization:
    return Regularization(zoo.training(model), ContextualDropout(**options))


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


def test_the_loss_has_the_divergence_from_the_prior() -> None:
    model, batch, losses = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert"), []
    for weight in (0.0, 2.0):
        reg = at_work(model, p=0.3, prior_weight=weight)
        reg.loss(batch)
        parameters: dict[str, Tensor] = reg.method_state.parameters  # type: ignore[attr-defined]
        for layer in range(2):
            parameters[f"encoder.{layer}/prior"].data.fill_(0.0)
        reg.begin_step(0)
        losses.append(reg.loss(batch).item())
        reg.close()
    divergence = kl_divergence(Bernoulli(torch.tensor(0.3)), Bernoulli(torch.tensor(0.5))).item()
    assert losses[1] - losses[0] == pytest.approx(2.0 * 2 * 2 * divergence, rel=1e-5)  # layers and heads


@pytest.mark.parametrize(("name", "labels"), [("gpt2", (7, 4, 2)), ("bart", (6, 3, 2))])
def test_rows_are_weighted_as_in_the_loss(name: str, labels: tuple[int, ...]) -> None:
    """In the first layer, whose values do not depend on what is dropped. Rows alone have no padding."""
    lengths = (8, 5, 3)
    alone = [divergence_of(name, zoo.collate([row])) for row in zoo.rows(name, lengths)]
    expected = sum(count * value for count, value in zip(labels, alone, strict=True)) / sum(labels)
    assert divergence_of(name, zoo.batch_of(name, lengths)) == pytest.approx(expected, rel=1e-5)
    assert max(alone) > 1.1 * min(alone)


def divergence_of(name: str, batch: zoo.Batch) -> float:
    model, losses = zoo.build(name, dtype=torch.float64), []
    for weight in (0.0, 1.0):
        layers = "decoder:first" if name == "bart" else "first"
        reg = at_work(model, p=0.3, prior_weight=weight, layers=layers)
        reg.loss(batch)
        moved_networks(reg)
        reg.begin_step(0)
        losses.append(reg.loss(batch).item())
        reg.close()
    return losses[1] - losses[0]


def call_of(valid: Tensor | None) -> AttentionCall:
    return AttentionCall(AttentionLayer("a", "encoder", 0), (2, 2, 5, 5), valid, torch.device("cpu"))


def test_the_network_reads_the_mean_over_valid_keys() -> None:
    value = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = (5, 3)
    valid = (torch.arange(5) < torch.tensor(lengths)[:, None])[:, None, None]
    found = mean_values(call_of(valid), value)
    for row, length, own in zip(found, lengths, value, strict=True):
        torch.testing.assert_close(row, normalised(own[:, :length].mean(1))[None])
    torch.testing.assert_close(mean_values(call_of(None), value)[0], found[0])


def normalised(mean: Tensor) -> Tensor:
    return (mean.flatten() - mean.mean()) / (mean.var(unbiased=False) + 1e-5).sqrt()


def test_the_network_reads_what_a_query_may_attend_to() -> None:
    value = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    causal = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    padded = causal & (torch.arange(5) >= torch.tensor([0, 2])[:, None])[:, None, None]  # left
    for found, first in ((mean_values(call_of(causal), value), (0, 0)), (mean_values(call_of(padded), value), (0, 2))):
        for row, own, start in zip(found, value, first, strict=True):
            for query in range(start, 5):
                torch.testing.assert_close(row[query], normalised(own[:, start : query + 1].mean(1)))


def test_the_share_of_a_row_is_divided_among_its_sequences_and_their_queries() -> None:
    queries = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    expected = torch.tensor([[2, 2, 2, 2], [4, 4, 0, 0], [0, 0, 0, 0], [0, 0, 4, 4]]) / 32
    torch.testing.assert_close(query_weights(queries, torch.tensor([0.5, 0.25])), expected)


def moved_networks(reg: Regularization) -> None:
    """Set the networks to ones whose probabilities depend on what they read."""
    parameters: dict[str, Tensor] = reg.method_state.parameters  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    for name, value in parameters.items():
        if name.endswith("/second"):
            value.data = torch.randn(value.shape, generator=generator)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_no_prediction_depends_on_later_tokens(name: str) -> None:
    column = "decoder_input_ids" if name == "bart" else "input_ids"
    found = []
    for last in (7, 9):
        model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, (8, 8))
        batch[column] = batch["labels"].clone() if name == "bart" else batch[column]
        batch[column][:, -1] = last
        outputs: list[Any] = []
        model.register_forward_hook(lambda module, inputs, output, outputs=outputs: outputs.append(output))
        with regularize(model, ContextualDropout(p=0.3)) as reg:
            reg.loss(batch)
            moved_networks(reg)
            reg.loss(batch)
        found.append(outputs[-1].logits.detach())
    assert not torch.equal(found[0][:, -1], found[1][:, -1])
    assert torch.equal(found[0][:, :-1], found[1][:, :-1])


def test_the_log_odds_are_those_of_the_network() -> None:
    shapes = {"first": (6, 8), "first bias": (6,), "second": (2, 6), "second bias": (2,)}
    generator = torch.Generator().manual_seed(0)
    own = {f"encoder.0/{name}": torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, ContextualDropout()) as reg:
        reg.loss(batch)
        plan = _NetworksPlan(reg.method, _context(reg, batch), {"encoder.0"}, own, antithetic=False)
    plan.contexts["encoder.0"] = torch.randn(3, 5, 8, generator=generator)
    assert plan.log_odds("encoder.0").shape == (3, 2, 5)
    for row, context in zip(_flat(plan.log_odds("encoder.0")), plan.contexts["encoder.0"].flatten(0, 1), strict=True):
        hidden = own["encoder.0/first"] @ context + own["encoder.0/first bias"]
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        torch.testing.assert_close(row, own["encoder.0/second"] @ hidden + own["encoder.0/second bias"])
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as within the model, where weights are dropped
        inside = plan.log_odds("encoder.0")
    assert torch.equal(inside, plan.log_odds("encoder.0"))


def _flat(log_odds: Tensor) -> Tensor:
    return log_odds.transpose(1, 2).flatten(0, 1)


def _context(reg: Regularization, batch: zoo.Batch) -> Any:
    """The context of a micro-batch, as a method sees it."""
    seen: list[Any] = []
    stock = reg.method_state.loss
    reg.method_state.loss = lambda context, compute: (seen.append(context), stock(context, compute))[1]  # type: ignore[method-assign,func-returns-value]
    reg.loss(batch)
    return seen[0]


def test_the_divergence_from_the_prior() -> None:
    log_odds, prior = torch.tensor([-3.0, 0.0, 40.0]), torch.tensor(-1.0)
    expected = kl_divergence(Bernoulli(logits=log_odds), Bernoulli(logits=prior))
    torch.testing.assert_close(bernoulli_divergence(log_odds, prior), expected)
    assert bernoulli_divergence(prior, prior) == 0
