"""The first batch of an AttendOut run, from which its networks are created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attendrop.attention.layers import AttentionLayer
from attendrop.batches import Batch, to_device
from attendrop.methods.core.context import StepContext


@dataclass(frozen=True)
class FirstBatch:
    """What the networks are created from; checkpoints hold it, since a resumed run may take no further step.

    Attributes:
        attention_layers: All attention layers of the model.
        inputs: Inputs of the model, on which its embeddings are traced.
        seed: Seed of the run.
    """

    attention_layers: Sequence[AttentionLayer]
    inputs: Batch
    seed: int

    @classmethod
    def of(cls, context: StepContext) -> FirstBatch:
        """Read what is needed of the first micro-batch."""
        return cls(context.adapter.attention_layers, dict(context.inputs), context.key.seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        return vars(self) | {"attention_layers": [vars(layer) for layer in self.attention_layers]}

    @classmethod
    def load(cls, state: Mapping[str, Any], device: torch.device) -> FirstBatch:
        """Restore a :meth:`state_dict` on a device."""
        layers = [AttentionLayer(**layer) for layer in state["attention_layers"]]
        return cls(layers, to_device(state["inputs"], device), state["seed"])
