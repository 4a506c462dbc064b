"""DropAttention: which weights are dropped, and how the others are normalised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.one_layer import edit_of
from torch import Tensor

from attendrop import Compose, DropAttention, Vanilla, regularize
from attendrop.attention.edits import AttentionEdit
from attendrop.randomness.keyed_random import SampleKey, sample_mask

SHAPE = (4, 3, 9, 9)
LENGTHS = (9, 7, 4, 2)


def attention(valid: Tensor) -> Tensor:
    scores = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~valid, -torch.inf).softmax(-1).requires_grad_()


VALID = (torch.arange(9) < torch.tensor(LENGTHS)[:, None])[:, None, None].expand(SHAPE)
CAUSAL = torch.ones(9, 9).tril().bool().expand(SHAPE)


@pytest.mark.parametrize("valid", [VALID, CAUSAL], ids=["padded", "causal"])
@pytest.mark.parametrize("unit", ["element", "column"])
def test_the_rest_of_a_row_is_divided_by_its_sum_without_a_gradient_of_the_sum(unit: str, valid: Tensor) -> None:
    edit = edit_of(DropAttention(p=0.4, unit=unit), SHAPE, valid)
    before = attention(valid)
    assert edit.weights is not None and edit.dropout == 0
    found = edit.weights(before)
    factors = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((found * factors).sum(), before)
    rows = 9 if unit == "element" else 1
    origins = torch.zeros(4, 2, dtype=torch.long)
    drop = sample_mask(0.4, SampleKey(0, 0, 0, 4), "encoder.0", (4, 3, rows, 9), origins, origins.device).expand(SHAPE)
    wholes = 0
    for index in torch.cartesian_prod(*map(torch.arange, SHAPE[:3])).tolist():
        row, after, slope, factor = (x[tuple(index)].tolist() for x in (before.detach(), found, gradient, factors))
        columns = [j for j in range(9) if valid[(*index, j)]]
        kept = [j for j in columns if not drop[(*index, j)]]
        wholes += not kept
        for j in range(9):
            value, derivative = 0.0, 0.0
            if j in kept:
                value, derivative = (number / sum(row[k] for k in kept) for number in (row[j], factor[j]))
            elif j in columns and not kept:
                value = 1 / len(columns)
            assert after[j] == pytest.approx(value, rel=1e-6)
            assert slope[j] == pytest.approx(derivative, rel=1e-6)
    assert wholes > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_weights_are_normalised_and_have_finite_gradients(dtype: torch.dtype) -> None:
    """The first key takes nearly all the weight; of a row without it, float16 has few digits left, or none."""
    edit = edit_of(DropAttention(p=0.4, unit="element"), SHAPE)
    scores = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    scores[..., 0] = torch.linspace(6, 90, 9)
    scores.requires_grad_()
    assert edit.weights is not None
    found = edit.weights(scores.softmax(-1).to(dtype))
    torch.testing.assert_close(found.float().sum(-1), torch.ones(SHAPE[:3]), rtol=0, atol=0.02)
    (100 * found * torch.arange(1.0, 10).to(dtype)).sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_a_row_that_loses_its_keys_to_two_methods_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    make = AttentionEdit.drop_weights

    def drop_weights(edit: AttentionEdit, *args: Any) -> Tensor:
        found.append(make(edit, *args))
        return found[-1]

    monkeypatch.setattr(AttentionEdit, "drop_weights", drop_weights)
    batch = zoo.batch_of("bert", (4, 4, 4))
    with regularize(zoo.build("bert", dtype=torch.float64), Compose(Vanilla(p=0.5), DropAttention(p=0.5))) as reg:
        reg.loss(batch)
    rows = torch.stack(found)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 2, 4, dtype=torch.float64))
    assert (rows == 0.25).all(-1).any()


def dropped(method: DropAttention, valid: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor:
    """The positions that lose their weight; those of a row that is dropped whole do not."""
    edit = edit_of(method, shape, valid)
    assert edit.weights is not None
    return edit.weights(torch.ones(shape)) == 0


@pytest.mark.parametrize("unit", ["element", "column"])
def test_how_many_are_dropped(unit: str) -> None:
    drop = dropped(DropAttention(p=0.3, unit=unit), None, (32, 4, 30, 30))
    assert drop.float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert (drop.all(-2) | ~drop.any(-2)).all() == (unit == "column")
    assert not torch.equal(drop[0, 0], drop[0, 1]) and not torch.equal(drop[0, 0], drop[1, 0])


@pytest.mark.parametrize("unit", ["element", "column"])
def test_neighbours_are_dropped_together(unit: str) -> None:
    drop = dropped(DropAttention(p=0.2, unit=unit, window=3), None, (64, 4, 30, 30))
    for row in drop[:, :, 0].flatten(0, 1).tolist():
        runs = "".join("x" if each else " " for each in row).split()
        assert all(len(run) >= 3 for run in runs)
    assert drop.float().mean().item() == pytest.approx(0.19, abs=0.015)  # 0.2, less the overlap of windows


def test_almost_no_dropping_is_fine_tuning_without_attention_dropout() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    with regularize(model, DropAttention(p=1e-6)) as reg:
        torch.testing.assert_close(reg.loss(batch), model(**batch).loss)
    model = zoo.build("bert", dtype=torch.float64, attention_probs_dropout_prob=0.5)
    with regularize(model, DropAttention(p=1e-6)) as reg:
        torch.testing.assert_close(reg.loss(batch), model.eval()(**batch).loss)
