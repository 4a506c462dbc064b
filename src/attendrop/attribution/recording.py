"""Observation of attention weights or head outputs in a pass, or of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from attendrop.attention.hooks import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, DropoutDraws, Plan
from attendrop.attribution.finite_gradients import gradients_of, upcast
from attendrop.randomness.candidates import any_last, at_once

Kept = TypeVar("Kept")
# Called with the call of a layer, or of several, and its attribution as soon as this is known; returns what is kept of
# each of the layers.
Keep = Callable[[AttentionCall, Tensor], Sequence[Kept]]
# Called with the call of a layer, or of several, and its units or their gradient.
Receive = Callable[[AttentionCall, Tensor], None]


class SeenLayer(NamedTuple):
    """A layer of a pass: its call, the outputs of its heads or their gradient, and its values."""

    call: AttentionCall
    output: Tensor
    value: Tensor


def stacks(seen: Iterable[SeenLayer]) -> list[list[SeenLayer]]:
    """Group layers that are called alike: of small ones as many as are handled together, else each alone."""
    found: list[list[SeenLayer]] = []
    latest: dict[Any, list[SeenLayer]] = {}
    for each in seen:
        call = each.call
        alike = call.layer.kind, id(call.valid), call.shape, each.output.shape
        group = latest.get(alike)
        if group is None or (len(group) + 1) * math.prod(call.shape) > at_once(call.device):
            found.append(group := [])
            latest[alike] = group
        group.append(each)
    return found


def stacked(group: Sequence[SeenLayer]) -> SeenLayer:
    """Make one of the layers of a group."""
    if len(group) == 1:
        return group[0]
    call = group[0].call.stacked([each.call.layer for each in group])
    by_head = torch.cat([each.output.transpose(1, 2) for each in group])  # as :func:`by_weights` multiplies it
    return SeenLayer(call, by_head.transpose(1, 2), torch.cat([each.value for each in group]))


@dataclass(eq=False)
class RecordPlan(Plan):
    """Hands over the units of a pass without gradients, one layer after the other.

    Attributes:
        attention_layers: The layers to observe.
        receive: Called once for each layer that runs.
        units: ``"attention"``: the weights ``A``, ``(batch, heads, query, key)``; ``"hidden"``: outputs of the heads,
            ``(batch, query, heads, dim)``.
        draws: Draws of dropout that another pass shares.
    """

    attention_layers: Sequence[AttentionLayer]
    receive: Receive
    units: str = "attention"
    draws: DropoutDraws | None = None

    def __post_init__(self) -> None:
        self.layer_keys = {layer.key for layer in self.attention_layers}

    def edit(self, call: AttentionCall) -> AttentionEdit:
        def see(units: Tensor) -> Tensor:
            self.receive(call, units)
            return units

        if self.units == "attention":
            return AttentionEdit(weights=see, draws=self.draws)
        return AttentionEdit(output=see, draws=self.draws)


@dataclass(eq=False)
class GradientPlan(RecordPlan):
    """Hands over the gradients of the units of a pass, one layer after the other.

    The gradient with respect to the weights follows from that with respect to the output of the heads, ``O = A V``:
    ``dF/dA = dF/dO V^T``. So layers run fused kernels where they would otherwise, and only one gradient of the size of
    ``A`` exists at a time; those of several small layers, in one tensor.
    """

    # The layers of a pass, with the outputs of their heads as nodes of the graph; None once differentiated.
    _seen: dict[str, SeenLayer] | None = field(default_factory=dict)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        values: list[Tensor] = []

        def see(output: Tensor) -> Tensor:
            node, value = output if output.requires_grad else output.detach().requires_grad_(), values.pop()
            if self._seen is not None:  # activation checkpointing runs layers again
                self._seen[call.layer.key] = SeenLayer(call, node, value.detach())
            # Some models run some layers without gradients: nothing depends on their units.
            return node if torch.is_grad_enabled() else output

        return AttentionEdit(values=values.append, output=see, draws=self.draws)

    def differentiate(self, total: Tensor, factor: float = 1.0) -> None:
        """Compute the gradients of ``total``, multiplied by ``factor`` on the way; zero where it does not depend on A.

        The graph of the pass is freed.
        """
        assert self._seen is not None
        seen, self._seen = self._seen, None
        gradients = gradients_of(total * factor, list(seen), [each.output for each in seen.values()])
        groups = stacks(each._replace(output=gradients[key]) for key, each in seen.items())
        seen, gradients = {}, {}
        for group in groups:
            call, gradient, value = stacked(group)
            group.clear()  # frees the gradients
            gradient = upcast(gradient) / factor
            if self.units == "attention":
                if call.valid is not None:  # zero in rows without any valid key; dF/dO is smaller than dF/dA
                    gradient = torch.where(any_last(call.valid).transpose(1, 2), gradient, 0)
                gradient = by_weights(gradient, value)
            self.receive(call, gradient)


def training_gradient_edit(call: AttentionCall, receive: Callable[[Tensor, Tensor], None]) -> AttentionEdit:
    """Return the edit that passes on the gradient of the heads' outputs of a layer in a training pass.

    The gradient with respect to the output of the heads, ``dL/dO``, exists in its backward pass anyway; the edit
    changes nothing. Under activation checkpointing a layer runs twice: the gradient is that of the first run, and the
    values those of the second. ``receive`` is called with ``dL/dO``, ``(batch, query, heads, dim)``, and the values,
    ``(batch, heads, key, dim)``, as soon as they are known; several times if a method differentiates the pass earlier,
    the last time for the loss.
    """
    values: list[Tensor] = []

    def see_values(value: Tensor) -> None:
        values[:] = [value.detach()]

    def see_output(output: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        node = output if output.requires_grad else output.detach().requires_grad_()
        node.register_hook(hand_over)  # type: ignore[no-untyped-call]
        return node

    def hand_over(gradient: Tensor) -> None:
        with torch.no_grad():
            receive(gradient, values[0])

    return AttentionEdit(values=see_values, output=see_output)


def by_weights(gradient: Tensor, value: Tensor) -> Tensor:
    """Compute ``dF/dA = dF/dO V^T``.

    The gradient ``dF/dO`` is ``(batch, query, heads, dim)``, in float32 or better, ``V`` ``(batch, heads, key, dim)``.
    """
    with torch.autocast(gradient.device.type, enabled=False), torch.no_grad():
        return gradient.transpose(1, 2) @ upcast(value).transpose(-1, -2)


@contextmanager
def isolated_pass(model: nn.Module) -> Iterator[None]:
    """Isolate extra passes within the block: parameters take no part in the graph, random states are restored.

    Without parameters, the graph begins at the lowest attributed layer and keeps fewer activations.
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
