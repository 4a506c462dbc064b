"""R3F, SMART, token cutoff and UniDrop: the changes of embeddings, features and tokens, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor
from torch.nn import functional
from transformers.models.bert import modeling_bert

from attendrop import Method, regularize
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop.training.regularization import Regularization
from attendrop_methods import R3F, SMART, TokenCutoff, UniDrop
from attendrop_methods.features import drop_tokens


def stepped(model: Any, method: Method, batch: zoo.Batch, *, step: int = 0) -> tuple[Tensor, list[Tensor]]:
    """The loss of a step, and the change of the word embeddings ``(batch, n, width)`` in each of its passes."""
    words = model.bert.embeddings.word_embeddings(batch["input_ids"])
    sums = []
    hook = model.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, args: sums.append(args[0].detach()))
    model(**batch)  # words, positions and types
    stock = sums.pop()
    regularization = Regularization(zoo.training(model), method)
    regularization.begin_step(step)
    regularization.adapter.trace(batch)  # type: ignore[union-attr]
    sums.clear()
    try:
        loss = regularization.loss(batch)
    finally:
        regularization.close()
        hook.remove()
    assert words.shape == stock.shape
    return loss, [total - stock for total in sums]


@contextmanager
def changed(model: Any, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the word embeddings of the stock model within the block."""
    hook = model.bert.embeddings.word_embeddings.register_forward_hook(lambda _, args, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def added(model: Any, batch: zoo.Batch, change: Tensor) -> Any:
    """The outputs of the stock model with ``change`` added to its word embeddings."""
    with changed(model, lambda words: words + change):
        return model(**batch)


def symmetric_kl(one: Tensor, other: Tensor) -> Tensor:
    """Mean over rows of ``KL(P || Q) + KL(Q || P)`` of two sets of logits ``(rows, classes)``."""
    p, q = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()


LENGTHS = (30, 5, 12)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_the_loss_of_r3f(kind: str) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss, (clean, noise) = stepped(model, R3F(weight=0.7, scale=0.5, noise=kind), batch)
    assert not clean.any()
    outputs, noisy = model(**batch), added(model, batch, noise)
    expected = outputs.loss + 0.7 * symmetric_kl(outputs.logits, noisy.logits)
    torch.testing.assert_close(loss, expected)
    for row, length in zip(noise, LENGTHS, strict=True):
        assert not row[length:].any()
    sampled = torch.cat([row[:length].flatten() for row, length in zip(noise, LENGTHS, strict=True)]) / 0.5
    assert sampled.mean().item() == pytest.approx(0, abs=0.1)
    assert sampled.var().item() == pytest.approx(1 / 3 if kind == "uniform" else 1, abs=0.1)
    assert (sampled.abs().max() <= 1) == (kind == "uniform")


SHORT = (8, 5, 3)


def ascended(model: Any, batch: zoo.Batch, delta: Tensor, method: SMART) -> Tensor:
    """One step of Algorithm 1, sequence by sequence."""
    delta = delta.detach().requires_grad_()
    fixed = model(**batch).logits.detach()
    (gradient,) = torch.autograd.grad(symmetric_kl(fixed, added(model, batch, delta).logits), delta)
    rows = []
    for row, slope in zip(delta.detach(), gradient, strict=True):
        moved = row + method.step_size * slope / slope.abs().max()
        rows.append(moved.clamp(-method.epsilon, method.epsilon))
    return torch.stack(rows)


def test_the_loss_of_smart() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", SHORT)
    method = SMART(weight=0.7, steps=2, epsilon=0.05, step_size=0.03, noise=0.02)
    loss, (clean, start, *deltas) = stepped(model, method, batch)
    assert not clean.any() and len(deltas) == 2
    expected = start
    for delta in deltas:
        expected = ascended(model, batch, expected, method)
        torch.testing.assert_close(delta, expected, rtol=1e-4, atol=1e-6)  # the noise is in float32
    outputs, perturbed = model(**batch), added(model, batch, deltas[-1])
    divergence = symmetric_kl(outputs.logits, perturbed.logits)
    torch.testing.assert_close(loss, outputs.loss + 0.7 * divergence)
    assert divergence > symmetric_kl(outputs.logits, added(model, batch, start).logits)


CUT = (12, 5, 3)


def cut_of(model: Any, batch: zoo.Batch, change: Tensor) -> Tensor:
    """Where the change of a pass sets elements of the word embeddings to zero."""
    embedded = model.bert.embeddings.word_embeddings(batch["input_ids"])
    cut = change != 0
    torch.testing.assert_close(change[cut], -embedded[cut])
    return cut


def cut_pass(model: Any, batch: zoo.Batch, cut: Tensor, *, hidden: bool) -> Any:
    """A pass of the stock model without these elements; tokens may be hidden from attention, too."""
    mask = batch["attention_mask"] * ~cut.all(-1) if hidden else batch["attention_mask"]
    with changed(model, lambda embedded: embedded * ~cut):
        return model(**{**batch, "attention_mask": mask})


@pytest.mark.parametrize(
    "method",
    [
        TokenCutoff(fraction=0.3, alpha=0.7, beta=2.0),
        TokenCutoff(fraction=0.4, unit="span", views=2),
        TokenCutoff(fraction=0.3, unit="features"),
    ],
    ids=lambda method: method.unit,
)
def test_the_loss_of_token_cutoff(method: TokenCutoff) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", CUT)
    loss, (clean, *changes) = stepped(model, method, batch)
    assert not clean.any() and len(changes) == method.views
    hidden = method.unit != "features"
    passes = [model(**batch)] + [cut_pass(model, batch, cut_of(model, batch, c), hidden=hidden) for c in changes]
    chances = [outputs.logits.softmax(-1) for outputs in passes]
    middle = torch.stack(chances).mean(0)
    divergence = torch.stack([functional.kl_div(middle.log(), p, reduction="batchmean") for p in chances]).mean()
    cut_loss = torch.stack([outputs.loss for outputs in passes[1:]]).mean()
    torch.testing.assert_close(loss, passes[0].loss + method.alpha * cut_loss + method.beta * divergence)


def only(**options: Any) -> UniDrop:
    return UniDrop(**({"feature": 0, "structure": 0, "token": 0} | options))


def scaled_mask(p: float, key: SampleKey, name: str, shape: tuple[int, ...]) -> Tensor:
    """0 with probability p, else 1 / (1 - p)."""
    rows = shape if len(shape) == 4 else (shape[0], 1, shape[1] if len(shape) == 3 else 1, shape[-1])
    drop = sample_mask(p, key, name, rows, torch.zeros(shape[0], 2, dtype=torch.long), torch.device("cpu"))  # type: ignore[arg-type]
    return torch.where(drop, 0.0, 1 / (1 - p)).double().view(shape)


def test_features_are_dropped_in_all_four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", SHORT)
    with regularize(model, only(feature=0.3, features=(1, 2, 3, 4))) as reg:
        loss = reg.loss(batch)
    layers = iter(range(2))

    def mask(values: Tensor, name: str) -> Tensor:
        return values * scaled_mask(0.3, SampleKey(0, 0, 0, 3), name, tuple(values.shape))

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        layer = f"encoder.{next(layers)}"
        named = {"query": query, "key": key, "value": value}
        query, key, value = (mask(values, f"{name}/{layer}") for name, values in named.items())
        weights = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5 + attention_mask).softmax(-1)
        weights = mask(weights, f"weights/{layer}")
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", attention)
    for i, layer in enumerate(model.bert.encoder.layer):
        layer.output.dense.register_forward_pre_hook(lambda _, args, i=i: (mask(args[0], f"activations/encoder.{i}"),))
    model.classifier.register_forward_pre_hook(lambda _, args: (mask(args[0], "features"),))
    torch.testing.assert_close(loss, model(**batch).loss)


