"""What a GPU takes, run on the CPU: masks of many layers at once, the same bit for bit, with few operations."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import ADDrop, AttendOut, Compose, FineTune, Method, Mixout, Scheduler, Vanilla, regularize
from attendrop.attention.computation import AttentionComputation
from attendrop.randomness.device_path import few_kernels
from attendrop_methods import DropBlock

METHODS: dict[str, tuple[Any, ...]] = {
    "recorded": (ADDrop(layers="all", attribution="recorded", p=0.3, q=0.5), 3),
    "recorded, rows cut to 2 tokens": (ADDrop(layers="all", attribution="recorded", p=0.9, q=1.0), 2, 2),
    "recorded and random": (Compose(ADDrop(layers="all", attribution="recorded"), Vanilla(p=0.5)), 3),
    "separate pass": (ADDrop(layers="all", p=0.3, q=0.5), 1),
    "low": (ADDrop(layers="all", p=0.3, q=0.5, direction="low"), 1),
    "integrated": (ADDrop(layers="all", attribution="integrated_gradient", p=0.3, q=0.5), 1),
    "random": (ADDrop(layers="all", attribution="random", p=0.9, q=0.9), 1),
    "by layer": (Scheduler(probabilities=((0.9, 0.1), (0.2, 0.5))), 1),
    "blocks": (DropBlock(p=0.4), 1),
    "attendout": (AttendOut(), 3),
    "attendout, heads of one layer": (AttendOut(granularity="head", generator_heads=2, layers=[1]), 2),
}


def run(
    monkeypatch: pytest.MonkeyPatch, family: str, method: Method, steps: int, cut: int = 0
) -> tuple[list[Tensor], list[Any]]:
    """The masks of all layers in some steps, then losses, gradients and dropped fractions; the last step may be cut."""
    masks: list[Tensor] = []
    attend = AttentionComputation.attend

    def attending(self: AttentionComputation, edit: Any) -> Any:
        if edit.drop is not None and torch.is_grad_enabled():
            masks.append(edit.drop.expand(self.shape).clone())
            if edit.in_part:
                valid = torch.ones(1, 1, 1, self.shape[3], dtype=torch.bool) if self.valid is None else self.valid
                assert ((valid & ~edit.drop).any(-1) | ~valid.any(-1)).all()
        return attend(self, edit)

    monkeypatch.setattr(AttentionComputation, "attend", attending)
    model, batch = zoo.build(family, dtype=torch.float64), zoo.batch_of(family, (9, 5, 12))
    found: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with regularize(model, method, total_steps=8, optimizer=optimizer, reward_data=[batch]) as reg:
        reg.set_epoch(1)
        for step in range(steps):
            if cut and step == steps - 1:
                batch = {key: value[:, :cut] if value.ndim == 2 else value for key, value in batch.items()}
            loss = reg.loss(batch, rows=range(3) if method.needs_rows else None)
            loss.backward()
            reg.step()
            found += [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
            model.zero_grad()
        shares = {name: value for name, value in reg.logs().items() if "dropped" in name}
    return masks, [*found, shares]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("name", METHODS)
def test_masks_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, name: str, family: str) -> None:
    expected, numbers = run(monkeypatch, family, *METHODS[name])
    monkeypatch.undo()
    with few_kernels():
        masks, found = run(monkeypatch, family, *METHODS[name])
    assert masks and len(masks) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(masks, expected, strict=True))
    assert numbers.pop() == found.pop()
    for one, other in zip(numbers, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_weights_are_mixed_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected = run(monkeypatch, "bert", Mixout(p=0.4), 3)
    with few_kernels():
        _, found = run(monkeypatch, "bert", Mixout(p=0.4), 3)
    for one, other in zip(expected[:-1], found[:-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("second", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "second model"])
def test_counts_of_operations_are_pinned(second: bool) -> None:
    """At most two operations a layer more than the stock model, and none by plain fine-tuning."""
    folder = Path(__file__).parents[2] / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("launches", folder / "launches.py")
        assert spec is not None and spec.loader is not None
        launches = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(launches)
    finally:
        sys.path.remove(str(folder))
    chosen = {
        "finetune": FineTune(),
        "recorded": launches.METHODS["AD-DROP, recorded"],
        "random": Vanilla(),
        "mixout": Mixout(),
    }
    found = launches.table({"attendout": AttendOut()} if second else chosen)
    plain = found["plain"]
    if second:
        assert found["attendout"]["all, 12 layers"] <= 2.3 * plain["all, 12 layers"]
        return
    assert found["finetune"] == plain

    def more(name: str, part: str) -> float:
        return sum(found[name][f"{phase}, a {part}"] - plain[f"{phase}, a {part}"] for phase in ("forward", "backward"))

    assert more("recorded", "layer") <= 0 and more("recorded", "step") <= 55
    assert more("random", "layer") <= 0 and more("random", "step") <= 48
    assert found["mixout"]["all, 12 layers"] <= 1.2 * plain["all, 12 layers"]
    assert found["recorded"]["reads"] == plain["reads"] + 1
