"""Observation of attention weights or head outputs in a pass, or of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attendrop.attention.hooks import forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, DropoutDraws, Plan, any_last
from attendrop.attribution.finite_gradients import gradients_of, upcast

Kept = TypeVar("Kept")
# Called with a layer's call and its attribution as soon as this is known; returns what is kept of it.
Keep = Callable[[AttentionCall, Tensor], Kept]
# Called with a layer's call, and its units or their gradient.
Receive = Callable[[AttentionCall, Tensor], None]


def keep_all(call: AttentionCall, attribution: Tensor) -> Tensor:
    """Keep an attribution as it is: a :data:`Keep`."""
    return attribution


class ObservePlan(Plan):
    """Base class of plans that pass units of some layers, or their gradients, to a function, ``receive``.

    Args:
        attention_layers: The layers to observe.
        receive: Called once for each layer that runs.
        units: ``"attention"``: the weights ``A``, ``(batch, heads, query, key)``; ``"hidden"``: outputs of the heads,
            ``(batch, query, heads, dim)``.
        draws: Draws of dropout that another pass shares.
    """

    def __init__(
        self,
        attention_layers: Sequence[AttentionLayer],
        receive: Receive,
        units: str = "attention",
        draws: DropoutDraws | None = None,
    ) -> None:
        super().__init__()
        self.draws = draws
        self.layer_keys = {layer.key for layer in attention_layers}
        self.receive = receive
        self.units = units


class RecordPlan(ObservePlan):
    """Hands over the units of a pass without gradients, one layer after the other."""

    def edit(self, call: AttentionCall) -> AttentionEdit:
        seen = partial(self._see, call)
        if self.units == "attention":
            return AttentionEdit(weights=seen, draws=self.draws)
        return AttentionEdit(output=seen, draws=self.draws)

    def _see(self, call: AttentionCall, units: Tensor) -> Tensor:
        self.receive(call, units)
        return units


class GradientPlan(ObservePlan):
    """Passes on the gradients of the units of a pass, one layer after the other.

    The gradient with respect to the weights follows from that with respect to the output of the heads, ``O = A V``:
    ``dF/dA = dF/dO V^T``. So layers run fused kernels where they would otherwise, and only one gradient of the size of
    ``A`` exists at a time.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # For each layer of a pass: its call, the outputs of its heads, as a node of the graph, and its values; None
        # once differentiated.
        self._seen: dict[str, tuple[AttentionCall, Tensor, Tensor]] | None = {}

    def edit(self, call: AttentionCall) -> AttentionEdit:
        values: list[Tensor] = []

        def see(output: Tensor) -> Tensor:
            return self._see(call, output, values.pop())

        return AttentionEdit(values=values.append, output=see, draws=self.draws)

    def differentiate(self, total: Tensor, factor: float = 1.0) -> None:
        """Compute the gradients of ``total``, multiplied by ``factor`` on the way; zero where it does not depend on A.

        The graph of the pass is freed.
        """
        assert self._seen is not None
        seen, self._seen = self._seen, None
        gradients = gradients_of(total * factor, list(seen), [output for _, output, _ in seen.values()])
        for key in list(seen):
            (call, _, value), gradient = seen.pop(key), upcast(gradients.pop(key)) / factor
            self.receive(call, gradient if self.units == "hidden" else by_weights(call, gradient, value))

    def _see(self, call: AttentionCall, output: Tensor, value: Tensor) -> Tensor:
        node = output if output.requires_grad else output.detach().requires_grad_()
        if self._seen is not None:  # activation checkpointing runs layers again
            self._seen[call.layer.key] = call, node, value.detach()
        # Some models run some layers without gradients: nothing depends on their units.
        return node if torch.is_grad_enabled() else output


def training_gradient_edit(call: AttentionCall, receive: Callable[[Tensor, Tensor], None]) -> AttentionEdit:
    """Return the edit that passes on the gradient of the heads' outputs of a layer in a training pass.

    The gradient with respect to the output of the heads, ``dL/dO``, exists in its backward pass anyway; the edit
    changes nothing. Under activation checkpointing a layer runs twice: the gradient is that of the first run, and the
    values those of the second. ``receive`` is called with ``dL/dO`` in float32 or better, ``(batch, query, heads,
    dim)``, and the values, ``(batch, heads, key, dim)``, as soon as they are known; several times if a method
    differentiates the pass earlier, the last time for the loss.
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
            receive(upcast(gradient), values[0])

    return AttentionEdit(values=see_values, output=see_output)


def by_weights(call: AttentionCall, gradient: Tensor, value: Tensor) -> Tensor:
    """Compute ``dF/dA = dF/dO V^T``, zero in rows without any valid key.

    The gradient ``dF/dO`` is ``(batch, query, heads, dim)``, in float32 or better, ``V`` ``(batch, heads, key, dim)``.
    """
    if call.valid is not None:  # zeros in dF/dO, which is smaller than dF/dA
        gradient = torch.where(any_last(call.valid).transpose(1, 2), gradient, 0)
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
