"""Edits of attention: no engine ignores one, and none is lost where several are combined."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.plans import Everywhere, attached
from torch import Tensor

from attendrop import AttendropError
from attendrop.attention.edits import AttentionEdit, BlockEdit, merge_edits
from attendrop.attention.plan import Plan

# A model for each way in which edits are applied.
ENGINES = pytest.mark.parametrize("name", ["bert", "deberta-v3", "mpnet"])


@cache
def logits(name: str, plan: Plan | None) -> Tensor:
    batch = zoo.batch_of(name)
    adapter = attached(zoo.build(name).train(), batch)
    torch.manual_seed(0)
    return adapter.forward(batch, plan).logits


def test_edits_have_the_fields_that_every_engine_knows() -> None:
    for kind in (AttentionEdit, BlockEdit):
        with pytest.raises(AttendropError, match=rf"Sharper cannot add to {kind.__name__}"):
            type("Sharper", (kind,), {})


def test_merging_goes_over_all_fields() -> None:
    drops = torch.tensor([True, False]), torch.tensor([False, False])
    found = merge_edits([AttentionEdit(drop=drops[0]), AttentionEdit(dropout=0.5, drop=drops[1]), AttentionEdit()])
    assert found is not None and found.dropout == 0.5
    assert found.drop is not None and found.drop.tolist() == [True, False]
    assert merge_edits([BlockEdit(), BlockEdit(skip=True)]) == BlockEdit(skip=True)


def test_two_edits_of_the_same_are_refused() -> None:
    with pytest.raises(AttendropError, match="use one of them"):
        merge_edits([AttentionEdit(dropout=0.1), AttentionEdit(dropout=0.0)])


READ: list[Tensor] = []
FIELDS: dict[str, Any] = {
    "drop": torch.tensor([[[[True] + [False] * 7]]]),
    "weights": lambda weights: weights * 0.5,
    "constant": True,
    "output": lambda output: output * 0.5,
    "inputs": lambda query, key, value: (query, key, value * 0.5),
    "values": READ.append,
    "dropout": 0.9,
}


# "bert" runs a fused kernel for most fields; a function of the weights has every engine compute them.
CASES: list[tuple[str, dict[str, Any]]] = [(field, {}) for field in FIELDS]
CASES += [(field, {"weights": lambda weights: weights}) for field in FIELDS if field not in ("weights", "replace")]


@pytest.mark.parametrize(("field", "others"), CASES, ids=[f"{field}{'-weights' * bool(too)}" for field, too in CASES])
@ENGINES
def test_every_field_has_an_effect(name: str, field: str, others: dict[str, Any]) -> None:
    READ.clear()
    found = logits(name, Everywhere(AttentionEdit(**{field: FIELDS[field]}, **others)))
    assert found.isfinite().all()
    assert READ or not torch.allclose(found, logits(name, None))
    assert FIELDS.keys() == {each.name for each in fields(AttentionEdit)} - {"draws"}  # which change no result
