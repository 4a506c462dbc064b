"""One call of an attention layer: which keys the model's mask hides."""

from collections.abc import Callable

import pytest
import torch
from helpers import zoo
from helpers.plans import Weights, attached
from torch import Tensor
from transformers import AttentionInterface

from attendrop import ADDrop, regularize
from attendrop.attention.layers import AttentionLayer

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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("hidden", ["-inf", "min", "-1e9", "-1e4", "-100"])
def test_padding_is_hidden_by_any_hugely_negative_mask(hidden: str, dtype: torch.dtype, bias: str) -> None:
    number = torch.finfo(dtype).min if hidden == "min" else float(hidden)
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.float64).masked_fill(~VALID, number).to(dtype) + BIASES[bias]().to(dtype)
    for drop in (None, EVERYTHING):
        plan = look(mask, dtype, drop)
        valid, weights = plan.valid["encoder.0"], plan.seen["encoder.0"]
        assert valid is not None
        assert torch.equal(valid.expand(2, 2, 6, 6), VALID.expand(2, 2, 6, 6))
        assert (weights.masked_select(~VALID) == 0).all()
    expected = VALID / LENGTHS.view(2, 1, 1, 1)
    torch.testing.assert_close(weights.float(), expected.expand(2, 2, 6, 6), rtol=1e-2, atol=0)


def test_a_bias_hides_nothing() -> None:
    valid = look(torch.linspace(-30, 30, 36).view(1, 1, 6, 6), torch.float32).valid["encoder.0"]
    assert valid is None or bool(valid.all())


@pytest.mark.parametrize("attribution", ["gradient", "attention"])
def test_rows_of_minus_infinity_alone_do_no_harm(attribution: str) -> None:
    """A custom mask hides padding from every row, and every key from rows of padding."""
    method = ADDrop(attribution=attribution, layers="all")
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


@pytest.mark.parametrize("number", [-1e4, torch.finfo(torch.float32).min])
def test_a_row_that_hides_everything_has_no_valid_key(number: float) -> None:
    mask = torch.where(VALID, 0.0, number)
    mask[1, :, 4:] = number
    plan = look(mask, torch.float32, EVERYTHING)
    valid, weights = plan.valid["encoder.0"], plan.seen["encoder.0"]
    assert valid is not None
    assert not valid.expand(2, 2, 6, 6)[1, :, 4:].any()
    stock = look(mask, torch.float32).seen["encoder.0"]
    torch.testing.assert_close(weights[1, :, 4:], stock[1, :, 4:])


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_mask_of_the_users_own_says_the_same_as_zeros_and_ones(name: str, backend: str) -> None:
    model, batch = zoo.build(name, backend, dtype=torch.float64), zoo.batch_of(name)
    lengths = batch["attention_mask"]
    own = torch.where(lengths[:, None, None, :].bool(), 0.0, -1e4).double()
    adapter = attached(model, batch)
    plans = Weights(EVERYTHING), Weights(EVERYTHING)
    for plan, mask in zip(plans, (lengths, own), strict=True):
        adapter.forward({**batch, "attention_mask": mask}, plan)
    adapter.detach()
    for key, expected in plans[0].seen.items():
        torch.testing.assert_close(plans[1].seen[key], expected, rtol=1e-12, atol=0)


def test_windows_of_swin_are_valid_keys() -> None:
    options = {
        "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4,
        "num_labels": 3, "drop_path_rate": 0.0,
    }  # fmt: skip
    model = zoo.from_class("SwinForImageClassification", options)
    batch = {"pixel_values": torch.randn(1, 3, 16, 16)}
    adapter = attached(model, batch)
    adapter.forward(batch, plan := Weights())
    plain, shifted = plan.valid.values()
    assert plain is None or bool(plain.all())
    # Of four windows the shifted layer leaves one whole and divides two in halves, one in quarters.
    assert shifted is not None
    assert shifted.expand(4, 2, 16, 16)[:, 0].sum((1, 2)).tolist() == [256, 128, 128, 64]
    adapter.detach()
