"""One call of an attention layer: which keys the model's mask hides."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.plans import Weights
from torch import Tensor
from transformers import AttentionInterface

from attendrop import SCAL, ADDrop, regularize
from attendrop.attention.layers import AttentionLayer
from attendrop_methods import R3F, TokenCutoff

LENGTHS = torch.tensor([6, 4])
VALID = (torch.arange(6) < LENGTHS[:, None])[:, None, None, :].expand(2, 1, 6, 6)
EVERYTHING = torch.ones(1, 1, 1, 1, dtype=torch.bool)

# What models add to their scores beside the mask.
BIASES: dict[str, Callable[[], Tensor]] = {
    "no bias": lambda: torch.zeros(1, 2, 6, 6),
    "relative bias": lambda: torch.randn(1, 2, 6, 6) * 5,
    "bias far from zero": lambda: torch.randn(1, 2, 6, 6) * 5 - 30,
}


def look(mask: Tensor, dtype: torch.dtype, drop: Tensor | None = None) -> Weights:
    """One call of the registered function under a plan."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(2, 2, 6, 4, generator=generator).to(dtype) for _ in range(3))
    module, plan = torch.nn.Identity(), Weights(drop)
    plan._layers_by_module = {module: (AttentionLayer("layer", "encoder", 0),)}
    AttentionInterface._global_mapping["attendrop"](
        module, query, key, value, mask.to(dtype), scaling=0.7, is_causal=False, attendrop_plan=plan
    )
    return plan


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("hidden", ["-inf", "min", "-1e9", "-1e4", "-100"])
def test_padding_is_hidden_by_any_hugely_negative_mask(hidden: str, dtype: torch.dtype, bias: str) -> None:
    number = torch.finfo(dtype).min if hidden == "min" else float(hidden)
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.float64).masked_fill(~VALID, number).to(dtype) + BIASES[bias]().to(dtype)
    for drop in (None, EVERYTHING):
        plan = look(mask, dtype, drop)
        valid, weights = plan.valid["encoder.0"], plan.seen["encoder.0"]
        assert torch.equal(valid.expand(2, 2, 6, 6), VALID.expand(2, 2, 6, 6))
        assert (weights.masked_select(~VALID) == 0).all()
    expected = VALID / LENGTHS.view(2, 1, 1, 1)
    torch.testing.assert_close(weights.float(), expected.expand(2, 2, 6, 6), rtol=1e-2, atol=0)


def test_rows_of_minus_infinity_alone_do_no_harm() -> None:
    """A custom mask hides padding from every row, and every key from rows of padding."""
    method = ADDrop(layers="all")
    batch = zoo.batch_of("bert")
    real = batch["attention_mask"].bool()
    seen = real[:, None, None, :] & real[:, None, :, None]
    found = []
    for hidden in (-torch.inf, torch.finfo(torch.float32).min):
        model = zoo.build("bert", "sdpa")
        mask = torch.zeros(seen.shape).masked_fill(~seen, hidden)
        with regularize(model, method) as reg:
            loss = reg.loss({**batch, "attention_mask": mask})
            loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        found.append(loss.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_row_that_hides_everything_has_no_valid_key() -> None:
    number = -1e4
    mask = torch.where(VALID, 0.0, number)
    mask[1, :, 4:] = number
    plan = look(mask, torch.float32, EVERYTHING)
    valid, weights = plan.valid["encoder.0"], plan.seen["encoder.0"]
    assert not valid.expand(2, 2, 6, 6)[1, :, 4:].any()
    stock = look(mask, torch.float32).seen["encoder.0"]
    torch.testing.assert_close(weights[1, :, 4:], stock[1, :, 4:])


@pytest.mark.parametrize("method", [TokenCutoff(fraction=0.3, alpha=0), R3F(scale=1.0), SCAL()])
def test_methods_know_padding_by_masks_of_any_form(method: Any) -> None:
    batch = zoo.batch_of("bert", (6, 4))
    real = batch["attention_mask"].bool()
    of_keys = real[:, None, None]
    forms = [batch["attention_mask"], of_keys, torch.zeros(of_keys.shape).masked_fill(~of_keys, -1e9)]
    forms += [torch.zeros(2, 1, 6, 6).masked_fill(~of_keys, -torch.inf), of_keys.expand(2, 1, 6, 6)]
    found = []
    for mask in forms:
        with regularize(zoo.build("bert", "sdpa"), method) as reg:
            found.append(reg.loss({**batch, "attention_mask": mask}).item())
    assert found == pytest.approx([found[0]] * len(forms), rel=1e-5)
