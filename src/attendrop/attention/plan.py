"""Plans: what one forward pass changes at each attention layer, block, embedding and head, and how changes combine.

A new kind of attention edit needs a field of :class:`AttentionEdit`, a rule for combining several, and support in the
two ways of computing attention (``computation`` and ``own_softmax``).
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.blocks import Block, ModelStructure
from attendrop.attention.layers import AttentionLayer
from attendrop.errors import AttendropError
from attendrop.randomness.candidates import any_last, pack, unpack
from attendrop.randomness.device_path import on_cpu

PLAN_KEYWORD = "attendrop_plan"
# Values of a plan's ``acts_on``, each with the function by which it acts there.
FUNCTIONS = {"attention": "edit", "blocks": "block", "embeddings": "embed", "features": "features"}
_Place = TypeVar("_Place")
# A mask hides a key if its entry is this far below the largest of its row. Models write -100 (Swin, beside a learned
# bias), -10000 or less; exp(-64) is 1e-28, and learned biases, such as T5's, spread over less.
_HIDDEN_BELOW = 64.0
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention layer, or of several that are alike: shapes and valid keys.

    Attributes:
        layer: The attention layer; of several, the first.
        shape: ``(batch, heads, query, key)``; of several layers, the sequences of one come after those of another.
        valid: Boolean, broadcastable to ``shape``, True where a key may be attended to; None means everywhere.
        device: Device of the scores.
        dtype: What the kernel computes in, and takes an additive mask in.
        stack: The layers, if there are several.
        of_each: Then the valid keys of each, by which calls can be told apart.
    """

    layer: AttentionLayer
    shape: tuple[int, int, int, int]
    valid: Tensor | None
    device: torch.device
    dtype: torch.dtype = torch.float32
    stack: tuple[AttentionLayer, ...] = ()
    of_each: Tensor | None = None

    @property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The layers of the call."""
        return self.stack or (self.layer,)

    def split(self, tensor: Tensor) -> Sequence[Tensor]:
        """Split what a call of several layers computes, ``(batch, ...)``, into their parts."""
        return tensor.reshape(len(self.layers), -1, *tensor.shape[1:]).unbind()

    def stacked(self, layers: Sequence[AttentionLayer]) -> AttentionCall:
        """Make one call of several layers that are called like this one."""
        if len(layers) == 1:
            return self
        shape, valid = (len(layers) * self.shape[0], *self.shape[1:]), self.valid
        if valid is not None and len(valid) > 1:
            valid = torch.cat([valid] * len(layers))  # a quarter of the time that `repeat` takes
        return replace(self, layer=layers[0], shape=shape, valid=valid, stack=tuple(layers), of_each=self.valid)

    def origins(self) -> Tensor:
        """Find the first query and the first key of each sequence that are not padding, ``(batch, 2)``.

        In self-attention both are the first key that any query may attend to, counted from the first query where keys
        of a cache come before it; in cross-attention the first query is 0.
        """
        batch = self.shape[0]
        if self.valid is None:
            return torch.zeros(batch, 2, dtype=torch.long, device=self.device)
        query = first = self.valid.any((1, 2)).expand(batch, -1).int().argmax(-1)
        if self.layer.kind == "cross":
            query = torch.zeros_like(first)
        elif cached := max(0, self.shape[3] - self.shape[2]):
            query = (first - cached).clamp(min=0)
        return torch.stack([query, first], -1)

    def valid_queries(self) -> Tensor | None:
        """Find the query positions that something may attend to, ``(batch, 1, query, 1)``; None: all, or not known."""
        if self.valid is None or self.layer.kind == "cross" or self.shape[2] != self.shape[3]:
            return None
        found = self.valid.any(-2, keepdim=True).transpose(-1, -2)
        return found if len(found[0]) == 1 else found.any(1, keepdim=True)  # heads may have masks of their own


class DropoutDraws:
    """Dropout whose random numbers are drawn once for passes that begin in the same random state.

    On a CPU a single thread draws them, which takes longer than softmax. A draw is kept, in bits, with the random
    states before and after it. So outputs and random states are those of ``functional.dropout``, bit for bit.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, torch.Size, float], tuple[tuple[Tensor, tuple[int, ...]], Tensor]] = {}

    def dropout(self, weights: Tensor, p: float) -> Tensor:
        """Compute ``functional.dropout(weights, p)``."""
        if not on_cpu(weights.device) or not 0 < p < 1:
            return functional.dropout(weights, p)
        key = torch.get_rng_state().numpy().tobytes(), weights.shape, p
        if key in self._kept:
            bits, after = self._kept[key]
            kept = unpack(*bits)
            torch.set_rng_state(after)
        else:
            kept = torch.empty(weights.shape, dtype=torch.bool).bernoulli_(1 - p)
            self._kept[key] = pack(kept), torch.get_rng_state()
        return weights * kept.to(weights.dtype).div_(1 - p)


