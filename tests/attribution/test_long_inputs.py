"""Memory for long inputs: weights, attributions and masks of all layers never exist at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from helpers import zoo
from helpers.plans import attached
from torch import Tensor

from attendrop import Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import gradient_attribution

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


def test_the_graph_of_the_training_pass_holds_masks_in_bits() -> None:
    model = zoo.build("bert", **SIZES)
    with regularize(model, Vanilla(p=0.3)) as reg:
        reg.loss(long_batch()).backward()  # looks for the layers
        with saved_for_backward() as saved:
            loss = reg.loss(long_batch())
        assert max(saved) < WEIGHTS
        loss.backward()
