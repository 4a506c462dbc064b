"""Models and devices: how many tokens there are positions for, and which devices are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.table import TABLE, given
from torch import Tensor, nn

from attendrop import AttendropError, prune, regularize
from attendrop.support.models import compute_device, position_limit


class Packed(nn.Linear):
    """Two numbers of four bits in each byte, as a frozen parameter: what bitsandbytes does."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = linear.weight.detach().abs().max() / 7
        numbers = (linear.weight.detach() / self.scale).round().flatten().to(torch.uint8) + 8
        self.weight = nn.Parameter((numbers[0::2] % 16 * 16 + numbers[1::2] % 16)[:, None], requires_grad=False)
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, unpacked(self.weight, self), self.bias)


class Opaque(nn.Module):
    """No linear layer by its class, and without a parameter ``weight``: what GPTQ does."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = Packed(linear)
        self.in_features, self.out_features, self.scale = linear.in_features, linear.out_features, packed.scale
        self.qweight, self.bias = nn.Buffer(packed.weight.detach()), linear.bias

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, unpacked(self.qweight, self), self.bias)


def unpacked(packed: Tensor, module: Any) -> Tensor:
    numbers = torch.stack([packed // 16, packed % 16], -1).flatten().float() - 8
    return (numbers * module.scale).view(module.out_features, module.in_features)


def quantized(name: str, kind: type[nn.Module]) -> Any:
    """Make a model of the zoo with quantized linear layers in its encoder, of which only the head trains."""
    model = zoo.build(name)
    model.requires_grad_(False)
    for parent in list(model.base_model.encoder.modules()):
        for child, linear in list(parent.named_children()):
            if type(linear) is nn.Linear:
                setattr(parent, child, kind(linear))
    model.classifier.requires_grad_(True)
    return model


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 40), ("roberta", 39), ("bart", 40), ("vit", None), ("llama", None)]
)
def test_rows_that_no_token_takes_do_not_count(name: str, limit: int | None) -> None:
    assert position_limit(zoo.build(name)) == limit


@pytest.mark.parametrize(
    ("asked", "there", "used"), [("auto", "cuda", "cuda"), ("cpu", "cuda", "cpu"), ("auto", "mps", "cpu")]
)
def test_the_accelerator_is_used_but_for_apples(
    monkeypatch: pytest.MonkeyPatch, asked: str, there: str, used: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(there))
    assert compute_device(asked).type == used


# Quantized models: methods act on them, or say that they cannot -------------------------------------------------------


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
    "hiddencut": "has no feed-forward",
    "hiddencut random": "has no feed-forward",
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
