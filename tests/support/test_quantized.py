"""Models whose linear layers are quantized: methods act on them, or say that they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.quantized import Opaque, Packed, quantized
from helpers.table import TABLE, given
from torch import nn

from attendrop import AttendropError, prune, regularize

# Rows that read or change single weights: what they say of packed ones, and of layers that are not linear by class.
PACKED = {
    "mixout": "no trainable linear layers",
    "mixout elements": "no trainable linear layers",
    "child-tuning driven": "no trainable layers",
    "dropconnect": "A weight of the model is quantized",
    "layer-reinit": "is frozen",
    "supert": "A weight of the model is quantized",
    "concrete-dropout": "A weight of the model is quantized",
    "learnable-bernoulli": "A weight of the model is quantized",
}
OPAQUE = PACKED | {
    "dropconnect": "No attention projections found",
    "supert": "attention without an output projection",
    "concrete-dropout": "value projection .* cannot be found",
    "learnable-bernoulli": "value projection .* cannot be found",
    "unidrop": "has no feed-forward",
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("kind", "refused"), [(Packed, PACKED), (Opaque, OPAQUE)])
@pytest.mark.parametrize("row", TABLE)
def test_methods_train_quantized_models_or_refuse_them(
    row: str, kind: type[nn.Module], refused: dict[str, str]
) -> None:
    model, batch = quantized("bert", kind), zoo.batch_of("bert")
    frozen = [p for p in model.parameters() if not p.requires_grad]
    before = [p.clone() for p in frozen]
    needed: dict[str, Any] = given(model, batch)
    needed["optimizer"] = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def train() -> None:
        with regularize(model, TABLE[row], **needed) as reg:
            for _ in range(3):
                loss = reg.loss(batch)
                loss.backward()
                needed["optimizer"].step()
                reg.step()
                assert loss.isfinite()

    if row in refused:
        with pytest.raises(AttendropError, match=refused[row]):
            train()
    else:
        train()
    assert all(torch.equal(*pair) for pair in zip(frozen, before, strict=True))


def test_packed_weights_are_not_pruned() -> None:
    with pytest.raises(AttendropError, match="is quantized"):
        prune(quantized("bert", Packed), [1])
