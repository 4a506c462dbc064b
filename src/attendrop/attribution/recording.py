"""Recording of attention weights or head outputs as nodes of a pass's graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.isolation import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan


class RecordPlan(Plan):
    """Records the units of some attention layers, as nodes of the graph of the pass.

    Args:
        attention_layers: The layers to record.
        units: ``"attention"``: the weights ``A``; ``"hidden"``: outputs of the heads, ``(batch, query, heads, dim)``.
    """

    acts_on = frozenset({"attention"})

    def __init__(self, attention_layers: Sequence[AttentionLayer], units: str = "attention") -> None:
        super().__init__()
        self._requested = [layer.key for layer in attention_layers]
        self.units = units
        self.recorded: dict[str, Tensor] = {}

    @property
    def keys(self) -> list[str]:
        """Keys of the layers that ran, in the order of ``attention_layers``: a model may skip layers."""
        return [key for key in self._requested if key in self.recorded]

    def wants(self, layer: AttentionLayer) -> bool:
        return layer.key in self._requested

    def edit(self, call: AttentionCall) -> AttentionEdit:
        keep = partial(self._keep, call.layer.key)
        return AttentionEdit(weights=keep) if self.units == "attention" else AttentionEdit(output=keep)

    def _keep(self, key: str, units: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not units.requires_grad:
            units = units.detach().requires_grad_()
        self.recorded.setdefault(key, units)
        return units

    def in_order(self) -> list[Tensor]:
        """Return the recorded units in the order of :attr:`keys`; where gradients are on, they require them.

        Some models run some layers without gradients: nothing depends on their units.
        """
        found = [self.recorded[key] for key in self.keys]
        if not torch.is_grad_enabled():
            return found
        return [units if units.requires_grad else units.detach().requires_grad_() for units in found]


@contextmanager
def isolated_pass(model: nn.Module) -> Iterator[None]:
    """Isolate extra passes within the block: parameters take no part in the graph, random states are restored.

    Without parameters the graph begins at the lowest attributed layer and keeps fewer activations.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with forked_rng(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