def chain(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Compose functions of one or more tensors in the order of their calls."""

    def call_all(*tensors: Tensor) -> Any:
        for function in functions:
            found = function(*tensors)
            tensors = found if isinstance(found, tuple) else (found,)
        return tensors if len(tensors) > 1 else tensors[0]

    return call_all


@dataclass(frozen=True)
class ReadyMask:
    """What dropped positions make of a model's mask, made for many layers at once: a layer adds it to its scores.

    Attributes:
        additive: ``(batch, heads, query, key)``, minus infinity at hidden and at dropped keys, in the dtype of the
            computation. On a GPU rows of keys begin at multiples of 16 elements, as fused kernels want them.
        queries: Factor of the queries, ``(batch, heads, query, 1)``: 0 in rows that are dropped whole, whose keys
            are then all equal; None if no row can be.
    """

    additive: Tensor
    queries: Tensor | None

    @classmethod
    def of(
        cls, valid: Tensor | None, drop: Tensor, shape: Sequence[int], dtype: torch.dtype, *, whole_rows: bool
    ) -> ReadyMask:
        """Make the mask of scores of a shape, a dtype and valid keys.

        ``whole_rows``: whether a whole row can be dropped; if none can, ``drop`` is at valid keys only.
        """
        queries = None
        if whole_rows:
            kept, whole = after_drop(valid, drop)
            hidden, queries = ~kept, (~whole).to(dtype)
        else:
            hidden = drop if valid is None else valid <= drop  # not valid, or dropped
        hidden = hidden.expand(*hidden.shape[:2], *shape[2:])
        if on_cpu(drop.device):  # filling in takes ten times as long where it is at random, reading booleans four times
            infinity = torch.tensor(-torch.inf, dtype=dtype).view(_INTEGERS[dtype.itemsize]).numpy()
            bits = np.multiply(hidden.numpy().view(np.uint8), infinity, dtype=infinity.dtype)
            return cls(torch.from_numpy(bits).view(dtype), queries)
        width = -(-shape[3] // 16) * 16
        additive = torch.zeros(*hidden.shape[:3], width, dtype=dtype, device=drop.device)[..., : shape[3]]
        return cls(additive.masked_fill_(hidden, -torch.inf), queries)

    def split(self, call: AttentionCall) -> list[ReadyMask]:
        """Split the mask of several layers into theirs."""
        queries = [None] * len(call.layers) if self.queries is None else call.split(self.queries)
        return [ReadyMask(*parts) for parts in zip(call.split(self.additive), queries, strict=True)]


@dataclass(frozen=True)
class AttentionEdit:
    """Changes in one call of an attention layer; a field with its default changes nothing.

    Attributes:
        combine: Functions that combine the values of several edits, by field; other fields may be set by one edit only.
        drop: Boolean, broadcastable to ``(batch, heads, query, key)``; True sets the score to minus infinity. A row
            whose valid keys are all dropped attends to all of them equally.
        in_part: No row is dropped whole by ``drop``, so that those need not be found.
        ready: What ``drop`` makes of the model's mask, if that was computed before; it does not change the result.
        weights: Function that replaces the attention weights, after softmax and the model's own dropout.
        constant: Every row attends equally to its valid keys (Eq. 4 of Wu et al., 2021), as if all were dropped;
            queries and keys are not multiplied. The model's own dropout acts on the equal weights.
        output: Function that replaces the outputs of the heads, ``(batch, query, heads, dim)``, before the output
            projection.
        inputs: Function that replaces queries, keys and values, each ``(batch, heads, n, dim)``.
        values: Function that reads the values that the weights multiply, ``(batch, heads, key, dim)``.
        dropout: Probability of the dropout of attention weights, in place of the model's own.
        draws: Random numbers of that dropout, if passes share them; they do not change the result.
    """

    combine: ClassVar[dict[str, Any]] = {
        "drop": partial(reduce, torch.logical_or),
        "constant": any,
        "draws": itemgetter(0),
    }
    combine |= dict.fromkeys(("weights", "output", "inputs"), chain)
    combine |= {"ready": lambda _: None, "in_part": lambda _: False}
    combine |= {"values": lambda functions: lambda values: [function(values) for function in functions]}

    drop: Tensor | None = None
    in_part: bool = False
    ready: ReadyMask | None = None
    weights: Callable[[Tensor], Tensor] | None = None
    constant: bool = False
    output: Callable[[Tensor], Tensor] | None = None
    inputs: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    values: Callable[[Tensor], None] | None = None
    dropout: float | None = None
    draws: DropoutDraws | None = None

    def drop_weights(self, weights: Tensor, stock: Callable[[Tensor], Tensor] | float) -> Tensor:
        """Drop weights, by the model's own function or probability unless the edit sets one, and change them."""
        p = stock if self.dropout is None else self.dropout
        if callable(p):
            weights = p(weights)
        else:
            weights = functional.dropout(weights, p) if self.draws is None else self.draws.dropout(weights, p)
        return weights if self.weights is None else self.weights(weights)


@dataclass(frozen=True)
class BlockEdit:
    """Changes at one block; see :class:`AttentionEdit`.

    Attributes:
        skip: Whether the block is left out: its output is its input.
        activations: Function that replaces the activations of the feed-forward, ``(batch, n, inner width)``.
        feed_forward: Function that replaces the output of the feed-forward's last projection, ``(batch, n, width)``.
        output: Function that replaces the hidden states that leave the block, ``(batch, n, width)``.
    """

    combine: ClassVar[dict[str, Any]] = {"skip": any, "activations": chain, "feed_forward": chain, "output": chain}

    skip: bool = False
    activations: Callable[[Tensor], Tensor] | None = None
    feed_forward: Callable[[Tensor], Tensor] | None = None
    output: Callable[[Tensor], Tensor] | None = None


_AnyEdit = TypeVar("_AnyEdit", AttentionEdit, BlockEdit)


def merge_edits(edits: Sequence[_AnyEdit]) -> _AnyEdit | None:
    """Combine edits of one kind into one, or None; raise AttendropError if two set a field that cannot be combined."""
    if len(edits) < 2:
        return edits[0] if edits else None
    defaults = {field.name: field.default for field in fields(edits[0])}
    given = [{name: value for name, value in vars(edit).items() if value is not defaults[name]} for edit in edits]
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for found in given for name in found):
        values = [found[name] for found in given if name in found]
        if len(values) > 1 and name not in edits[0].combine:
            raise AttendropError(f"Two methods edit the same layer, and {name!r} does not combine; use one of them.")
        merged[name] = values[0] if len(values) == 1 else edits[0].combine[name](values)
    if sum("drop" in found for found in given) > 1:
        merged |= {name: edits[0].combine[name]([]) for name in ("in_part", "ready")}  # which hold for one alone
    return type(edits[0])(**merged)


