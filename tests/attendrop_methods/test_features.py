"""R3F, SMART, token cutoff and UniDrop: the changes of embeddings, features and tokens, and the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import words, zoo
from torch import Tensor
from torch.nn import functional
from transformers.models.bert import modeling_bert

from attendrop import regularize
from attendrop.methods.core.context import RunningStatistics, StepContext
from attendrop.methods.core.registry import build_method
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop_methods import R3F, SMART, TokenCutoff, UniDrop
from attendrop_methods.features import drop_tokens

LENGTHS = (30, 5, 12)


def test_of_an_encoder_decoder_model_the_encoder_is_changed() -> None:
    """Also where the decoder shares the embedding: what it embeds stays as it is."""
    model, batch = zoo.build("t5"), zoo.batch_of("t5")
    module = model.get_decoder().embed_tokens
    decoded = []
    with regularize(model, R3F(scale=0.5)) as reg:
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


def test_numbers_have_a_squared_difference() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    model.config.problem_type = "regression"
    batch |= {"labels": torch.tensor([[0.1, 0.2, 0.3]] * 3, dtype=torch.float64)}
    loss, (_, noise) = words.stepped(model, R3F(scale=0.5), batch)
    outputs, noisy = model(**batch), words.added(model, batch, noise)
    torch.testing.assert_close(loss, outputs.loss + (outputs.logits - noisy.logits).square().sum(-1).mean())


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
def test_the_loss_of_token_cutoff(method: TokenCutoff) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", CUT)
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
    valid = zoo.batch_of("bert", CUT)["attention_mask"].bool()
    context = StepContext(zoo.build("bert"), {}, SampleKey(0, 0, 0, 3), RunningStatistics(), "token_cutoff")
    method, found = TokenCutoff(fraction=0.3, unit=unit), []
    for step in range(steps):
        key = SampleKey(0, step, 0, 3)
        plan: Any = method.cut(replace(context, key=key), 0)
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
    assert places == [set(range(length)) for length in CUT]


def test_the_same_features_of_all_tokens_of_a_sequence_are_cut() -> None:
    places: set[int] = set()
    for cut in cuts("features", steps=10):
        for row in cut:
            assert (row == row[0]).all() and row[0].sum() == 4  # of 16
            places.update(row[0].nonzero().flatten().tolist())
    assert places == set(range(16))


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


OFF: dict[str, Any] = {"feature": 0, "structure": 0, "token": 0}


def only(**options: Any) -> UniDrop:
    return UniDrop(**{**OFF, **options})


def loss_of(model: Any, method: UniDrop, batch: zoo.Batch) -> Tensor:
    with regularize(model, method) as reg:
        return reg.loss(batch)


def scaled_mask(p: float, key: SampleKey, name: str, shape: tuple[int, ...]) -> Tensor:
    """0 with probability p, else 1 / (1 - p)."""
    rows = shape if len(shape) == 4 else (shape[0], 1, shape[1] if len(shape) == 3 else 1, shape[-1])
    drop = sample_mask(p, key, name, rows, torch.zeros(shape[0], 2, dtype=torch.long), torch.device("cpu"))  # type: ignore[arg-type]
    return torch.where(drop, 0.0, 1 / (1 - p)).double().view(shape)


def without_features(
    model: Any, batch: zoo.Batch, p: float, places: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> Tensor:
    key, called = SampleKey(0, 0, 0, len(batch["input_ids"])), [0]

    def mask(values: Tensor, name: str) -> Tensor:
        return values * scaled_mask(p, key, name, tuple(values.shape))

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        layer = f"encoder.{called[0]}"
        called[0] += 1
        if 3 in places:
            named = {"query": query, "key": key, "value": value}
            query, key, value = (mask(values, f"{name}/{layer}") for name, values in named.items())
        weights = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5 + attention_mask).softmax(-1)
        weights = mask(weights, f"weights/{layer}") if 1 in places else weights
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", attention)
    hooks = []
    for i, layer in enumerate(model.bert.encoder.layer):
        if 2 in places:
            change = lambda _, args, i=i: (mask(args[0], f"activations/encoder.{i}"),)  # noqa: E731
            hooks.append(layer.output.dense.register_forward_pre_hook(change))
    if 4 in places:
        hooks.append(model.classifier.register_forward_pre_hook(lambda _, args: (mask(args[0], "features"),)))
    loss: Tensor = model(**batch).loss
    for hook in hooks:
        hook.remove()
    return loss


@pytest.mark.parametrize("places", [(1,), (2,), (3,), (4,)], ids=str)
def test_features_are_dropped_in_their_places(places: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", SHORT)
    loss = loss_of(model, only(feature=0.3, features=places), batch)
    plain = model(**batch).loss
    expected = without_features(model, batch, 0.3, places, monkeypatch)
    torch.testing.assert_close(loss, expected)
    assert not torch.isclose(loss, plain)


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


@pytest.mark.parametrize("masked", [True, False])
def test_positions_stay_where_the_model_counts_them_by_the_mask(masked: bool) -> None:
    model, batch, found = zoo.build("opt-class"), zoo.batch_of("opt-class", (8, 8)), []
    if not masked:
        del batch["attention_mask"]
    embedding = model.model.decoder.embed_positions
    embedding.register_forward_hook(lambda *given: found.append(given[2]["position_ids"]), with_kwargs=True)
    loss_of(model, only(data=0, token=0.5), batch)
    assert found[-1].tolist() == [list(range(8))] * 2


def test_only_the_input_of_an_encoder_loses_tokens() -> None:
    model, batch = zoo.build("bart"), zoo.batch_of("bart")
    mask = torch.zeros_like(batch["attention_mask"])
    for row, length in enumerate(SHORT):
        mask[row, [0, length - 1]] = 1
    found = loss_of(model, only(data=0, token=1), batch)
    torch.testing.assert_close(found, model(**{**batch, "attention_mask": mask}).loss)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("[4, 2]", (2, 4)), (2, (2,)), ("", ())],
)
def test_places(given: Any, expected: tuple[int, ...]) -> None:
    assert build_method("unidrop", {"features": given}) == UniDrop(features=expected)
