"""Plans that several methods share: random masks of attention, heads and hidden units, and changed word embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attendrop.attention.edits import AttentionCall, AttentionEdit, real_tokens
from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext
from attendrop.randomness.candidates import at_once, kept
from attendrop.randomness.keyed_random import SampleKey, lanes_of_layers, sample_mask, uniform


class RandomMaskPlan(Plan):
    """Plan that drops at random in the selected layers of a method, and reports the fraction.

    The edit of each layer is made when the layer first runs, and reused when activation checkpointing runs it again.

    Args:
        method: The method.
        context: The micro-batch.
        make: Function of this plan and a layer's call that makes the layer's edit, usually by :meth:`drop_scores`,
            :meth:`without_heads` or :meth:`without_units`. A subclass overrides the method :meth:`make` in its place.
        keys: Keys of the layers to act on; None for the layers that the method selects.
    """

    def __init__(
        self,
        method: Method,
        context: StepContext,
        make: Callable[[RandomMaskPlan, AttentionCall], AttentionEdit] | None = None,
        keys: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.context = context
        if keys is None:
            keys = {layer.key for layer in method.selected_layers(context.adapter.attention_layers)}
        self.layer_keys = keys
        self._make = make
        self._edits: dict[str, tuple[AttentionEdit, Callable[[], Tensor] | None]] = {}
        self._origins: dict[tuple[str, int], tuple[Tensor | None, Tensor]] = {}
        self._lanes: dict[str, tuple[Tensor, Tensor]] = {}  # of layers that have not run yet, with their origins

    def edit(self, call: AttentionCall) -> AttentionEdit:
        key = call.layer.key
        if key not in self._edits:
            edit = self.make(call)
            # The masks of all layers stay in memory until the backward pass.
            self._edits[key] = replace(edit, drop=None), None if edit.drop is None else kept(edit.drop)
            return edit
        edit, drop = self._edits[key]
        return edit if drop is None else replace(edit, drop=drop())

    def make(self, call: AttentionCall) -> AttentionEdit:
        """Make the edit of a layer."""
        assert self._make is not None
        return self._make(self, call)

    # Samples, which depend on the seed, the step and the sequence only.

    def origins(self, call: AttentionCall) -> Tensor:
        """Return ``call.origins()``, cached by kind and mask, which layers usually share."""
        key = call.layer.kind, id(call.valid)
        if key not in self._origins or len(self._origins[key][1]) != call.shape[0]:
            self._origins[key] = call.valid, call.origins()  # with the mask, the number stays its own
        return self._origins[key][1]

    def sample(self, p: float | Tensor, call: AttentionCall) -> Tensor:
        """Sample each position of each head with probability ``p``, ``(batch, heads, query, key)``."""
        key, origins = call.layer.key, self.origins(call)
        if key not in self._lanes and at_once(call.device):
            of_kind = [layer for layer in self.context.adapter.attention_layers if layer.kind == call.layer.kind]
            names = [layer.key for layer in of_kind if self.wants(layer) and layer.key not in self._edits]
            at_a_time = at_once(call.device) // math.prod(call.shape)
            if key in names[:at_a_time]:
                lanes = lanes_of_layers(self.context.key, names[:at_a_time], call.shape, origins)
                self._lanes |= {name: (own, origins) for name, own in lanes.items()}
        own, of = self._lanes.pop(key, (None, None))
        own = own if own is not None and of is origins and own.shape == call.shape else None
        return sample_mask(p, self.context.key, key, call.shape, origins, call.device, own)

    def uniform(self, call: AttentionCall) -> Tensor:
        """Sample a number from (0, 1) for each position of each head, ``(batch, heads, query, key)``."""
        return uniform(self.context.key, call.layer.key, call.shape, self.origins(call), call.device)

    def uniform_heads(self, call: AttentionCall) -> Tensor:
        """Sample a number from (0, 1) for each head of each sequence, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        origins = torch.zeros(batch, 2, dtype=torch.long, device=call.device)
        return uniform(self.context.key, call.layer.key, (batch, heads, 1, 1), origins, call.device)

    def sample_hidden(self, p: float, call: AttentionCall, units: int) -> Tensor:
        """Sample each hidden unit of each query with probability ``p``, ``(batch, 1, query, units)``."""
        origins = self.origins(call) * torch.tensor([1, 0], device=call.device)  # unit indices have no padding offset
        shape = (call.shape[0], 1, call.shape[2], units)
        return sample_mask(p, self.context.key, call.layer.key, shape, origins, call.device)

    # Edits, which report the dropped fraction.

    def drop_scores(self, call: AttentionCall, drop: Tensor, rows: Tensor | None = None) -> AttentionEdit:
        """Drop scores at valid keys where ``drop``, broadcastable to ``call.shape``; ``rows`` as in :meth:`report`."""
        return AttentionEdit(drop=self.report(call, drop, rows))

    def without_heads(self, call: AttentionCall, drop: Tensor, scale: float | Tensor = 1.0) -> AttentionEdit:
        """Drop whole heads, ``(batch, heads, 1, 1)``, and multiply the others by ``scale``, broadcastable to these."""
        self.context.report(call.layer.key, drop.sum(), torch.full((), drop.numel(), device=drop.device))
        factor = (~drop * scale).transpose(1, 2)
        return AttentionEdit(output=lambda output: output * factor.to(output.dtype))

    def without_units(
        self,
        call: AttentionCall,
        sample: Callable[[int], Tensor],
        act: Callable[[Tensor, Tensor], Tensor],
        rows: Tensor | None = None,
    ) -> AttentionEdit:
        """Drop hidden units of the heads' outputs, except for padding.

        Args:
            call: The layer.
            sample: Called once with the number of units per token; returns the mask of dropped units, ``(batch, 1,
                query, units)``.
            act: Returns the replacement of the hidden units, given them and the mask, ``(batch, query, heads, dim)``.
            rows: See :meth:`report`.
        """
        sampled: list[Tensor] = []

        def output(hidden: Tensor) -> Tensor:
            if not sampled:
                drop, valid = sample(hidden.shape[2] * hidden.shape[3]), call.valid_queries()
                sampled.append(drop if valid is None else drop & valid)
                self.report(call, sampled[0], rows, units=True)
            return act(hidden, sampled[0].view(hidden.shape))

        return AttentionEdit(output=output)

    def report(self, call: AttentionCall, drop: Tensor, rows: Tensor | None = None, *, units: bool = False) -> Tensor:
        """Count the valid positions where ``drop``, broadcastable to ``call.shape``, and return their mask.

        The fraction is relative to the positions of ``rows``, the queries that have candidates, ``(batch, 1 or heads,
        query, 1)``; None: those that are not padding. With ``units``, ``drop`` is one of :meth:`without_units`.
        """
        if not units:
            drop = (drop if call.valid is None else drop & call.valid).expand(call.shape)
        columns = drop.shape[-1] if units or call.valid is None else call.valid.sum(-1, keepdim=True)
        # Summing bytes is faster than summing booleans. Ranking by attention weights gives candidates to padding rows.
        dropped = drop.view(torch.uint8).sum(-1, keepdim=True, dtype=torch.int32)
        rows = call.valid_queries() if rows is None else rows
        if rows is None:
            rows = torch.ones(1, dtype=torch.bool, device=drop.device)
        possible = (rows * columns).expand(*drop.shape[:-1], 1).sum()
        self.context.report(call.layer.key, (dropped * rows).sum(), possible)
        return drop


