"""Edits of one call of an attention layer, or of one block: what they are, how several combine, how they are applied.

A new kind of edit of attention is a field of :class:`AttentionEdit`, how several combine, and what each engine makes of
it: :class:`AttentionComputation` and :mod:`attendrop.attention.own_softmax`. An engine lists the fields that it knows,
and refuses others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import repeat_kv

from attendrop.attention.dropout_draws import DropoutDraws
from attendrop.attention.valid_keys import after_drop, any_last, hidden_keys, valid_keys_and_bias
from attendrop.candidates import pack, unpack
from attendrop.errors import AttendropError

# Keywords that change the scores in a way that is not implemented here; a value other than None is refused.
_UNSUPPORTED_KEYWORDS = ("s_aux", "sinks", "indices", "block_indices", "cache")


def chain(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Compose functions of one or more tensors in the order of their calls."""

    def call_all(*tensors: Tensor) -> Any:
        for function in functions:
            found = function(*tensors)
            tensors = found if isinstance(found, tuple) else (found,)
        return tensors if len(tensors) > 1 else tensors[0]

    return call_all


def read_by_all(functions: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    """Call functions that only read the same tensors, one after the other."""

    def call_all(*tensors: Tensor) -> None:
        for function in functions:
            function(*tensors)

    return call_all


@dataclass(frozen=True)
class _Edit:
    """Base class of edits, whose fields have the default where nothing is changed.

    Attributes:
        combine: How the values of several edits become one, by field; of other fields, only one edit can have a value.
    """

    combine: ClassVar[Mapping[str, Callable[[list[Any]], Any]]] = {}

    def given(self) -> dict[str, Any]:
        """Return what is changed, by the names of the fields."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in values.items() if value is not default and value != default}

    def refuse_beyond(self, known: Collection[str], place: nn.Module) -> None:
        """Raise AttendropError for a change that is not among those known at some place: it would have no effect."""
        unknown = sorted(self.given().keys() - known)
        if unknown:
            raise AttendropError(
                f"What edits {type(place).__name__} does not know the edit {unknown[0]!r} ({type(self).__name__}), "
                "which would have no effect there; use an edit of attendrop.extend."
            )


@dataclass(frozen=True)
class AttentionEdit(_Edit):
    """Changes in one call of an attention layer. ``replace`` excludes ``weights`` and ``constant``.

    Attributes:
        drop: Boolean, broadcastable to ``(batch, heads, query, key)``; True sets the score to minus infinity. A row
            whose valid keys are all dropped attends to all of them equally.
        weights: Function that replaces the attention weights, after softmax and the model's own dropout.
        replace: Attention weights to use; none are then computed, and the model's own dropout does not act.
        constant: Every row attends equally to its valid keys (Eq. 4 of Wu et al., 2021), as if all were dropped;
            queries and keys are not multiplied. The model's own dropout acts on the equal weights.
        output: Function that replaces the outputs of the heads, ``(batch, query, heads, dim)``, before the output
            projection.
        inputs: Function that replaces queries, keys and values, each ``(batch, heads, n, dim)``.
        values: Function that reads the values that the weights multiply, ``(batch, heads, key, dim)``.
        dropout: Probability of the dropout of attention weights, in place of the model's own.
        draws: Random numbers of that dropout, where passes share them; they change no result.
    """

    combine: ClassVar = {"drop": partial(reduce, torch.logical_or), "constant": any, "draws": itemgetter(0)}
    combine |= dict.fromkeys(("weights", "output", "inputs"), chain) | {"values": read_by_all}

    drop: Tensor | None = None
    weights: Callable[[Tensor], Tensor] | None = None
    replace: Tensor | None = None
    constant: bool = False
    output: Callable[[Tensor], Tensor] | None = None
    inputs: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    values: Callable[[Tensor], None] | None = None
    dropout: float | None = None
    draws: DropoutDraws | None = None


@dataclass(frozen=True)
class BlockEdit(_Edit):
    """Changes at one block.

    Attributes:
        skip: Whether the block is left out: its output is its input.
        activations: Function that replaces the activations of the feed-forward, ``(batch, n, inner width)``.
        feed_forward: Function that replaces the output of the feed-forward's last projection, ``(batch, n, width)``.
        output: Function that replaces the hidden states that leave the block, ``(batch, n, width)``.
    """

    combine: ClassVar = {"skip": any, "activations": chain, "feed_forward": chain, "output": chain}

    skip: bool = False
    activations: Callable[[Tensor], Tensor] | None = None
    feed_forward: Callable[[Tensor], Tensor] | None = None
    output: Callable[[Tensor], Tensor] | None = None


_AnyEdit = TypeVar("_AnyEdit", bound=_Edit)


def merge_edits(edits: Sequence[_AnyEdit]) -> _AnyEdit | None:
    """Combine several edits into one, field by field; None if there are none.

    Raises:
        AttendropError: Two set the same thing, of which there can be one; or no class has the fields of all.
    """
    if len(edits) < 2:
        return edits[0] if edits else None
    made: type[_AnyEdit] = max(map(type, edits), key=lambda each: len(each.__mro__))
    given = [found for edit in edits if (found := edit.given())]
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for found in given for name in found):
        values = [found[name] for found in given if name in found]
        alone = name == "replace" or not hasattr(made, name)
        if (alone and len(given) > 1) or (len(values) > 1 and name not in made.combine):
            raise AttendropError(f"Two methods edit the same layer, and {name!r} does not combine; use one of them.")
        merged[name] = values[0] if len(values) == 1 else made.combine[name](values)
    return made(**merged)


class AttentionComputation:
    """One call of an attention layer, with the model's masks and biases brought to one form.

    Shapes: query ``(batch, heads, query, dim)``, key and value ``(batch, heads, key, dim)`` (heads of grouped-query
    models repeated), ``valid`` and ``bias`` broadcastable to ``(batch, heads, query, key)``.
    """

    known = frozenset({"drop", "weights", "replace", "constant", "output", "inputs", "values", "dropout", "draws"})

    def __init__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: Mapping[str, Any],
    ) -> None:
        for name in _UNSUPPORTED_KEYWORDS:
            if kwargs.get(name) is not None:
                raise AttendropError(
                    f"{type(module).__name__} passes '{name}' to its attention, which this library does not implement; "
                    "the model cannot be regularised."
                )
        self.module = module
        self.query = query
        self.key = repeat_kv(key, query.shape[1] // key.shape[1])
        self.value = repeat_kv(value, query.shape[1] // value.shape[1])
        self.scale: float = query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else kwargs["scaling"]
        self.dropout: float = kwargs.get("dropout") or 0.0
        self.softcap: float | None = kwargs.get("softcap")
        self.shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        self.valid, self.bias = valid_keys_and_bias(mask, kwargs.get("position_bias"), bool(causal), self.shape, query)

    def attend(self, edit: AttentionEdit) -> tuple[Tensor, Tensor | None]:
        """Return the output ``(batch, query, heads, dim)`` and, where they were computed, the weights."""
        edit.refuse_beyond(self.known, self.module)
        weights = None
        if edit.inputs is not None:
            self.query, self.key, self.value = edit.inputs(self.query, self.key, self.value)
        if edit.values is not None:
            edit.values(self.value)
        if edit.dropout is not None:
            self.dropout = edit.dropout
        if self._needs_weights(edit):
            weights = self._weights_after(edit)
            output = weights @ self.value
        elif edit.constant:
            output = self._uniform() @ self.value
            output = output.expand(*output.shape[:2], self.shape[2], -1)
        else:
            output = self._fused(edit.drop)
        if (weights is not None or edit.constant) and self.valid is not None:
            # To a row that the mask leaves no key at all (left padding under a causal mask) SDPA gives zeros.
            output = output.masked_fill(self._without_keys(self.valid), 0)
        output = output.transpose(1, 2).contiguous()
        return output if edit.output is None else edit.output(output), weights

    def _needs_weights(self, edit: AttentionEdit) -> bool:
        """Return whether the weights must be computed explicitly.

        On a CPU, SDPA with dropout is its slow reference path; the explicit form is faster and samples alike.
        """
        if edit.replace is not None or edit.weights is not None:
            return True
        if edit.constant:
            return self.dropout > 0
        return self.softcap is not None or (self.dropout > 0 and self.query.device.type == "cpu")

    def _weights_after(self, edit: AttentionEdit) -> Tensor:
        if edit.replace is not None:
            return edit.replace.to(self.value.dtype)
        if edit.constant:
            weights = functional.dropout(self._uniform().expand(self.shape), self.dropout)
        else:
            weights = self._weights(edit.drop, edit.draws or DropoutDraws())
        return weights if edit.weights is None else edit.weights(weights)

    def _fused(self, drop: Tensor | None) -> Tensor:
        if drop is None or not self._recomputes():
            return self._scaled_dot_product(drop)
        bits = pack(drop.expand(self.shape))
        return checkpoint(  # type: ignore[no-any-return]
            lambda *_: self._scaled_dot_product(unpack(*bits)),
            self.query,
            self.key,
            self.value,
            use_reentrant=False,
            preserve_rng_state=self.dropout > 0,
        )

    def _recomputes(self) -> bool:
        """Return whether the kernel runs again in the backward pass, instead of keeping a mask for each head.

        It does where the mask takes more memory than queries, keys and values.
        """
        queries, keys, width = *self.shape[2:], self.query.shape[-1]
        return torch.is_grad_enabled() and queries * keys > (queries + 2 * keys) * width

    def _scaled_dot_product(self, drop: Tensor | None) -> Tensor:
        query, valid, bias = self._masked(drop)
        mask = valid
        if bias is not None:
            mask = bias if valid is None else bias.masked_fill(hidden_keys(valid, self.valid), -torch.inf)
        return functional.scaled_dot_product_attention(
            query, self.key, self.value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )

    def _weights(self, drop: Tensor | None, draws: DropoutDraws) -> Tensor:
        query, valid, bias = self._masked(drop)
        scores = (query * self.scale) @ self.key.transpose(-1, -2)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is not None:
            # A row of minus infinity alone would be NaN.
            scores = scores + bias.clamp(min=torch.finfo(bias.dtype).min)
        if valid is not None:
            # Adding takes a CPU less time than filling in, and none in the backward pass; infinity times 0 is NaN.
            hidden = hidden_keys(valid, self.valid).to(scores.dtype)
            scores.add_(hidden, alpha=torch.finfo(scores.dtype).min)
        half = scores.dtype in (torch.float16, torch.bfloat16)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32 if half else None)
        return draws.dropout(weights.to(self.value.dtype), self.dropout)

    def _uniform(self) -> Tensor:
        """Make equal weights, ``(batch or 1, 1, query or 1, key)``; zero in a row without any valid key."""
        if self.valid is None:
            return self.value.new_full((1, 1, 1, self.shape[3]), 1 / self.shape[3])
        # Half precision counts exactly to 256 only.
        weights = self.valid / self.valid.sum(-1, keepdim=True).clamp(min=1)
        return weights.to(self.value.dtype)

    def _without_keys(self, valid: Tensor) -> Tensor:
        """Find the rows without any key; large finite negatives are keys: softmax of equal scores is uniform."""
        if self.bias is None:
            return ~any_last(valid)
        return self.bias.amax(-1, keepdim=True) == -torch.inf

    def _masked(self, drop: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply ``drop`` to query, valid keys and bias.

        A row that is dropped whole is made constant by taking its query and its bias to zero and its mask back to the
        valid keys: softmax of equal scores is exactly ``1/n_valid``. A row without any valid key stays as it was.
        """
        if drop is None:
            return self.query, self.valid, self.bias
        kept, whole = after_drop(self.valid, drop)
        bias = None if self.bias is None else self.bias.expand(self.shape).masked_fill(whole, 0)
        return self.query.masked_fill(whole, 0), kept, bias
