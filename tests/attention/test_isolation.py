"""Extra passes leave no trace: random states, buffers, modes."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.table import TABLE, given
from torch import nn

from attendrop import Method, regularize
from attendrop.attention.hooks import forked_rng

METHODS = {name: method for name, method in TABLE.items() if name != "finetune"}


def noisy_model() -> Any:
    """A model that draws from numpy's random state, as SpecAugment does, and from Python's, and counts its passes."""
    np.random.seed(3)
    random.seed(3)
    model = zoo.build("bert", dropout=0.1)
    model.classifier = nn.Sequential(nn.BatchNorm1d(16), model.classifier)

    def draw(*_: Any) -> None:
        np.random.rand()
        random.random()

    model.bert.pooler.register_forward_hook(draw)
    return model


def states() -> list[Any]:
    _, keys, position, *_ = np.random.get_state()
    return [keys.tolist(), position, random.getstate()]  # type: ignore[union-attr]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_step_leaves_the_traces_of_one_pass(method: Method) -> None:
    batch = zoo.batch_of("bert")
    noisy_model()(**batch)
    expected = states()
    model = noisy_model()
    with regularize(model, method, **given(model, batch)) as reg:
        reg.loss(batch)
        assert states() == expected
        assert model.classifier[0].num_batches_tracked == 1
        assert all(module.training for module in model.modules())


class Grown(nn.Module):
    """Replaces a buffer by a larger one, as rotary embeddings do, and shares another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("shared", torch.zeros(2))
        self.inner = nn.Module()
        self.inner.register_buffer("shared", self.shared)
        self.register_buffer("table", torch.zeros(2))

    def forward(self) -> None:
        self.shared += 1
        assert torch.equal(self.inner.shared, self.shared)  # type: ignore[arg-type]
        self.register_buffer("table", torch.zeros(4))


def test_buffers_that_are_shared_or_replaced() -> None:
    model = Grown()
    shared = model.shared
    with forked_rng(model):
        model()
    assert model.shared is shared
    assert model.inner.shared is shared
    assert not shared.any()
    assert len(model.table) == 4  # type: ignore[arg-type]
