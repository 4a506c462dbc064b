"""AD-DROP against a naive implementation, and what must not change its draws."""

import math
from typing import Any

import pytest
import torch
from helpers import oracles, zoo
from torch import Tensor

from attendrop import ADDrop, regularize

ON = {"layers": "all"}


def step(model: Any, method: ADDrop, batch: zoo.Batch) -> tuple[Tensor, dict[str, Tensor]]:
    with regularize(model, method) as reg:
        loss = reg.loss(batch)
        loss.backward()
    return loss.detach().cpu(), zoo.gradients(model)


NAIVE = ("bert", "bert-tokens", "modernbert", "albert", "gpt2", "llama-class", "bart", "t5", "deberta-v3", "mpnet")
ON_GPU = ("bert", "bart", "llama-class", "t5")


VARIANTS: list[dict[str, Any]] = [{}, {"gold": True}, {"direction": "low"}, {"attribution": "attention"}]
BUILDS = [build for build in zoo.BUILDS if build[0] in NAIVE]
# Each build with the default, every other one with one of the variants, and BERT with all.
CASES = [(*build, {}) for build in BUILDS] + [(*build, VARIANTS[1 + i % 3]) for i, build in enumerate(BUILDS[1::2])]
CASES += [("bert", "sdpa", options) for options in VARIANTS[1:] if ("bert", "sdpa", options) not in CASES]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "backend", "options"),
    [pytest.param(*case, marks=[pytest.mark.gpu] * (case[0] in ON_GPU)) for case in CASES],
    ids=str,
)
def test_with_q_1_losses_and_gradients_equal_the_naive_implementation(
    name: str, backend: str, options: dict[str, Any]
) -> None:
    eager = zoo.build(name, "eager", dtype=torch.float64)
    batch = zoo.batch_of(name)
    expected, drops = oracles.ad_drop(eager, batch, zoo.ZOO[name].task, 0.4, **options)
    expected.backward()
    target = "gold_label" if options.get("gold") else "pseudo_label"
    chosen = {key: value for key, value in options.items() if key != "gold"}
    method = ADDrop(p=0.4, q=1.0, target=target, **chosen, **ON)
    loss, found = step(zoo.build(name, backend, dtype=torch.float64), method, batch)
    assert sum(int(drop.sum()) for drop in drops) > 10
    assert float(loss) == pytest.approx(expected.item(), abs=1e-5)
    zoo.assert_same(found, zoo.gradients(eager), 1e-5)


@pytest.mark.parametrize(
    "method", [ADDrop(p=0.4, q=1.0, **ON), ADDrop(p=0.9, q=1.0, attribution="random", **ON)], ids=str
)
def test_weights_that_are_computed_for_dropout_on_a_cpu_hide_what_the_kernel_hides(method: ADDrop) -> None:
    found = [
        step(zoo.build("bert", dtype=torch.float64, attention_probs_dropout_prob=p), method, zoo.batch_of("bert"))
        for p in (0.0, 1e-12)
    ]
    assert float(found[0][0]) == pytest.approx(float(found[1][0]), abs=1e-9)
    zoo.assert_same(found[0][1], found[1][1], 1e-7)


def test_regression_equals_the_naive_implementation() -> None:
    batch = zoo.batch_of("bert") | {"labels": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)}
    eager = zoo.build("bert", "eager", dtype=torch.float64, num_labels=1)
    expected, _ = oracles.ad_drop(eager, batch, "regression", 0.4, direction="magnitude")
    expected.backward()
    model = zoo.build("bert", dtype=torch.float64, num_labels=1)
    loss, found = step(model, ADDrop(p=0.4, q=1.0, direction="magnitude", **ON), batch)
    assert float(loss) == pytest.approx(expected.item(), abs=1e-9)
    zoo.assert_same(found, zoo.gradients(eager), 1e-9)


@pytest.mark.parametrize(("labels", "direction"), [({"num_labels": 1}, "magnitude"), ({}, "high")])
def test_the_default_direction_follows_from_the_kind_of_prediction(labels: dict[str, int], direction: str) -> None:
    """From the first step on, before transformers has written the kind into the configuration."""
    batch = zoo.batch_of("bert")
    batch |= {"labels": batch["labels"].double()} if labels else {}
    losses = []
    for options in ({}, {"layers": "first", "direction": direction}, {"direction": "low"}):
        model = zoo.build("bert", dtype=torch.float64, **labels)
        losses.append(float(step(model, ADDrop(p=0.4, q=1.0, **options), batch)[0]))
    assert losses[0] == losses[1] != losses[2]


