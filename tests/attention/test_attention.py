"""Attention: layers, plans, equality with the stock models, attaching and detaching."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import oracles, zoo
from helpers.plans import Everywhere, Weights, attached, passed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AttentionInterface

from attendrop import ADDrop, AttendropError, regularize
from attendrop.attention.adapter import find_attention_layers
from attendrop.attention.layers import AttentionLayer, select_layers
from attendrop.attention.plan import AttentionEdit

BACKENDS = ["sdpa", "eager"]
METHOD = ADDrop(p=0.5, q=0.5, layers="all")


def logits(model: Any, batch: zoo.Batch) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


# --- Sites


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "backend"), zoo.BUILDS)
def test_sites_have_the_right_kinds_and_numbers(name: str, backend: str) -> None:
    model = zoo.build(name, backend)
    for attention_layers in (find_attention_layers(model), find_attention_layers(model, zoo.batch_of(name))):
        expected = {f"{kind}.{i}" for kind, count in zoo.ZOO[name].attention_layers.items() for i in range(count)}
        assert {layer.key for layer in attention_layers} == expected
        assert len({layer.name for layer in attention_layers}) == len(attention_layers) == len(expected)
    assert model.config._attn_implementation == backend


# --- Choosing layers

PLACES = [("encoder", 0), ("encoder", 1), ("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]
SITES = [AttentionLayer(f"m{i}", *place) for i, place in enumerate(PLACES)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", ["encoder.0", "encoder.1", "decoder.0", "cross.0", "decoder.1", "cross.1"]),
        ("first", ["encoder.0", "decoder.0", "cross.0"]),
        ("[1]", ["encoder.1", "decoder.1", "cross.1"]),
        ("encoder", ["encoder.0", "encoder.1"]),
        ("cross:first", ["cross.0"]),
        ("cross:1;encoder:0", ["encoder.0", "cross.1"]),
        ("2", r"no layer 2; layers are 0 to 1"),
        *((malformed, "is not a selection") for malformed in ("", "0;;1", "-1", "encodr:0", [], [True], ["0"])),
    ],
    ids=repr,
)
def test_layers_are_chosen_by_number_and_kind(layers: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert [layer.key for layer in select_layers(SITES, layers)] == expected
        return
    with pytest.raises(AttendropError, match=expected):
        select_layers(SITES, layers)
    with pytest.raises(AttendropError, match=r"no cross .*; it has encoder"):
        select_layers(SITES[:2], "cross")


# --- Equality with the untouched model


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "backend"), zoo.BUILDS)
def test_outputs_are_bit_identical_in_eval_mode_and_after_removal(name: str, backend: str, tmp_path: Path) -> None:
    model, batch = zoo.build(name, backend), zoo.batch_of(name)
    model.eval()
    untouched = logits(model, batch)
    with regularize(model, METHOD) as reg:
        assert torch.equal(logits(model, batch), untouched)
        model.train()
        reg.loss(batch).backward()
        model.eval()
        assert torch.equal(logits(model, batch), untouched)
        model.config.save_pretrained(tmp_path)
        assert "attendrop" not in (tmp_path / "config.json").read_text()
    assert torch.equal(logits(model, batch), untouched)
    assert model.config._attn_implementation == backend


@pytest.mark.sampled(5)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("name", "backend"), zoo.BUILDS)
def test_weights_and_outputs_equal_those_of_the_stock_model(name: str, masked: bool, backend: str) -> None:
    batch = zoo.batch_of(name, (8, 5, 3) if masked else (6, 6, 6))
    if not masked:
        batch.pop("attention_mask", None)
    eager = zoo.build(name, "eager", dtype=torch.float64)
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    with oracles.EagerAttention().in_place_of_stock(eager) as oracle:
        expected = logits(eager, batch)
    model = zoo.build(name, backend, dtype=torch.float64)
    adapter = attached(model, batch)
    with torch.no_grad():
        plain, fused = adapter.forward(batch), adapter.forward(batch, Everywhere(AttentionEdit()))
        explicit = adapter.forward(batch, weights := Weights())
    # Some model files compute their own softmax in float32, whatever the dtype.
    torch.testing.assert_close(plain.logits, expected, rtol=1e-4, atol=1e-5)
    for outputs in (fused, explicit):
        torch.testing.assert_close(outputs.logits, expected, rtol=1e-9, atol=1e-9)
    assert len(weights.seen) == len(oracle.weights)
    for layer, found, valid in zip(adapter.attention_layers, oracle.weights, oracle.valid, strict=True):
        real = valid.any(-1, keepdim=True)
        torch.testing.assert_close(weights.seen[layer.key] * real, found * real, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("edit", [AttentionEdit(), AttentionEdit(constant=True)])
def test_eager_attention_returns_its_weights_under_a_plan(edit: AttentionEdit) -> None:
    model, batch = zoo.build("bert", "eager").eval(), zoo.batch_of("bert") | {"output_attentions": True}
    found = passed(model, batch, Everywhere(edit)).attentions
    valid = batch["attention_mask"][:, None, None].float()
    equal = [(valid / valid.sum(-1, keepdim=True)).expand(each.shape) for each in found]
    expected = equal if edit.constant else model(**batch).attentions
    assert len(found) == 2
    torch.testing.assert_close(list(found), list(expected), rtol=1e-4, atol=1e-5)


GEMMA = dict(zoo.ZOO["llama"].options) | {
    "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
GPT2 = zoo.ZOO["gpt2"].options


@pytest.mark.parametrize(
    ("name", "usual", "changed"),
    [
        ("GPT2LMHeadModel", GPT2, {"scale_attn_by_inverse_layer_idx": True}),
        ("GPT2LMHeadModel", GPT2, {"scale_attn_weights": False}),
        ("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": None}, {"attn_logit_softcapping": 0.5}),
    ],
)
def test_scaling_and_softcap_are_kept(name: str, usual: dict[str, Any], changed: dict[str, Any]) -> None:
    batch = zoo.batch_of("llama")
    expected = logits(zoo.from_class(name, usual | changed, "eager"), batch)
    assert not torch.allclose(expected, logits(zoo.from_class(name, usual, "eager"), batch), atol=1e-3)
    adapter = attached(zoo.from_class(name, usual | changed, "eager"), batch)
    for plan in (Everywhere(AttentionEdit()), Weights()):
        with torch.no_grad():
            found = adapter.forward(batch, plan).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rows_without_a_valid_key_stay_as_stock_gives_them(name: str, backend: str) -> None:
    batch = zoo.batch_of(name, (8, 3), left=True) | {"output_hidden_states": True}
    model = zoo.build(name, backend)
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    with torch.no_grad():
        expected = model(**batch)
        adapter = attached(model, batch)
        for plan in (Everywhere(AttentionEdit()), Everywhere(AttentionEdit(drop=nothing)), Weights()):
            found = adapter.forward(batch, plan)
            for ours, stock in zip(
                (found.logits, *found.hidden_states), (expected.logits, *expected.hidden_states), strict=True
            ):
                torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "backend"), [build for build in zoo.BUILDS if build[0] in zoo.TEXT])
def test_logits_do_not_depend_on_padding(name: str, backend: str) -> None:
    model = zoo.build(name, backend, dtype=torch.float64)
    tight, loose = zoo.batch_of(name, (8, 5, 3)), zoo.batch_of(name, (8, 5, 3), extra=5)
    drop = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    found = []
    for batch in (tight, loose):
        with attached(model, batch) as adapter, torch.no_grad():
            plans = (None, Everywhere(AttentionEdit(drop=drop)), Everywhere(AttentionEdit(drop=~drop)), Weights())
            found.append([adapter.forward(batch, plan).logits for plan in plans])
    for one, other in zip(*found, strict=True):
        if one.ndim == 3:
            real = tight["labels"] != -100
            one, other = one[real], other[:, : real.shape[1]][real]
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


# --- Dropped scores


def attend(valid: Tensor, drop: Tensor, dtype: torch.dtype, explicit: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One call of the registered function: output ``(batch, heads, query, dim)``, scores, and the tensors to grade."""
    batch, heads, queries, keys = drop.shape
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(batch, heads, n, 4, generator=generator) for n in (queries, keys, keys)]
    query, key, value = (tensor.to(dtype).requires_grad_() for tensor in made)
    module = torch.nn.Identity()
    plan = Everywhere(AttentionEdit(drop=drop, weights=(lambda w: w) if explicit else None))
    plan._layers_by_module = {module: (AttentionLayer("layer", "encoder", 0),)}
    output, _ = AttentionInterface._global_mapping["attendrop"](
        module, query, key, value, valid, scaling=0.7, attendrop_plan=plan
    )
    scores = 0.7 * query.double() @ key.double().transpose(-1, -2)
    return output.transpose(1, 2), scores.detach(), [query, key, value]