class _Notes:
    """Stands for a pass."""

    def __init__(self, batch: zoo.Batch, step: int = 0) -> None:
        self.batch, self.key, self.model = batch, SampleKey(0, step, 0, len(batch["input_ids"])), None
        self.noted: list[float] = []

    def note(self, name: str, value: Tensor) -> None:
        self.noted.append(float(value))


def test_tokens_are_dropped_in_two_stages() -> None:
    ids = torch.arange(10, 50).repeat(4000, 1)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    step = _Notes(batch)
    kept = drop_tokens(step, 0.7, 0.2, ())["attention_mask"][:, 1:-1]  # type: ignore[arg-type]
    whole = kept.bool().all(1)
    assert whole.double().mean().item() == pytest.approx(0.7 + 0.3 * 0.8**38, abs=0.03)
    assert kept[~whole].double().mean().item() == pytest.approx(0.8, abs=0.01)
    assert step.noted == [pytest.approx(0.3 * 0.2 * 38 / 40, abs=0.005)]


@pytest.mark.parametrize(("special", "left"), [((), True), ((7, 8), False)])
def test_which_tokens_stay(special: tuple[int, ...], left: bool) -> None:
    ids = torch.tensor([[5, 7, 9, 8, 9, 6], [5, 9, 6, 0, 0, 0], [5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    ids = ids.flip(1) if left else ids
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    found = drop_tokens(_Notes(batch), 0, 1, special)["attention_mask"]  # type: ignore[arg-type]
    expected = torch.isin(ids, torch.tensor([5, 6, *special])).long()
    assert torch.equal(found, expected)
    assert torch.equal(batch["attention_mask"], (ids > 0).long())
