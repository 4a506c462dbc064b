"""The scheduler: its curves, what it draws, and its options."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention

from attendrop import AttendropError, Scheduler, regularize
from attendrop.methods.core.registry import build_method
from attendrop.randomness.keyed_random import SampleKey, sample_mask

CURVES = Scheduler((0, 0.25, 1), ((0.6, 0.5, 0.2), (0.0, 1.0, 1.0)))


# --- Curves


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.125, (0.55, 0.5)),
        (0.2475, (0.501, 0.95)),  # 0.99 is beyond the bound
        (1, (0.2, 0.95)),
    ],
)
def test_probabilities_are_piecewise_linear_and_bounded(progress: float, expected: tuple[float, ...]) -> None:
    assert CURVES.probabilities_at(progress) == pytest.approx(expected)


# --- What is dropped


def test_the_loss_is_that_of_the_formula() -> None:
    step = 3
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3))
    method = Scheduler((0, 1), ((0.6, 0.1), (0.9, 0.9)))
    with regularize(model, method, total_steps=8) as reg:
        reg.begin_step(step)
        loss, logs = reg.loss(batch), reg.logs()
    drops, valid, origins = [], batch["attention_mask"].bool()[:, None, None], torch.zeros(3, 2, dtype=torch.long)
    for i, p in enumerate((0.6 - 0.5 * step / 8, 0.9)):
        sampled = sample_mask(p, SampleKey(0, step, 0, 3), f"encoder.{i}", (3, 2, 8, 8), origins, torch.device("cpu"))
        drops.append(sampled & valid)
        counted = valid & valid.transpose(-1, -2)
        share = (sampled & counted).sum() / (counted.sum() * 2)
        assert logs[f"scheduler/dropped/encoder.{i}"] == pytest.approx(share.item())
    with EagerAttention(drops).in_place_of_stock(model):
        torch.testing.assert_close(loss, model(**batch).loss)


# --- Options


@pytest.mark.parametrize(
    ("options", "curves"),
    [
        ({}, ((0.6, 0.0),)),
        ({"probabilities": [0.6, 0.5]}, ((0.6, 0.5),)),
        ({"probabilities": " 0.6,0.5 ; 1,0 "}, ((0.6, 0.5), (1.0, 0.0))),
        ({"probabilities": ((0.6, 0.5), (1, 0))}, ((0.6, 0.5), (1.0, 0.0))),
    ],
)
def test_probabilities_as_text_and_as_numbers(options: dict[str, Any], curves: tuple[tuple[float, ...], ...]) -> None:
    for method in (Scheduler(**options), build_method("scheduler", options)):
        assert (method.progress, method.probabilities) == ((0.0, 1.0), curves)
        assert build_method("scheduler", json.loads(json.dumps(method.options()))) == method
        assert hash(method) == hash(Scheduler(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"progress": "0,1,0.5"}, r"progress='0,1,0\.5' must ascend from 0 to 1"),
        ({"progress": (0.1, 1)}, r"must ascend from 0 to 1"),
        ({"progress": 0.5}, r"progress=0\.5 is not a list of numbers"),
        ({"probabilities": "0.6,x"}, r"probabilities='0\.6,x' is not a list of numbers"),
        ({"probabilities": []}, r"probabilities=\[\] is empty"),
        ({"probabilities": [0.5, [0.5, 0.4]]}, r"probabilities=0\.5 is not a list"),
        ({"probabilities": (0.5, 1.1)}, r"holds 1\.1; give numbers from 0 to 1"),
        ({"progress": "0,.5,1", "probabilities": "1,1,1; 1,1"}, r"a list is 2 long, but progress has 3 knots"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method("scheduler", options)


@pytest.mark.parametrize(
    ("name", "method", "total", "message"),
    [
        ("bert", Scheduler(), None, r"pass total_steps=.* to regularize"),
        ("bert", Scheduler(probabilities="1,0; 1,0; 1,0"), 8, r"3 lists for 2 layers of encoder attention"),
        ("bart", Scheduler(layers="cross"), 8, r"layers='cross' leaves no self-attention"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_when_it_starts(
    name: str, method: Scheduler, total: int | None, message: str
) -> None:
    model, batch = zoo.build(name), zoo.batch_of(name)
    with pytest.raises(AttendropError, match=message), regularize(model, method, total_steps=total) as reg:
        reg.loss(batch)


@pytest.mark.parametrize(
    ("shape", "layer", "end", "progress"),
    [("qnli", 0, 0.55, 0.0), ("qnli", 1, 0.45, 1.0), ("qnli", 5, 0.25, 0.5), ("cola", 5, 0.9, 1.0)],
)
def test_ready_made_shapes_start_at_the_papers_value(shape: str, layer: int, end: float, progress: float) -> None:
    model, batch = zoo.build("bert", num_hidden_layers=6), zoo.batch_of("bert", (30, 30, 30, 30))
    for layers in ("all", (layer,)):
        with regularize(model, Scheduler(shape=shape, layers=layers), total_steps=2) as reg:
            reg.begin_step(int(progress * 2))
            reg.loss(batch)
            share = reg.logs()[f"scheduler/dropped/encoder.{layer}"]
        assert share == pytest.approx(0.6 + (end - 0.6) * progress, abs=0.02)
