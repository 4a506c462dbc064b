"""Memory for long inputs: weights, attributions and masks of all layers never exist at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.plans import attached
from torch import Tensor

from attendrop import Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import AttentionCall
from attendrop.attribution.gradient import attention_attribution, gradient_attribution, integrated_gradient_attribution
from attendrop.randomness import candidates

LENGTH = 40
SIZES = {"num_hidden_layers": 4}
# Elements of the weights of one layer.
WEIGHTS = 2 * 2 * LENGTH * LENGTH


def long_batch() -> zoo.Batch:
    return zoo.batch_of("bert", (LENGTH, LENGTH - 3))


def prepared(**options: Any) -> tuple[ModelAdapter, zoo.Batch]:
    return attached(zoo.build("bert", **SIZES, **options), long_batch()), long_batch()


@contextmanager
def saved_for_backward() -> Iterator[list[int]]:
    """Collect the numbers of elements of the tensors that graphs save within the block."""
    found: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def test_the_graph_of_an_attribution_holds_no_weights() -> None:
    adapter, batch = prepared()
    with saved_for_backward() as saved:
        gradient_attribution(adapter, batch, adapter.attention_layers, "pseudo_label")
    assert max(saved) < WEIGHTS


@pytest.mark.parametrize("attribute", [gradient_attribution, integrated_gradient_attribution, attention_attribution])
def test_attributions_are_handed_over_one_layer_at_a_time(attribute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_AT_ONCE_ON_CPU", WEIGHTS)
    adapter, batch = prepared()
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def keep(call: AttentionCall, attribution: Tensor) -> list[float]:
        nonlocal most
        most = max(most, sum(each() is not None for each in alive))
        alive.append(weakref.ref(attribution))
        return [float(attribution.sum())]

    target = [] if attribute is attention_attribution else ["pseudo_label"]
    found = attribute(adapter, batch, adapter.attention_layers, *target, keep=keep)
    gc.collect()
    whole = attribute(adapter, batch, adapter.attention_layers, *target)
    assert list(found) == list(whole) == [f"encoder.{number}" for number in range(4)]
    assert found == pytest.approx({key: float(value.sum()) for key, value in whole.items()}, abs=1e-6)
    assert most <= 1


def test_the_graph_of_the_training_pass_holds_masks_in_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_AT_ONCE_ON_CPU", WEIGHTS)
    model = zoo.build("bert", **SIZES)
    with regularize(model, Vanilla(p=0.3)) as reg:
        reg.loss(long_batch()).backward()  # looks for the layers
        with saved_for_backward() as saved:
            loss = reg.loss(long_batch())
        assert max(saved) < WEIGHTS
        loss.backward()
