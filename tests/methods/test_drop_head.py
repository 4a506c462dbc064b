"""DropHead: the schedule, which heads are dropped, and how the others are rescaled."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from helpers.oracles import gated
from torch import Tensor

from attendrop import AttendropError, DropHead, regularize
from attendrop.randomness.keyed_random import SampleKey, sample_mask

CONSTANT = DropHead(p_start=0.5, schedule="constant")


def factors(p: float, batch: int, heads: int) -> Tensor:
    """What the output of each head of each sequence is multiplied by, ``(batch, heads)``."""
    output = edit_of(DropHead(p_start=p, schedule="constant"), (batch, heads, 3, 3)).output
    assert output is not None
    found = output(torch.ones(batch, 3, heads, 2, dtype=torch.float64))
    assert torch.equal(found, found[:, :1, :, :1].expand_as(found))  # the same for all tokens and units
    return found[:, 0, :, 0]


# --- The schedule


@pytest.mark.parametrize(
    ("progress", "expected"), [(0, 0.4), (0.1, 0.2), (0.15, 0.1), (0.2, 0), (0.4, 0.05), (0.6, 0.1), (1, 0.2)]
)
def test_the_v(progress: float, expected: float) -> None:
    assert DropHead(p_start=0.4, p_end=0.2, turn=0.2).probability_at(progress) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "step", "expected"),
    [
        ({}, 0, 0.4), ({}, 4, 0.0), ({}, 7, 0.225), ({"schedule": "constant"}, 4, 0.4),
    ],
)  # fmt: skip
def test_the_share_of_heads_that_is_dropped(options: dict[str, Any], step: int, expected: float) -> None:
    model, batch = zoo.build("bert", num_attention_heads=8), zoo.batch_of("bert", [4] * 128)
    with regularize(model, DropHead(p_start=0.4, p_end=0.3, turn=0.5, **options), total_steps=8) as reg:
        reg.begin_step(step)
        reg.loss(batch)
        logs = reg.logs()
    for layer in ("encoder.0", "encoder.1"):
        # 1024 heads: 0.06 are 4 standard deviations.
        assert logs[f"drophead/dropped/{layer}"] == pytest.approx(expected, abs=0.06 if expected else 0)


def test_the_v_needs_to_know_the_number_of_steps() -> None:
    batch = zoo.batch_of("bert")
    with (
        regularize(zoo.build("bert"), DropHead()) as reg,
        pytest.raises(AttendropError, match=r"'drophead' depends on the training progress.* pass total_steps="),
    ):
        reg.loss(batch)
    with regularize(zoo.build("bert"), CONSTANT) as reg:
        assert torch.isfinite(reg.loss(batch))


# --- What is dropped, and what becomes of the others


@pytest.mark.parametrize(("p", "heads"), [(0.2, 4), (0.6, 2), (0.5, 12)])
def test_kept_heads_make_up_for_dropped_ones(p: float, heads: int) -> None:
    found = factors(p, 4000, heads)
    kept = (found > 0).sum(1)
    for number in range(heads + 1):
        rows = found[kept == number]
        allowed = {0.0, heads / number} if number else {0.0}
        assert {round(value, 9) for value in rows.flatten().tolist()} <= {round(value, 9) for value in allowed}
    assert (found == 0).double().mean().item() == pytest.approx(p, abs=0.02)
    # The sum over the heads is theirs, but where all are dropped.
    assert found.sum(1)[kept > 0].sub(heads).abs().max() < 1e-9
    assert found.mean().item() == pytest.approx(1 - p**heads, abs=0.02)


@pytest.mark.parametrize(("name", "heads", "step"), [("bert", 2, 0), ("llama-class", 4, 2)])
def test_the_loss_is_that_of_the_formula(name: str, heads: int, step: int) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name, [8, 5, 3, 4])
    with regularize(model, CONSTANT) as reg:
        reg.begin_step(step)
        loss = reg.loss(batch)
        attention_layers, blocks = reg._adapter.attention_layers, reg._adapter.blocks
    with ExitStack() as stack:
        for layer, block in zip(attention_layers, blocks, strict=True):
            shape, origins = (4, heads, 1, 1), torch.zeros(4, 2, dtype=torch.long)
            drop = sample_mask(0.5, SampleKey(0, step, 0, 4), layer.key, shape, origins, torch.device("cpu"))[
                :, :, 0, 0
            ].tolist()
            gates = [[0 if gone else heads / own.count(False) for gone in own] for own in drop]
            stack.enter_context(gated(block.output_projections[layer.key], gates))
        torch.testing.assert_close(model(**batch).loss, loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_without_heads_adds_nothing(dtype: torch.dtype) -> None:
    model, batch = zoo.build("bert", dtype=dtype), zoo.batch_of("bert")
    with regularize(model, DropHead(p_start=0.999999, schedule="constant")) as reg:
        loss = reg.loss(batch)
        assert reg.logs()["drophead/dropped"] == 1
        loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value).all() for value in zoo.gradients(model).values())
    for layer in model.bert.encoder.layer:
        layer.attention.output.dense.weight.data.zero_()
    torch.testing.assert_close(model(**batch).loss, loss)
