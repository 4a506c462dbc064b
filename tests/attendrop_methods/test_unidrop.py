"""UniDrop: which features, blocks and tokens are dropped, and how the others are rescaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor
from transformers.models.bert import modeling_bert

from attendrop import regularize
from attendrop.methods.core.registry import build_method
from attendrop.randomness.keyed_random import SampleKey, sample_mask
from attendrop_methods import UniDrop
from attendrop_methods.unidrop import drop_tokens

LENGTHS = (8, 5, 3)
OFF: dict[str, Any] = {"feature": 0, "structure": 0, "token": 0}


def only(**options: Any) -> UniDrop:
    return UniDrop(**{**OFF, **options})


def loss_of(model: Any, method: UniDrop, batch: zoo.Batch) -> Tensor:
    with regularize(model, method) as reg:
        return reg.loss(batch)


# --- Features: an oracle that has the same draws, and hooks of its own


def scaled_mask(p: float, key: SampleKey, name: str, shape: tuple[int, ...]) -> Tensor:
    """0 with probability p, else 1 / (1 - p)."""
    rows = shape if len(shape) == 4 else (shape[0], 1, shape[1] if len(shape) == 3 else 1, shape[-1])
    drop = sample_mask(p, key, name, rows, torch.zeros(shape[0], 2, dtype=torch.long), torch.device("cpu"))  # type: ignore[arg-type]
    return torch.where(drop, 0.0, 1 / (1 - p)).double().view(shape)


def oracle(model: Any, batch: zoo.Batch, p: float, places: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Tensor:
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
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", LENGTHS)
    loss = loss_of(model, only(feature=0.3, features=places), batch)
    plain = model(**batch).loss
    expected = oracle(model, batch, 0.3, places, monkeypatch)
    torch.testing.assert_close(loss, expected)
    assert not torch.isclose(loss, plain)


# --- Tokens


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


@pytest.mark.parametrize("special", [(), (7, 8)])
@pytest.mark.parametrize("left", [False, True])
def test_which_tokens_stay(special: tuple[int, ...], left: bool) -> None:
    ids = torch.tensor([[5, 7, 9, 8, 9, 6], [5, 9, 6, 0, 0, 0], [5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    ids = ids.flip(1) if left else ids
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    found = drop_tokens(_Notes(batch), 0, 1, special)["attention_mask"]  # type: ignore[arg-type]
    expected = torch.isin(ids, torch.tensor([5, 6, *special])).long()
    assert torch.equal(found, expected)
    assert torch.equal(batch["attention_mask"], (ids > 0).long())


def test_a_batch_without_a_mask_gets_one() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (8, 8))
    method = only(data=0, token=0.5)
    expected = loss_of(model, method, batch)
    del batch["attention_mask"]
    assert torch.equal(loss_of(model, method, batch), expected)


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
    for row, length in enumerate(LENGTHS):
        mask[row, [0, length - 1]] = 1
    found = loss_of(model, only(data=0, token=1), batch)
    torch.testing.assert_close(found, model(**{**batch, "attention_mask": mask}).loss)


# --- Options


@pytest.mark.parametrize(
    ("given", "expected"),
    [("[4, 2]", (2, 4)), ([3, 3], (3,)), (2, (2,)), ("", ())],
)
def test_places(given: Any, expected: tuple[int, ...]) -> None:
    assert build_method("unidrop", {"features": given}) == UniDrop(features=expected)