class WordPlan(Plan):
    """Plan that changes the word embeddings of a pass once: in an encoder-decoder model, those of the encoder.

    ``change`` gets the word embeddings, ``(batch, n, width)``, and which tokens are not padding, ``(batch, n)``, and
    returns the changed embeddings.
    """

    def __init__(self, context: StepContext, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.context = context
        self.change = change
        self._changed = False

    def embed(self, embedded: Tensor) -> Tensor:
        if self._changed:  # the decoder shares the embedding
            return embedded
        self._changed = True
        return self.change(embedded, real_tokens(self.context.inputs.get("attention_mask"), embedded))


def sample_layers(context: StepContext, p: float, keys: Sequence[str], prefix: str = "") -> set[str]:
    """Sample the layers or blocks to drop, each with probability ``p``, equal in all processes, and report them."""
    dropped = {key for key in keys if context.key.uniform(f"{prefix}{key}") < p}
    for key in keys:
        context.report(key, torch.tensor(int(key in dropped)), torch.tensor(1))
    return dropped


def token_uniform(key: SampleKey, name: str, valid: Tensor) -> Tensor:
    """Sample a number from (0, 1) for each token, ``(batch, n)``, counted from the first that is ``valid``."""
    first = valid.int().argmax(-1)
    origins = torch.stack([torch.zeros_like(first), first], -1)
    rows, length = valid.shape
    return uniform(key, name, (rows, 1, 1, length), origins, valid.device).view(rows, length)


def loss_gradients(loss: Tensor, units: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Differentiate a model's loss, keeping its graph, with respect to ``units``, without overflow in float16.

    Zero where the loss does not depend on a unit. Raises AttendropError if the gradients are not finite.
    """
    keys, tensors = list(units), list(units.values())
    return finite_gradients(lambda factor: gradients_of(loss * factor, keys, tensors, keep_graph=True), model)