@st.composite
def masked_calls(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Valid keys (a length for each sequence, perhaps causal), and positions to drop."""
    batch, heads, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 6))
    lengths = torch.tensor(draw(st.lists(st.integers(1, size), min_size=batch, max_size=batch)))
    valid = (torch.arange(size) < lengths[:, None])[:, None, None, :].expand(batch, 1, size, size)
    if draw(st.booleans()):
        valid = valid & torch.ones(size, size, dtype=torch.bool).tril()
    seed, share = draw(st.integers(0, 99)), draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    return valid, torch.rand(batch, heads, size, size, generator=generator) < share


@given(masked_calls(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.booleans())
def test_dropped_attention_equals_the_loops(call: tuple[Tensor, Tensor], dtype: torch.dtype, explicit: bool) -> None:
    valid, drop = call
    output, scores, leaves = attend(valid, drop, dtype, explicit)
    expected = oracles.dropped_attention(scores, valid.expand(drop.shape), drop) @ leaves[2].detach().double()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    assert output.dtype == dtype
    for leaf, gradient in zip(leaves, torch.autograd.grad(output.sum(), leaves), strict=True):
        assert torch.isfinite(gradient).all()
        assert gradient.dtype == leaf.dtype
    padding = ~valid.any(-2, keepdim=True).transpose(-1, -2).expand(*drop.shape[:2], -1, 1)
    assert (gradient.masked_select(padding) == 0).all()  # of the values: exactly, whatever they are


def test_a_row_dropped_whole_forgets_a_position_bias() -> None:
    model, batch = zoo.build("t5", dtype=torch.float64), zoo.batch_of("t5")
    plan = Weights(torch.ones(1, 1, 1, 1, dtype=torch.bool))
    attached(model, batch).forward(batch, plan)
    lengths = batch["attention_mask"].sum(-1)
    for b, length in enumerate(lengths):
        expected = (torch.arange(8) < length).double() / length
        torch.testing.assert_close(plan.seen["encoder.0"][b], expected.expand(2, 8, 8), rtol=1e-12, atol=1e-12)


# --- Attaching and detaching


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_models_own_dropout_draws_alike(backend: str) -> None:
    """Without an edit, the model's own function runs, bit for bit."""
    model, batch = zoo.build("bert", backend, dropout=0.3), zoo.batch_of("bert")
    adapter, found = attached(model, batch), []
    for run in (lambda: model(**batch), lambda: adapter.forward(batch, Everywhere(None)),
                lambda: adapter.forward(batch, Everywhere(AttentionEdit()))):  # fmt: skip
        torch.manual_seed(1)
        found.append(run().logits)
    assert torch.equal(found[1], found[0])
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-5)
