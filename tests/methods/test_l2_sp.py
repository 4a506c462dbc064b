"""L2-SP: the gradient of the penalty, and the weights that it pulls to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo

from attendrop import L2SP, AttendropError, regularize
from attendrop.methods.common.parameters import pretrained_parameters
from attendrop.training.regularization import Regularization


def moved(model: Any) -> None:
    """Change all weights, as training would."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.2


def test_the_gradient_is_that_of_the_loss_and_the_penalty() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with regularize(model, L2SP(alpha=0.3, beta=0.7), optimizer=optimizer) as reg:
        moved(model)
        reg.loss(batch).backward()
        optimizer.step()
    found = zoo.gradients(model)
    distance = sum(
        ((value - start[name]) ** 2).sum() for name, value in model.named_parameters() if name.startswith("bert.")
    )
    norm = sum((value**2).sum() for value in model.classifier.parameters())
    (model(**batch).loss + 0.3 / 2 * distance + 0.7 / 2 * norm).backward()
    zoo.assert_same(found, zoo.gradients(model), 1e-9)


def test_the_pull_grows_with_the_distance_and_the_run_reports_it() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    before = torch.cat([parameter.detach().flatten() for parameter in model.bert.parameters()])
    distances = []
    for alpha in (0.01, 8.0):
        model = zoo.build("bert", dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with regularize(model, L2SP(alpha=alpha), optimizer=optimizer) as reg:
            for _ in range(10):
                reg.loss(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                reg.step()
            distances.append(reg.method_state.final_report([])["l2_sp"]["distance"])
        after = torch.cat([parameter.detach().flatten() for parameter in model.bert.parameters()])
        assert distances[-1] == pytest.approx(float((after - before).norm()))
    assert distances[1] < 0.7 * distances[0]


def test_it_pulls_to_where_an_interrupted_run_began() -> None:
    """A resumed run starts from the weights of its checkpoint, which are not the pre-trained ones."""
    states = []
    for is_moved in (False, True):
        model = zoo.build("bert")
        if is_moved:
            moved(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        states.append(Regularization(zoo.training(model, optimizer=optimizer), L2SP()).method_state)
    states[1].load_state_dict(states[0].state_dict(), {})
    zoo.assert_same(states[0].state_dict()["start"], states[1].state_dict()["start"])
    assert states[1].final_report([])["l2_sp"]["distance"] > 1


def test_frozen_weights_and_those_without_a_gradient_stay() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    model.bert.embeddings.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with regularize(model, L2SP(beta=5.0), optimizer=optimizer) as reg:
        reg.loss(batch).backward()
        model.classifier.bias.grad = None
        optimizer.step()
    after = dict(model.named_parameters())
    for name in ("bert.embeddings.word_embeddings.weight", "classifier.bias"):
        assert torch.equal(before[name], after[name].detach())


def test_sparse_gradients_are_refused() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    model.bert.embeddings.word_embeddings.sparse = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with regularize(model, L2SP(), optimizer=optimizer) as reg:
        reg.loss(batch).backward()
        with pytest.raises(AttendropError, match="sparse=False"):
            optimizer.step()


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", {"classifier.weight", "classifier.bias"}),
        ("vit", {"classifier.weight", "classifier.bias"}),
        ("gpt2", set()),  # its output is its embedding
        ("llama", {"lm_head.weight"}),
        ("gpt2-class", {"score.weight"}),
    ],
)
def test_all_but_the_head_is_pre_trained(name: str, head: set[str]) -> None:
    model = zoo.build(name)
    assert {key for key, _ in model.named_parameters()} - set(pretrained_parameters(model)) == head
