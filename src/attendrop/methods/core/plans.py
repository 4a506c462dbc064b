"""Plans that several methods share: random masks of attention, heads and hidden units, and changed word embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, DropoutDraws, Plan, ReadyMask, real_tokens
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import LayerCounts, StepContext
from attendrop.randomness.candidates import at_once, kept
from attendrop.randomness.device_path import on_cpu
from attendrop.randomness.keyed_random import SampleKey, sample_mask, uniform


class DroppedScores(NamedTuple):
    """Scores to drop in a call.

    Attributes:
        mask: Boolean, broadcastable to the call's shape.
        rows: The queries whose positions could be dropped, ``(batch, 1 or heads, query, 1)``; None: those that are not
            padding. The reported fraction is relative to their positions.
        whole_rows: Whether all valid keys of a query can be dropped.
        draws: Random numbers of the model's own dropout that passes share.
        in_rows: Whether ``mask`` is in ``rows`` only, so that this need not be ensured.
    """

    mask: Tensor
    rows: Tensor | None = None
    whole_rows: bool = True
    draws: DropoutDraws | None = None
    in_rows: bool = False


class _LayerEdit(NamedTuple):
    """What a plan drops at a layer: its edit, where it is counted that the layer ran, and how to get the mask then."""

    call: AttentionCall
    edit: AttentionEdit
    counts: LayerCounts
    place: int
    drop: Callable[[], Tensor] | None = None


class RandomMaskPlan(Plan):
    """Plan that drops at random in the selected layers of a method, and reports the fraction.

    The edit of each layer is made when the layer first runs, and reused when activation checkpointing runs it again.
    Scores to drop are chosen for many small layers at once when the first of them runs.

    Args:
        method: The method.
        context: The micro-batch.
        make: Function of this plan and a layer's call that makes the layer's edit, usually by :meth:`without_heads` or
            :meth:`without_units`. A subclass overrides the method :meth:`make` in its place.
        keys: Keys of the layers to act on; None for the layers that the method selects.
        drops: In place of ``make``: function of this plan and a call, perhaps of several layers, that returns where to
            drop scores; None drops nothing there.
        alike: Layers get their masks together only if it returns the same of them; None if all may that are of a kind.
        spans: Finds, for each sequence of a layer, the first query and the number of queries, and the same of keys,
            outside of which :meth:`sample` is not read; None if they are not known on the host.
    """

    def __init__(
        self,
        method: Method,
        context: StepContext,
        make: Callable[[RandomMaskPlan, AttentionCall], AttentionEdit] | None = None,
        keys: Collection[str] | None = None,
        *,
        drops: Callable[[RandomMaskPlan, AttentionCall], DroppedScores | None] | None = None,
        alike: Callable[[AttentionLayer], object] | None = None,
        spans: Callable[[AttentionCall], Sequence[tuple[int, int, int, int]] | None] | None = None,
    ) -> None:
        self.method = method
        self.context = context
        if keys is None:
            keys = {layer.key for layer in method.selected_layers(context.adapter.attention_layers)}
        self.layer_keys: Collection[str] = keys
        self._make = make
        self._drops = drops
        self._alike = alike or (lambda _: None)
        self._made: dict[str, AttentionEdit] = {}
        self._edits: dict[str, _LayerEdit] = {}
        self._spans = spans or (lambda _: None)
        # Layers of local and of global attention alternate in some models.
        self._seen = dict(context.adapter.masks_seen)
        self._origins: dict[tuple[str, int, int], tuple[Tensor | None, Tensor | None]] = {}

    def edit(self, call: AttentionCall) -> AttentionEdit:
        key = call.layer.key
        if self._drops is None:
            if key not in self._made:
                self._made[key] = self.make(call)
            return self._made[key]
        found = self._edits.get(key)
        if found is None or (
            found.place not in found.counts.ran  # chosen with another layer, which was called in another way
            and (
                (found.call.shape, found.call.device) != (call.shape, call.device) or found.call.valid is not call.valid
            )
        ):
            self._choose(call)
            found = self._edits[key]
        self.context.adapter.masks_seen[key] = id(call.valid)
        edit = found.edit if found.drop is None else replace(found.edit, drop=found.drop())
        if found.place not in found.counts.ran:
            found.counts.ran.add(found.place)
            if edit.drop is not None and edit.ready is None:  # the masks of all layers stay until the backward pass
                self._edits[key] = found._replace(edit=replace(edit, drop=None), drop=kept(edit.drop))
        return edit

    def make(self, call: AttentionCall) -> AttentionEdit:
        """Make the edit of a layer."""
        assert self._make is not None
        return self._make(self, call)

    def _choose(self, call: AttentionCall) -> None:
        """Choose what to drop in a layer and, if they are small, in those like it that run after it."""
        assert self._drops is not None
        chosen = [layer for layer in self.context.adapter.attention_layers if layer.key in self.layer_keys]

        def like(layer: AttentionLayer) -> object:
            return layer.kind, self._alike(layer), self._seen.get(layer.key)

        alike = [layer for layer in chosen if like(layer) == like(call.layer)]
        # On a CPU all get their masks together, or none, since these stay in memory; 0: that of one is too large.
        at_a_time = min(at_once(call.device) // max(1, math.prod(call.shape)), len(alike))
        at_a_time = 0 if on_cpu(call.device) and at_a_time < len(alike) else at_a_time
        layers = alike[alike.index(call.layer) :][: max(1, at_a_time)]
        stack, names = call.stacked(layers), [layer.key for layer in layers]
        found = self._drops(self, stack)
        if found is None:  # nothing can be dropped
            counts = self.context.report_layers(names, *torch.zeros(2, len(layers), device=call.device))
            self._edits |= {key: _LayerEdit(call, AttentionEdit(), counts, i) for i, key in enumerate(names)}
            return
        drop = (found.mask if stack.valid is None else found.mask & stack.valid).expand(stack.shape)
        counts = self._report(stack, drop, found.rows, in_rows=found.in_rows)
        ready: Sequence[ReadyMask | None] = [None] * len(layers)
        if at_a_time:
            every_mask = ReadyMask.of(stack.valid, drop, stack.shape, stack.dtype, whole_rows=found.whole_rows)
            ready = every_mask.split(stack)
        for place, (key, mask) in enumerate(zip(names, stack.split(drop), strict=True)):
            edit = AttentionEdit(mask, in_part=not found.whole_rows, ready=ready[place], draws=found.draws)
            self._edits[key] = _LayerEdit(call, edit, counts, place)

    # Samples, which depend on the seed, the step and the sequence only.

    def origins(self, call: AttentionCall) -> Tensor | None:
        """Return ``call.origins()``, cached by kind and mask, which layers usually share; None if all are zero."""
        key = call.layer.kind, id(call.valid), call.shape[0]
        if key not in self._origins:
            found, spans = None, None if call.valid is None else self._spans(call)
            if spans is not None and any(query or first for query, _, first, _ in spans):
                found = torch.tensor([(query, first) for query, _, first, _ in spans] * len(call.layers))
            elif spans is None and call.valid is not None:
                found = call.origins()
            self._origins[key] = call.valid, found  # with the mask, the number stays its own
        return self._origins[key][1]

    def sample(self, p: float | Sequence[float] | Tensor, call: AttentionCall) -> Tensor:
        """Sample each position of each head with probability ``p``, ``(batch, heads, query, key)``.

        ``p`` is one number, one for each layer of the call, or a tensor that expands to that.
        """
        names, spans = [layer.key for layer in call.layers], self._spans(call)
        sizes = None if spans is None else [(queries, keys) for _, queries, _, keys in spans]
        return sample_mask(p, self.context.key, names, call.shape, self.origins(call), call.device, sizes)

    def uniform(self, call: AttentionCall) -> Tensor:
        """Sample a number from (0, 1) for each position of each head, ``(batch, heads, query, key)``."""
        names = [layer.key for layer in call.layers]
        return uniform(self.context.key, names, call.shape, self.origins(call), call.device)

    def uniform_heads(self, call: AttentionCall) -> Tensor:
        """Sample a number from (0, 1) for each head of each sequence, ``(batch, heads, 1, 1)``."""
        batch, heads = call.shape[:2]
        return uniform(self.context.key, call.layer.key, (batch, heads, 1, 1), None, call.device)

    def sample_hidden(self, p: float, call: AttentionCall, units: int) -> Tensor:
        """Sample each hidden unit of each query with probability ``p``, ``(batch, 1, query, units)``."""
        origins = self.origins(call)
        if origins is not None:
            origins = origins * torch.tensor([1, 0], device=call.device)  # unit indices have no padding offset
        shape = (call.shape[0], 1, call.shape[2], units)
        return sample_mask(p, self.context.key, call.layer.key, shape, origins, call.device)

    # Edits, which report the dropped fraction.

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
        self._report(call, drop, rows, units=units).ran.add(0)
        return drop

    def _report(
        self, call: AttentionCall, drop: Tensor, rows: Tensor | None, *, units: bool = False, in_rows: bool = False
    ) -> LayerCounts:
        columns = drop.shape[-1] if units or call.valid is None else call.valid.sum(-1, keepdim=True)
        rows = call.valid_queries() if rows is None else rows
        if rows is None:
            rows = torch.ones(1, dtype=torch.bool, device=drop.device)
        layers, possible = len(call.layers), (rows * columns).expand(*drop.shape[:-1], 1)
        # Ranking by attention weights gives candidates to padding rows.
        if on_cpu(drop.device):  # where numpy counts ten times as fast as torch
            found = drop.numpy() if in_rows else drop.numpy() & rows.numpy()
            dropped = torch.tensor([np.count_nonzero(each) for each in found.reshape(layers, -1)])
        else:  # summing bytes is faster than summing booleans
            dropped = (drop.view(torch.uint8).sum(-1, keepdim=True, dtype=torch.int32) * rows).view(layers, -1).sum(1)
        totals = dropped, possible.reshape(layers, -1).sum(1)
        return self.context.report_layers([layer.key for layer in call.layers], *totals)


@dataclass(eq=False)
class WordPlan(Plan):
    """Plan that changes the word embeddings of a pass: in an encoder-decoder model, those of the encoder.

    ``change`` gets the word embeddings, ``(batch, n, width)``, and which tokens are not padding, ``(batch, n)``, and
    returns the changed embeddings.
    """

    context: StepContext
    change: Callable[[Tensor, Tensor], Tensor]
    _changed: bool = False

    def embed(self, embedded: Tensor) -> Tensor:
        if self._changed:
            if all(layer.kind != "cross" for layer in self.context.adapter.attention_layers):
                raise AttendropError(
                    "The model embeds words twice in one pass, as those of two texts, and the method can change them "
                    "once only; join both texts to one, or use another method."
                )
            return embedded  # the decoder shares the embedding
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