def after_drop(valid: Tensor | None, drop: Tensor) -> tuple[Tensor, Tensor]:
    """Find the keys that rows attend to after positions are dropped, and the rows that are dropped whole.

    These, ``(..., query, 1)``, attend to all their valid keys, equally. A row without any valid key is unchanged.
    ``valid`` is None where all keys are.
    """
    if valid is None:
        whole = ~any_last(~drop)
        return ~drop | whole, whole
    kept = valid & ~drop
    whole = ~any_last(kept) & any_last(valid)
    return torch.where(whole, valid, kept), whole


def hidden_keys(kept: Tensor, valid: Tensor | None) -> Tensor:
    """Find the scores to set to minus infinity: none in a row without any valid key, which would become NaN."""
    return ~kept if valid is None else ~kept & any_last(valid)


def real_tokens(mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Find those of ``tokens``, ``(sequences, n, ...)``, that are not padding, boolean ``(sequences, n)``.

    In a mask for scores, ``(sequences, 1, 1 or query, n)``, boolean or additive, padding is what no query sees.
    """
    shape = tokens.shape[:2]
    if mask is not None and mask.ndim == 4:
        seen = mask if mask.dtype == torch.bool else visible_keys(mask.detach())
        return seen.any(1).any(1).expand(shape)
    if mask is not None and mask.numel() == shape.numel():  # several choices of a row are a dimension of the mask
        return mask.reshape(shape).bool()
    return torch.ones(shape, dtype=torch.bool, device=tokens.device)


def visible_keys(mask: Tensor) -> Tensor:
    """Find the keys that an additive mask, possibly with a bias, does not hide: those not far below the row's largest.

    A row whose entries are all far below zero has no valid key.
    """
    largest = mask.amax(-1, keepdim=True).clamp(min=0)
    return mask > largest - _HIDDEN_BELOW


class Plan:
    """Changes that one forward pass makes to a model. One instance serves one forward pass.

    :meth:`edit` and :meth:`block` must return the same edit for the same layer or block every time: under activation
    checkpointing, these run again in the backward pass.

    Attributes:
        acts_on: What the plan changes or reads: ``"attention"`` (:meth:`edit`), ``"blocks"`` (:meth:`block`),
            ``"embeddings"`` (:meth:`embed`), ``"features"`` (:meth:`features`). It follows from what a class defines.
        layer_keys: Keys of the attention layers that :meth:`edit` is called for; None: all.
        running: The plans that are bound to models, by number, by which compiled models find them.
        number: That of this plan once it is bound, a tensor, so that models are not compiled anew for each.
    """

    layer_keys: Collection[str] | None = None
    running: ClassVar[weakref.WeakValueDictionary[int, Plan]] = weakref.WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    _layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]] = {}
    _structure = ModelStructure({}, None, None)

    @cached_property
    def acts_on(self) -> frozenset[str]:
        return frozenset(name for name, own in FUNCTIONS.items() if getattr(type(self), own) is not getattr(Plan, own))

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        """Return what to change in a call of an attention layer; None runs the model's own attention function."""
        return None

    def wants(self, layer: AttentionLayer) -> bool:
        """Return whether :meth:`edit` is to be called for an attention layer; False saves describing the call."""
        return "attention" in self.acts_on and (self.layer_keys is None or layer.key in self.layer_keys)

    def block(self, block: Block) -> BlockEdit | None:
        """Return what to change at a block; None changes nothing."""
        return None

    def embed(self, embedded: Tensor) -> Tensor:
        """Change the word embeddings, ``(batch, n, width)``, before positions and normalisation."""
        return embedded

    def features(self, features: Tensor) -> Tensor:
        """Change the input of the model's last projection, ``(batch, width)`` or ``(batch, n, width)``."""
        return features

    def bind(self, layers_by_module: Mapping[nn.Module, Sequence[AttentionLayer]], structure: ModelStructure) -> None:
        """Set the model to act on: its attention modules with their layers, and its blocks, embedding and head."""
        self._layers_by_module, self._structure = layers_by_module, structure
        self._visits: Counter[nn.Module] = Counter()
        number = next(self._numbers)
        self.number, self.running[number] = torch.tensor(number), self

    @property
    def modules(self) -> Iterable[nn.Module]:
        """The attention modules of the model to act on."""
        return self._layers_by_module

    @cached_property
    def _valid(self) -> dict[Any, tuple[Tensor | None, Tensor]]:
        return {}

    def shared(self, mask: Tensor | None, valid: Tensor) -> Tensor:
        """Return the valid keys that were first made of this mask, or of causality: one object for all such layers."""
        return self._valid.setdefault((id(mask), valid.shape, valid.device), (mask, valid))[1]

    def locate(self, module: nn.Module) -> AttentionLayer | None:
        """Return the attention layer that ``module`` stands for in this call; the traced pass must have run it."""
        if module not in self._layers_by_module:
            raise AttendropError(
                f"A {type(module).__name__} ran that is not among the attention layers found in an earlier pass over a "
                "batch with the same columns, so nothing could be dropped there."
            )
        return self._find(self._layers_by_module, module)

    def locate_block(self, module: nn.Module) -> Block | None:
        """Return the block that ``module`` stands for in this call."""
        return self._find(self._structure.blocks, module)

    def count_skipped(self, block: Block) -> None:
        """Count the attention layers of a skipped block; calls of a module that stands for several are counted."""
        skipped = {layer.key for layer in block.attention_layers}
        for module, layers in self._layers_by_module.items():
            if len(layers) > 1:
                self._visits[module] += sum(layer.key in skipped for layer in layers)

    def _find(self, places: Mapping[nn.Module, Sequence[_Place]], module: nn.Module) -> _Place | None:
        found = places.get(module)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        visit = self._visits[module]
        if visit >= len(found):
            raise AttendropError(
                f"A {type(module).__name__} was called more than {len(found)} times in one pass. Either an earlier "
                "batch with the same columns called it less often, as for fewer windows of a text: make all batches "
                "call it equally often. Or activations of a layer that the model shares are checkpointed: switch that "
                "off."
            )
        self._visits[module] += 1
        return found[visit]


class ConstantAttention(Plan):
    """Constant attention in the layers with these keys: each valid key has the same weight."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.layer_keys = set(keys)

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(constant=True)


class CombinedPlan(Plan):
    """Several plans as one: their drops are combined, their functions called one after the other."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.acts_on = frozenset().union(*(plan.acts_on for plan in plans))

    def wants(self, layer: AttentionLayer) -> bool:
        return any(plan.wants(layer) for plan in self.plans)

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edits = [plan.edit(call) for plan in self.plans if plan.wants(call.layer)]
        return merge_edits([edit for edit in edits if edit is not None])

    def block(self, block: Block) -> BlockEdit | None:
        return merge_edits([edit for plan in self.plans if (edit := plan.block(block)) is not None])

    def embed(self, embedded: Tensor) -> Tensor:
        for plan in self.plans:
            embedded = plan.embed(embedded)
        return embedded

    def features(self, features: Tensor) -> Tensor:
        for plan in self.plans:
            features = plan.features(features)
        return features


class _Carried:
    """A plan among the keywords of a model: FSDP passes copies of dataclasses on to the model's modules."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def keywords(plan: Plan | None) -> dict[str, Any]:
    """Return the keywords with which a model is called under a plan, or under none."""
    return {} if plan is None else {PLAN_KEYWORD: _Carried(plan)}


def carried_plan(keywords: Mapping[str, Any]) -> Plan | None:
    """Return the plan among keywords, in which it may also be as it is."""
    found = keywords.get(PLAN_KEYWORD)
    return found.plan if isinstance(found, _Carried) else found
