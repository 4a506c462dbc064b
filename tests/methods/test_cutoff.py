"""HiddenCut: what is cut, and how the views make up the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor
from torch.nn import functional

from attendrop import AttendropError, HiddenCut, regularize
from attendrop.methods.common.losses import spread
from attendrop.randomness.keyed_random import SampleKey, uniform

SHORT = (8, 5, 3)


def loss_of(model: Any, method: HiddenCut, batch: zoo.Batch, step: int = 0) -> Tensor:
    with regularize(model, method) as reg:
        reg.begin_step(step)
        return reg.loss(batch)


def starts(key: SampleKey, view: int, layer: int, rows: int) -> list[float]:
    zeros = torch.zeros(rows, 2, dtype=torch.long)
    sampled = uniform(key, f"{view}/encoder.{layer}", (rows, 1, 1, 1), zeros, torch.device("cpu"))
    return [float(number) for number in sampled.flatten()]


def span(attention: Tensor, length: int, method: HiddenCut, sampled: float) -> list[int]:
    """The positions to cut, of a sequence at the left; attention is (heads, query, key)."""
    cut = max(1, int(length * method.alpha + 1e-6))
    if method.select_by == "random":
        start = int(sampled * (length - cut + 1))
    else:
        received = [sum(float(head[i][j]) for head in attention for i in range(length)) for j in range(length)]
        order = sorted(range(length), key=lambda j: -received[j])
        start = order[int(sampled * max(1, int(length * method.candidates + 1e-6)))]
    return [j for j in range(start, start + cut) if j < length]


def cut_pass_of_hidden(model: Any, batch: zoo.Batch, spans: list[list[list[int]]], where: str) -> Any:
    """A pass of the stock model with these positions, by layer and sequence, set to zero."""
    hooks = []
    for layer, cuts in zip(model.bert.encoder.layer, spans, strict=True):
        kept = torch.ones(*batch["input_ids"].shape, 1)
        for row, positions in enumerate(cuts):
            kept[row, positions] = 0
        if where == "block":
            change = lambda _, args, output, kept=kept: output * kept  # noqa: E731
            hooks.append(layer.register_forward_hook(change))
        else:
            before = lambda _, args, kept=kept: (args[0] * kept,)  # noqa: E731
            hooks.append(layer.output.dense.register_forward_pre_hook(before))
    outputs = model(**batch)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize(
    "method",
    [
        HiddenCut(alpha=0.4, gamma=0.7, eta=2.0),
        HiddenCut(alpha=0.3, candidates=1, views=3, where="feed_forward"),
        HiddenCut(alpha=0.4, select_by="random", views=2),
    ],
    ids=str,
)
def test_the_loss_of_hidden_cut(method: HiddenCut) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", SHORT)
    for step in range(2):
        loss = loss_of(model, method, batch, step)
        whole = model(**batch, output_attentions=True)
        key, passes = SampleKey(0, step, 0, 3), [whole]
        for view in range(method.views):
            spans = [
                [
                    span(attention[row].detach(), length, method, sampled)
                    for row, (length, sampled) in enumerate(zip(SHORT, starts(key, view, layer, 3), strict=True))
                ]
                for layer, attention in enumerate(whole.attentions)
            ]
            passes.append(cut_pass_of_hidden(model, batch, spans, method.where))
        chances = [outputs.logits.softmax(-1) for outputs in passes]
        middle = torch.stack(chances).mean(0)
        divergences = [functional.kl_div(middle.log(), p, reduction="batchmean") for p in chances]
        cut = torch.stack([outputs.loss for outputs in passes[1:]]).mean()
        expected = whole.loss + method.gamma * cut + method.eta * torch.stack(divergences).mean()
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["classes", "labels", "number"])
def test_the_spread_of_two_views(kind: str) -> None:
    """P is certain, Q is even: JS = (1 log(1 / .75) + .5 log(.5 / .75) + .5 log(.5 / .25)) / 2."""
    js = (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2)) / 2
    views = torch.tensor([[[50.0, 0.0]], [[0.0, 0.0]]], dtype=torch.float64)
    value = {"classes": js, "labels": js, "number": 25.0**2}[kind]
    assert float(spread(kind, views)) == pytest.approx(value, rel=1e-6)


def test_layers_without_a_block_of_their_own_are_refused() -> None:
    with pytest.raises(AttendropError, match=r"layers='cross' selects no block of the encoder"):
        loss_of(zoo.build("bart"), HiddenCut(layers="cross"), zoo.batch_of("bart"))
