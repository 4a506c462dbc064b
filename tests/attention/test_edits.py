"""Edits of attention: no engine ignores one, and none is lost where several are combined."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import AttendropError
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit, BlockEdit, merge_edits
from attendrop.attention.plan import CombinedPlan, Plan

# A model for each way in which edits are applied.
ENGINES = pytest.mark.parametrize("name", ["bert", "deberta-v3", "mpnet"])


@dataclass(frozen=True)
class Sharper(AttentionEdit):
    """An edit that no engine knows."""

    temperature: float = 1.0


@dataclass(frozen=True)
class Shifted(BlockEdit):
    """An edit that the hooks of blocks do not know."""

    shift: float = 0.0


class Everywhere(Plan):
    """The same edit of each layer, and of each block."""

    def __init__(self, edit: AttentionEdit | None = None, block: BlockEdit | None = None) -> None:
        super().__init__()
        self.acts_on = frozenset({"attention", "blocks"})
        self.of_layers, self.of_blocks = edit, block

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        return self.of_layers

    def block(self, block: Block) -> BlockEdit | None:
        return self.of_blocks


def logits(name: str, plan: Plan | None, **options: Any) -> Tensor:
    adapter, batch = ModelAdapter(zoo.build(name, **options).train()), zoo.batch_of(name)
    adapter.attach()
    adapter.trace(batch)
    torch.manual_seed(0)
    found: Tensor = adapter.forward(batch, plan).logits
    return found


@pytest.mark.parametrize("combined", [False, True])
@ENGINES
def test_an_edit_that_an_engine_does_not_know_is_refused(name: str, combined: bool) -> None:
    other = AttentionEdit(output=lambda output: output * 2)

    def plan(temperature: float) -> Plan:
        one = Everywhere(Sharper(temperature=temperature))
        return CombinedPlan([Everywhere(other), one]) if combined else one

    with pytest.raises(AttendropError, match=r"does not know the edit 'temperature' \(Sharper\)"):
        logits(name, plan(2.0))
    torch.testing.assert_close(logits(name, plan(1.0)), logits(name, Everywhere(other) if combined else None))


@pytest.mark.parametrize("combined", [False, True])
def test_an_edit_of_blocks_that_hooks_do_not_know_is_refused(combined: bool) -> None:
    plan: Plan = Everywhere(block=Shifted(shift=1.0))
    plan = CombinedPlan([Everywhere(block=BlockEdit(output=lambda states: states)), plan]) if combined else plan
    with pytest.raises(AttendropError, match=r"does not know the edit 'shift' \(Shifted\)"):
        logits("bert", plan)


def test_merging_goes_over_all_fields() -> None:
    drops = torch.tensor([True, False]), torch.tensor([False, False])
    found = merge_edits([AttentionEdit(drop=drops[0]), Sharper(temperature=2.0, drop=drops[1]), AttentionEdit()])
    assert isinstance(found, Sharper) and found.temperature == 2.0
    assert found.drop is not None and found.drop.tolist() == [True, False]
    assert merge_edits([Shifted(shift=2.0), BlockEdit(skip=True)]) == Shifted(shift=2.0, skip=True)


@dataclass(frozen=True)
class _Other(AttentionEdit):
    other: int = 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Sharper(temperature=2.0), Sharper(temperature=2.0)),
        (Sharper(temperature=2.0), _Other(other=1)),
        (AttentionEdit(dropout=0.1), AttentionEdit(dropout=0.0)),
        (AttentionEdit(replace=torch.ones(1)), AttentionEdit(output=lambda output: output)),
        (Shifted(shift=2.0), Shifted(shift=1.0)),
    ],
    ids=["a new field", "two new fields", "dropout", "weights that are given", "a new field of blocks"],
)
def test_two_edits_of_the_same_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(AttendropError, match="use one of them"):
        merge_edits([one, other])
    with pytest.raises(AttendropError, match="use one of them"):
        merge_edits([other, one])


READ: list[Tensor] = []
FIELDS: dict[str, Any] = {
    "drop": torch.tensor([[[[True] + [False] * 7]]]),
    "weights": lambda weights: weights * 0.5,
    "replace": torch.full((3, 2, 8, 8), 0.3),
    "constant": True,
    "output": lambda output: output * 0.5,
    "inputs": lambda query, key, value: (query, key, value * 0.5),
    "values": READ.append,
    "dropout": 0.9,
}


@pytest.mark.parametrize("field", FIELDS)
@ENGINES
def test_every_field_has_an_effect(name: str, field: str) -> None:
    READ.clear()
    found = logits(name, Everywhere(AttentionEdit(**{field: FIELDS[field]})))
    assert READ or not torch.allclose(found, logits(name, None))
    assert FIELDS.keys() == {each.name for each in fields(AttentionEdit)} - {"draws"}  # which change no result
