"""Concrete Dropout: relaxed draws, the prior's term, and how the probabilities learn."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import (
    AttendropError,
    ConcreteDropout,
    regularize,
)
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.call import AttentionCall
from attendrop.methods.common.own_parameters import entropy
from attendrop.methods.core.context import Processes, StepContext
from attendrop.methods.core.running_statistics import RunningStatistics
from attendrop.randomness.keyed_random import SampleKey, uniform
from attendrop.training.regularization import Regularization

SHAPE = (2, 2, 5, 5)


def at_work(model: Any, processes: Processes | None = None, **options: Any) -> Regularization:
    return Regularization(zoo.training(model, processes), ConcreteDropout(**({"num_train_rows": 10} | options)))


def acted(weights: Tensor, **options: Any) -> Tensor:
    """What becomes of attention weights of the first layer."""
    shape: Any = tuple(weights.shape)
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (shape[-1],) * shape[0])
    adapter = ModelAdapter(model)
    adapter.trace(batch)
    key, method = SampleKey(0, 0, 0, shape[0]), ConcreteDropout(num_train_rows=10, **options)
    context = StepContext(model, batch, key, RunningStatistics(), method.source, adapter_if_any=adapter)
    plan = method.start(zoo.training(model)).plan(context)
    assert plan is not None
    edit = plan.edit(AttentionCall(adapter.attention_layers[0], shape, None, weights.device))
    assert edit is not None and edit.weights is not None
    return edit.weights(weights)


@pytest.mark.parametrize(("p", "t"), [(0.1, 0.1), (0.4, 0.5)])
def test_weights_are_multiplied_by_relaxed_draws(p: float, t: float) -> None:
    weights = torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = acted(weights, p=p, temperature=t)
    origins = torch.zeros(2, 2, dtype=torch.long)
    sampled = uniform(SampleKey(0, 0, 0, 2), "encoder.0", SHAPE, origins, weights.device)
    for weight, u, after in zip(weights.flatten(), sampled.flatten().tolist(), found.flatten(), strict=True):
        z = 1 / (1 + math.exp(-(math.log(p) - math.log(1 - p) + math.log(u) - math.log(1 - u)) / t))
        assert after.item() == pytest.approx(weight.item() * (1 - z) / (1 - p), rel=1e-6, abs=1e-12)


def value_matrices(name: str, model: Any) -> list[Tensor]:
    """The weights of value projections, features read first."""
    match name:
        case "bert":
            return [layer.attention.self.value.weight.T for layer in model.bert.encoder.layer]
        case "gpt2":
            return [block.attn.c_attn.weight[:, 32:] for block in model.transformer.h]
        case "modernbert":
            return [layer.attn.Wqkv.weight[32:].T for layer in model.model.layers]
        case "llama":
            return [layer.self_attn.v_proj.weight.T for layer in model.model.layers]
        case _:
            return [model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.value.weight.T] * 2


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert", "llama", "albert"])
def test_the_penalty_is_that_of_the_paper(name: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    p, scale, count, rows = 0.2, 0.7, 3.0, 50
    reg = at_work(model, p=p, length_scale=scale, entropy_weight=count, num_train_rows=rows)
    with_penalty = reg.loss(batch)
    setattr(reg.method_state, "penalty", lambda step, outputs: None)  # noqa: B010
    reg.begin_step(0)
    without = reg.loss(batch)
    reg.close()
    entropy_of_p = -p * math.log(p) - (1 - p) * math.log(1 - p)
    expected = 0.0
    for value in value_matrices(name, model):
        # Theirs is the norm of the weights before what is kept is scaled up.
        expected += scale**2 * (1 - p) / 2 * (value / (1 - p)).square().sum().item() - count * entropy_of_p
    assert (with_penalty - without).item() == pytest.approx(expected / rows, rel=1e-5)


def test_entropy_is_finite_everywhere() -> None:
    assert torch.equal(entropy(torch.tensor([-200.0, 200.0])), torch.zeros(2))
    assert entropy(torch.tensor(0.0)).item() == pytest.approx(math.log(2))


def learnt(reg: Regularization) -> list[float]:
    return list(reg.method_state.final_report([])["concrete_dropout"].values())


def test_data_outweighs_the_prior_on_a_few_hundred_rows() -> None:
    """The prior's gradient is that of one draw, however wide the model is; what the data say of layers is larger."""
    batch = zoo.batch_of("bert", (8, 5, 3, 6, 7, 9, 4, 8))
    model, rows = zoo.build("bert"), 300
    reg = at_work(model, num_train_rows=rows)
    method_state: Any = reg.method_state
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    of_data = []
    for step in range(20):
        reg.begin_step(step)
        reg.loss(batch).backward()
        of_prior = torch.autograd.grad(method_state.penalty(None, None), method_state.values)[0]
        of_data.append(method_state.values.grad - of_prior)
        method_state.values.grad = None
        optimizer.step()
        optimizer.zero_grad()
    reg.close()
    torch.testing.assert_close(of_prior, torch.full((2,), -0.1 * 0.9 * math.log(9) / rows), rtol=1e-3, atol=0.0)
    assert (torch.stack(of_data).square().mean(0).sqrt() > 10 * of_prior.abs()).all()