def test_the_attribution_pass_sees_the_dropout_of_the_pass_that_trains() -> None:
    """Positions that the model's own dropout sets to zero have the weight zero in both passes."""
    model, batch = zoo.build("bert", dropout=0.5, dtype=torch.float64), zoo.batch_of("bert", (8, 8))
    eager = zoo.build("bert", "eager", dropout=0.5, dtype=torch.float64)
    torch.manual_seed(7)
    weights = eager(**batch, output_attentions=True).attentions[0]
    region = oracles.candidates(weights, torch.ones_like(weights, dtype=torch.bool), 0.3)
    with regularize(model, ADDrop(p=0.3, q=1.0, attribution="attention", **ON)) as reg:
        torch.manual_seed(7)
        reg.loss(batch)
        share = reg.logs()["ad_drop/dropped/encoder.0"]
    assert share == pytest.approx(float(region.double().mean()))


@pytest.mark.parametrize("q", [1.0, 0.5])
def test_logged_shares_are_right_by_a_hand_count(q: float) -> None:
    batch = zoo.batch_of("bert", (8, 5, 3))
    eager = zoo.build("bert", "eager", dtype=torch.float64)
    _, drops = oracles.ad_drop(eager, batch, "class", 0.4)
    counts = {}
    for layer, drop in enumerate(drops):
        candidates = possible = 0
        for own, length in zip(drop, (8, 5, 3), strict=True):
            rows = length if layer == 0 else 1  # the last layer is read at the first token only
            candidates += int(own[:, :rows].sum())
            possible += 2 * rows * length
        counts[layer] = (candidates, possible)
    with regularize(zoo.build("bert", dtype=torch.float64), ADDrop(p=0.4, q=q, **ON)) as reg:
        steps = 1 if q == 1 else 10
        for _ in range(steps):
            reg.loss(batch)
            reg.step()
        logs = reg.logs()
    for layer, (candidates, possible) in counts.items():
        expected, deviation = q * candidates / possible, 4 * math.sqrt(q * (1 - q) * candidates / steps) / possible
        assert logs[f"ad_drop/dropped/encoder.{layer}"] == pytest.approx(expected, abs=deviation + 1e-12)
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    assert logs["ad_drop/dropped"] == pytest.approx(q * total[0] / total[1], abs=0.02 if q < 1 else 1e-12)
    assert logs["ad_drop/active"] == 1


def test_a_random_region_has_the_size_p() -> None:
    batch = zoo.batch_of("bert", (8, 5, 3), extra=4)
    with regularize(zoo.build("bert"), ADDrop(p=0.3, q=0.5, attribution="random", **ON)) as reg:
        for _ in range(20):
            reg.loss(batch)
            reg.step()
        logs = reg.logs()
    positions = 20 * 2 * 2 * (64 + 25 + 9)
    assert logs["ad_drop/dropped"] == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / positions))


def test_hidden_units_that_are_kept_make_up_for_those_dropped() -> None:
    model, batch, seen = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert"), list[Tensor]()
    read = model.bert.encoder.layer[0].attention.output.dense
    read.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(**batch)
    with regularize(model, ADDrop(p=0.5, q=0.5, units="hidden", attribution="random", **ON)) as reg:
        reg.loss(batch)
    plain, dropped = seen[0], seen[-1]
    kept = dropped != 0
    assert 0.5 < kept.float().mean() < 0.9
    scale = plain.shape[-1] / kept.sum(-1, keepdim=True).double()
    torch.testing.assert_close(dropped, plain * kept * scale, rtol=1e-13, atol=1e-13)


def test_the_scope_of_integrated_gradients_reaches_them() -> None:
    batch, losses = zoo.batch_of("bert"), []
    for scope in ("joint", "layerwise"):
        method = ADDrop(layers="all", attribution="integrated_gradient", scope=scope, p=0.3, q=1.0)
        with regularize(zoo.build("bert", dtype=torch.float64), method) as reg:
            losses.append(reg.loss(batch).item())
    assert losses[0] != losses[1]
