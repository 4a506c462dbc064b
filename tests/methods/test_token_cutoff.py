"""Token cutoff: what is cut, and how the views make up the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import words, zoo
from torch import Tensor
from torch.nn import functional

from attendrop import AttendropError, TokenCutoff, regularize
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.running_statistics import RunningStatistics
from attendrop.randomness.keyed_random import SampleKey

LENGTHS = (12, 5, 3)


def cut_of(model: Any, batch: zoo.Batch, change: Tensor) -> Tensor:
    """Where the change of a pass sets elements of the word embeddings to zero."""
    embedded = model.bert.embeddings.word_embeddings(batch["input_ids"])
    cut = change != 0
    torch.testing.assert_close(change[cut], -embedded[cut])
    return cut


def cut_pass(model: Any, batch: zoo.Batch, cut: Tensor, *, hidden: bool) -> Any:
    """A pass of the stock model without these elements; tokens may be hidden from attention, too."""
    mask = batch["attention_mask"] * ~cut.all(-1) if hidden else batch["attention_mask"]
    with words.changed(model, lambda embedded: embedded * ~cut):
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
def test_the_loss(method: TokenCutoff) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss, (clean, *changes) = words.stepped(model, method, batch)
    assert not clean.any() and len(changes) == method.views
    hidden = method.unit != "features"
    passes = [model(**batch)] + [cut_pass(model, batch, cut_of(model, batch, c), hidden=hidden) for c in changes]
    chances = [outputs.logits.softmax(-1) for outputs in passes]
    middle = torch.stack(chances).mean(0)
    divergence = torch.stack([functional.kl_div(middle.log(), p, reduction="batchmean") for p in chances]).mean()
    cut_loss = torch.stack([outputs.loss for outputs in passes[1:]]).mean()
    torch.testing.assert_close(loss, passes[0].loss + method.alpha * cut_loss + method.beta * divergence)


def cuts(unit: str, steps: int) -> list[Tensor]:
    """Which elements of the word embeddings are cut in some steps."""
    valid = zoo.batch_of("bert", LENGTHS)["attention_mask"].bool()
    context = StepContext(zoo.build("bert"), {}, SampleKey(0, 0, 0, 3), RunningStatistics(), "token_cutoff")
    method, found = TokenCutoff(fraction=0.3, unit=unit), []
    for step in range(steps):
        key = SampleKey(0, step, 0, 3)
        plan: Any = (method.cut_features if unit == "features" else method.cut_tokens)(replace(context, key=key), 0)
        found.append(plan.change(torch.ones(3, 12, 16), valid) == 0)
    return found


@pytest.mark.parametrize("unit", ["tokens", "span"])
def test_a_fraction_of_the_tokens_is_cut_and_at_least_one(unit: str) -> None:
    places: list[set[int]] = [set(), set(), set()]
    for cut in cuts(unit, steps=40):
        assert torch.equal(cut.any(-1), cut.all(-1))
        for row, (tokens, number) in enumerate(zip(cut.all(-1), (3, 1, 1), strict=True)):
            found = tokens.nonzero().flatten().tolist()
            assert len(found) == number
            assert unit == "tokens" or found == list(range(found[0], found[0] + number))
            places[row].update(found)
    assert places == [set(range(length)) for length in LENGTHS]


def test_the_same_features_of_all_tokens_of_a_sequence_are_cut() -> None:
    places: set[int] = set()
    for cut in cuts("features", steps=10):
        for row in cut:
            assert (row == row[0]).all() and row[0].sum() == 4  # of 16
            places.update(row[0].nonzero().flatten().tolist())
    assert places == set(range(16))


def test_views_are_cut_at_different_places() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", (20,) * 4)
    _, changes = words.stepped(model, TokenCutoff(fraction=0.3, views=3), batch)
    assert len({tuple((change != 0).any(-1).flatten().tolist()) for change in changes[1:]}) == 3


def test_a_weight_of_zero_leaves_a_term_out() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    plain = model(**batch).loss
    pairs = ((1, 0), (0, 1), (2, 3))
    parts = [words.stepped(model, TokenCutoff(alpha=a, beta=b), batch)[0] - plain for a, b in pairs]
    torch.testing.assert_close(parts[2], 2 * parts[0] + 3 * parts[1])
    assert parts[1] > 0
    with pytest.raises(AttendropError, match="plain fine-tuning"):
        TokenCutoff(alpha=0, beta=0)


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_other_tokens_do_not_attend_to_cut_ones(name: str) -> None:
    """Neither those of the encoder nor those of the decoder: one of the possible spans explains the loss."""
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name, (7,))
    with regularize(model, TokenCutoff(fraction=0.5, unit="span", beta=0)) as reg:
        found = reg.loss(batch) - model(**batch).loss
    losses = []
    for start in range(5):
        mask = torch.ones(1, 7, dtype=torch.long)
        mask[:, start : start + 3] = 0
        positions = {"position_ids": torch.arange(7)[None]} if name == "gpt2" else {}
        hook = model.get_input_embeddings().register_forward_hook(
            lambda _, args, output, mask=mask: output * mask[..., None] if args[0].equal(batch["input_ids"]) else output
        )
        losses.append(model(**{**batch, **positions, "attention_mask": mask}).loss)
        hook.remove()
    assert (torch.stack(losses) - found).abs().min() < 1e-9
    assert (torch.stack(losses) - found).abs().max() > 1e-3
