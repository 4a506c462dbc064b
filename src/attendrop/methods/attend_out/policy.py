"""Policy: the generator, its layers and its drop probabilities."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.isolation import forked_rng
from attendrop.attention.layers import select_self_attention
from attendrop.errors import AttendropError
from attendrop.methods.attend_out.first_batch import FirstBatch
from attendrop.methods.attend_out.generator import Draft, Generator
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.core.context import TrainingContext


class Policy:
    """The generator and the layers in which it drops.

    Args:
        method: The options.
        training: The model to drop in.
        first: The first batch, whose inputs are used to trace the embeddings.

    Attributes:
        attention_layers: The layers to drop in.
        selected_keys: Keys of these layers.
        layers: All self-attention layers up to the last of these, by key; the generator is applied for each.
    """

    def __init__(self, method: AttendOutOptions, training: TrainingContext, first: FirstBatch) -> None:
        self.method = method
        self.attention_layers = method.selected_layers(first.attention_layers)
        self.selected_keys = {layer.key for layer in self.attention_layers}
        every = select_self_attention(first.attention_layers, "all")
        self.layers = {
            layer.key: layer for layer in every if layer.index <= max(chosen.index for chosen in self.attention_layers)
        }
        heads = _heads(training.model)
        own_heads = heads if method.granularity == "head" and method.generator_heads == 1 else method.generator_heads
        if heads % own_heads:
            raise AttendropError(
                f"generator_heads={own_heads} does not divide the model's {heads} heads; use a divisor."
            )
        with forked_rng(training.model):
            self.generator = Generator(
                training.model,
                every[0].name,
                first.inputs,
                heads=own_heads,
                feed_forward=method.generator_feed_forward,
                init_drop_prob=method.init_drop_prob,
                learn_bias=method.learn_bias,
                seed=first.seed,
            )
        self.autocast: torch.dtype | None = None
        self.by_score = method.granularity == "score"

    def notice_autocast(self, device: torch.device) -> None:
        """Record the autocast precision that the model currently runs in."""
        on = torch.is_autocast_enabled(device.type)
        self.autocast = torch.get_autocast_dtype(device.type) if on else None

    def precision(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the generator's autocast context, the same for sampling and updates; never float16 (underflow)."""
        half = self.autocast == torch.bfloat16
        return torch.autocast(device.type, self.autocast if half else None, enabled=half)

    def logits(self, draft: Draft, layer: int, valid: Tensor | None, units: Tensor | None) -> Tensor:
        """Compute the logits of dropping each unit, ``(batch, heads, n, n)``; dimensions a unit spans have size 1."""
        found = draft.logits(layer, valid)
        match self.method.granularity:
            case "score":
                return found
            case "head":
                return _mean(found, units, (2, 3))
            case _:
                return _mean(found, units, (1, 2, 3))


def _heads(model: torch.nn.Module) -> int:
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(text.num_attention_heads)


def _mean(values: Tensor, units: Tensor | None, dims: tuple[int, ...]) -> Tensor:
    if units is None:
        return values.mean(dims, keepdim=True)
    units = units.expand(values.shape)
    return (values * units).sum(dims, keepdim=True) / units.sum(dims, keepdim=True).clamp(min=1)
