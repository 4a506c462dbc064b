"""Models whose attention modules compute softmax themselves: DeBERTa and MPNet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import oracles, zoo
from helpers.plans import Everywhere, passed
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attendrop import ADDrop, AttendropError, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import AttentionEdit
from attendrop_methods import UniDrop

METHOD = ADDrop(p=0.4, q=1.0, layers="all")
NAMES = ("deberta-v3", "mpnet")
_V2 = zoo.ZOO["deberta-v3"].options
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta-v3": ("DebertaV2ForSequenceClassification", {}),
    "deberta-v2 with a convolution": (
        "DebertaV2ForSequenceClassification",
        {"share_att_key": False, "conv_kernel_size": 3, "position_biased_input": True, "type_vocab_size": 2},
    ),
    "deberta-v2 without buckets": (
        "DebertaV2ForSequenceClassification",
        {"position_buckets": -1, "max_relative_positions": 5, "pos_att_type": "c2p"},
    ),
    "deberta": ("DebertaForSequenceClassification", {"pos_att_type": "c2p|p2c", "max_relative_positions": 6}),
    "mpnet": ("MPNetForSequenceClassification", {}),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def made(variant: str, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Any:
    class_name, options = VARIANTS[variant]
    row = zoo.ZOO["mpnet" if variant == "mpnet" else "deberta-v3"]
    chosen = {**row.options, **options, **dict.fromkeys(row.dropouts, dropout)}
    return zoo.from_class(class_name, chosen, "eager").to(dtype).train()


def forward(model: Any, batch: zoo.Batch, edit: AttentionEdit | None) -> Any:
    return passed(model, batch, Everywhere(edit))


# --- Against the oracle


@pytest.mark.sampled(4)
@pytest.mark.parametrize("attribution", ["gradient", "attention", "integrated_gradient"])
@every_variant
def test_ad_drop_equals_the_naive_implementation(variant: str, attribution: str) -> None:
    oracle, batch = made(variant), zoo.batch_of("bert")
    expected, drops = oracles.ad_drop(oracle, batch, "class", 0.4, attribution=attribution)
    expected.backward()
    assert sum(int(drop.sum()) for drop in drops) > 10
    model = made(variant)
    with regularize(model, ADDrop(p=0.4, q=1.0, attribution=attribution, layers="all"), seed=3) as reg:
        loss = reg.loss(batch)
        loss.backward()
    zoo.assert_same(
        zoo.gradients(model) | {"loss": loss.detach()}, zoo.gradients(oracle) | {"loss": expected.detach()}, 1e-5
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("edit", [{"constant": True}, {"drop": torch.ones(1, 1, 1, 1, dtype=torch.bool)}], ids=str)
@every_variant
def test_rows_dropped_whole_attend_to_valid_keys_equally(variant: str, edit: dict[str, Any]) -> None:
    seen: list[Tensor] = []

    def look(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights

    model, lengths = made(variant, dtype=torch.float16), torch.tensor([8, 5, 3])
    forward(model, zoo.batch_of("bert", (8, 5, 3)), AttentionEdit(**edit, weights=look)).loss.backward()
    valid = (torch.arange(8) < lengths[:, None])[:, None, None, :]
    for weights in seen:
        expected = (valid / lengths.view(3, 1, 1, 1)).expand_as(weights)
        queries = valid.transpose(-1, -2)
        torch.testing.assert_close(weights * queries, (expected * queries).half(), rtol=0, atol=1e-3)
        assert (weights.masked_select(~valid & queries) == 0).all()
    assert all(gradient.isfinite().all() for gradient in zoo.gradients(model).values())


# --- What is left as it was


@every_variant
def test_without_a_change_outputs_and_dropout_are_those_of_stock_bit_for_bit(variant: str) -> None:
    model, batch = made(variant, dropout=0.3, dtype=torch.float32), zoo.batch_of("bert")
    torch.manual_seed(1)
    expected = model(**batch).logits
    for edit in (None, AttentionEdit()):
        torch.manual_seed(1)
        assert torch.equal(forward(model, batch, edit).logits, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_restored_after_an_error(name: str) -> None:
    model, batch = zoo.build(name), zoo.batch_of(name)
    before = [set(vars(module)) for module in model.modules()]
    with pytest.raises(IndexError), regularize(model, UniDrop()) as reg:
        reg.loss(batch)
        reg.loss({**batch, "labels": batch["labels"] + zoo.VOCAB})
    assert [set(vars(module)) for module in model.modules()] == before
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert model.config._attn_implementation == "eager"


# --- What is refused


def test_a_module_that_computes_in_another_way_is_refused() -> None:
    model = zoo.build("mpnet")
    for module in ModelAdapter(model)._cache.attention:
        module.dropout = torch.nn.Identity()
    with pytest.raises(AttendropError, match=r"is not supported in transformers .*: softmax of scores"):
        ModelAdapter(model).trace(zoo.batch_of("mpnet"))


def test_layers_that_something_else_runs_again_are_refused() -> None:
    model, batch = zoo.build("deberta-v3"), zoo.batch_of("deberta-v3")
    for layer in model.deberta.encoder.layer:
        intermediate = layer.attention
        stock = intermediate.forward
        intermediate.forward = lambda *a, s=stock, **k: checkpoint(s, *a, use_reentrant=False, **k)
    with regularize(model, METHOD) as reg, pytest.raises(AttendropError, match="run again in the backward pass"):
        reg.loss(batch).backward()
