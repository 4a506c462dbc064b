"""The probe drops what it says, in one layer at a time, and compares with the model as it is."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.plans import passed
from torch.nn import functional

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import ConstantAttention
from attendrop.attribution.gradient import gradient_attribution
from attendrop.reports.probe import DIRECTIONS, probe


def batches(name: str) -> list[Any]:
    return [zoo.batch_of(name, (8, 5, 3)), zoo.batch_of(name, (6, 4), seed=5)]


def masked_loss(direction: str, rate: float) -> float:
    """Mean loss with a region of the first layer dropped by an eager model and an additive mask, written out."""
    losses: list[torch.Tensor] = []
    for batch in batches("bert"):
        with ModelAdapter(model := zoo.build("bert").eval()) as adapter:
            attribution = gradient_attribution(adapter, batch, adapter.trace(batch), "gold_label")["encoder.0"]
        drop = torch.zeros_like(attribution, dtype=torch.bool)
        for row, length in enumerate(batch["attention_mask"].sum(-1).tolist()):
            for head in range(attribution.shape[1]):
                for query in range(length):
                    order = attribution[row, head, query, :length].argsort()
                    number = math.floor(rate * length + 1e-6)
                    kept = math.floor((1 - rate) * length + 1e-6)
                    drop[row, head, query, order[:number] if direction == "low" else order[max(kept, 1) :]] = True
        eager = zoo.build("bert", "eager").eval()
        eager.load_state_dict(model.state_dict())
        own = eager.bert.encoder.layer[0].attention.self

        def masked(*args: Any, forward: Any = own.forward, drop: Any = drop, **kwargs: Any) -> Any:
            mask = kwargs.pop("attention_mask", None)
            mask = args[1] if mask is None else mask
            mask = mask.expand(drop.shape).masked_fill(drop, torch.finfo(torch.float32).min)
            return forward(args[0], attention_mask=mask, **kwargs)

        own.forward = masked
        logits = eager(**{key: value for key, value in batch.items() if key != "labels"}).logits
        losses.append(functional.cross_entropy(logits, batch["labels"], reduction="none"))
    return float(torch.cat(losses).mean().detach())


def test_high_and_low_attributions_are_dropped_in_one_layer() -> None:
    found = probe(zoo.build("bert"), batches("bert"), rates=[0.4]).by_place
    for direction in ("high", "low"):
        assert found["encoder.0", 0.4, direction].loss == pytest.approx(masked_loss(direction, 0.4), abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2-class", "bert-tokens"])
def test_every_layer_rate_and_direction_is_compared_with_the_plain_model(name: str) -> None:
    found = probe(zoo.build(name, dropout=0.3), batches(name), rates=[0.3, 0.9])
    kind = "decoder" if name == "gpt2-class" else "encoder"
    entries = [(result.layer, result.rate, result.direction) for result in found.results]
    assert entries == [(f"{kind}.{i}", rate, way) for i in range(2) for rate in (0.3, 0.9) for way in DIRECTIONS]
    model = zoo.build(name).eval()
    logits = [model(**batch).logits.detach().numpy() for batch in batches(name)]
    for mine, theirs in zip(found.logits, logits, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    for result in found.results:
        assert result.change == pytest.approx(result.loss - found.loss)
        assert result.low <= result.change <= result.high
    assert any(abs(result.change) > 1e-4 for result in found.results)


def test_nothing_else_is_changed_and_random_positions_have_a_seed() -> None:
    model = zoo.build("bert", dropout=0.3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    first, again, other = (probe(model, batches("bert"), rates=[0.5], seed=seed) for seed in (0, 0, 1))
    assert first.by_place["encoder.0", 0.5, "random"].loss == again.by_place["encoder.0", 0.5, "random"].loss
    assert first.by_place["encoder.0", 0.5, "random"].loss != other.by_place["encoder.0", 0.5, "random"].loss
    assert first.by_place["encoder.0", 0.5, "high"].loss == other.by_place["encoder.0", 0.5, "high"].loss
    zoo.assert_same(before, model.state_dict())
    assert model.training


def test_losses_and_intervals_are_over_rows_with_all_their_windows_also_as_csv() -> None:
    numbers, seen = [7, 7, 8, 9, 9], list[tuple[int, int]]()
    model, every = zoo.build("bert"), batches("bert")
    found = probe(model, every, rates=[0.4], row_numbers=numbers, on_pass=lambda *passes: seen.append(passes))
    assert seen == [(i, 14) for i in range(14)]
    assert (found.rows, found.windows) == (3, 5)

    def losses(logits: list[Any]) -> Any:
        gold = torch.cat([batch["labels"] for batch in every])
        windows = functional.cross_entropy(torch.tensor(np.concatenate(logits)), gold, reduction="none").numpy()
        return np.array([windows[:2].mean(), windows[2], windows[3:].mean()])

    result = found.by_place["encoder.0", 0.4, "high"]
    changes = losses(result.logits) - losses(found.logits)
    assert found.loss == pytest.approx(losses(found.logits).mean(), abs=1e-6)
    assert result.change == pytest.approx(changes.mean(), abs=1e-6)
    width = 4.302653 * changes.std(ddof=1) / math.sqrt(3)  # of Student's t with 2 degrees of freedom
    assert (result.low, result.high) == pytest.approx((changes.mean() - width, changes.mean() + width), abs=1e-6)
    rows = list(csv.DictReader(io.StringIO(found.csv([0.5] * 6, "accuracy"))))
    assert [row["direction"] for row in rows[:3]] == list(DIRECTIONS)
    assert float(rows[0]["loss_change"]) == pytest.approx(found.results[0].change, abs=1e-6)
    assert {row["accuracy"] for row in rows} == {"0.500000"}


def test_rows_without_signal_are_told() -> None:
    found = probe(zoo.build("bert"), batches("bert"), rates=[0.3])
    assert found.rows_with_signal["encoder.0"] == 1.0
    assert found.rows_with_signal["encoder.1"] == pytest.approx(5 / 26)  # of the last layer the first token is read
    constant = passed(zoo.build("bert").eval(), batches("bert")[0], ConstantAttention(["encoder.1"])).loss.item()
    assert found.by_place["encoder.1", 0.3, "high"].loss != pytest.approx(constant)
