"""Stand-ins for the linear layers of quantized models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from helpers import zoo


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