def gradient(cut: int, scale: float = 1.0, processes: Processes | None = None) -> Tensor:
    """The gradient that the optimizer of the probabilities sees, of a batch of 4 rows in micro-batches of ``cut``."""
    rows, found = zoo.rows("bert", (8, 5, 3, 6)), []
    reg = at_work(zoo.build("bert", dtype=torch.float64), processes)
    method_state: Any = reg.method_state
    reg.loss_scale, reg.loss_weight = scale, cut / 4
    for start in range(0, 4, cut):
        batch = zoo.collate(rows[start : start + cut])
        # As a trainer does, the loss of the data comes with its share, and the penalty is given its own.
        penalty = method_state.penalty
        method_state.penalty = lambda step, outputs, penalty=penalty: penalty(step, outputs) / reg.loss_weight
        (reg.loss(batch) * cut / 4 * scale).backward()
        method_state.penalty = penalty
    method_state.optimizer.register_step_pre_hook(lambda *_: found.append(method_state.values.grad.clone()))
    reg.step()
    reg.close()
    assert method_state.values.grad is None
    return found[0]


@pytest.mark.parametrize(
    "options",
    [{"cut": 1}, {"cut": 2}, {"cut": 4, "scale": 1024.0}, {"cut": 4, "processes": Processes(0, 2, lambda t: 2 * t)}],
    ids=["micro-batches of 1", "of 2", "loss scale", "averaged over processes"],
)
def test_what_leaves_the_gradient_as_it_is(options: dict[str, Any]) -> None:
    torch.testing.assert_close(gradient(**options), gradient(4), rtol=1e-5, atol=1e-7)


def test_a_step_that_float16_overflows_is_not_taken() -> None:
    reg = at_work(zoo.build("bert"))
    method_state: Any = reg.method_state
    reg.loss_scale = 2.0
    reg.loss(zoo.batch_of("bert")).backward()
    method_state.values.grad[0] = math.inf
    before = learnt(reg)
    reg.step()
    assert learnt(reg) == before
    assert method_state.values.grad is None
    reg.close()


def test_rows_are_those_of_the_training_data() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, ConcreteDropout(), train_data=[batch, batch]) as reg:
        reg.loss(batch)
        assert reg.method_state.num_train_rows == 6  # type: ignore[attr-defined]
        assert set(json.loads(json.dumps(reg.method_state.final_report([])))["concrete_dropout"]) == {
            "encoder.0",
            "encoder.1",
        }
    with pytest.raises(AttendropError, match=r"number of training rows .* pass train_data, or set num_train_rows"):
        Regularization(zoo.training(model), ConcreteDropout())


NEOX = {"vocab_size": zoo.VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 40, "num_labels": 3, "pad_token_id": zoo.PAD}  # fmt: skip
PHI3 = NEOX | {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": zoo.EOS}


@pytest.mark.parametrize(
    ("class_name", "options"),
    [("GPTNeoXForSequenceClassification", NEOX), ("Phi3ForSequenceClassification", PHI3)],
    ids=["queries, keys and values head by head", "fewer values than queries"],
)
def test_values_that_are_not_to_be_found_are_refused(class_name: str, options: dict[str, Any]) -> None:
    reg = at_work(zoo.from_class(class_name, options, "sdpa").train())
    with pytest.raises(AttendropError, match=r"value projection of .* cannot be found; choose other layers, or ano"):
        reg.loss(zoo.batch_of("gpt2-class"))
    reg.close()


def test_gradients_of_the_log_odds_are_those_of_the_loss() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    reg = at_work(model, temperature=0.5)
    reg.loss(batch).backward()
    method_state: Any = reg.method_state
    for layer in range(2):
        losses = []
        for shift in (1e-2, -1e-2):
            method_state.values.data[layer] += shift
            reg.begin_step(0)
            losses.append(reg.loss(batch).item())
            method_state.values.data[layer] -= shift
        assert method_state.values.grad[layer].item() == pytest.approx(
            (losses[0] - losses[1]) / 2e-2, rel=1e-2, abs=1e-5
        )
    reg.close()
