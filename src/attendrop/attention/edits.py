"""Edits of one call of an attention layer, or of one block: what they are, how several combine, how they act.

A new kind of edit of attention is a field of :class:`AttentionEdit`, how several combine, and what
:class:`EditExecutor` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from attendrop.attention.dropout_draws import DropoutDraws
from attendrop.errors import AttendropError


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


class EditExecutor:
    """Applies an edit to one call of an attention layer: the one place where the fields of :class:`AttentionEdit` act.

    Every way of computing attention goes through it, so that a field acts in all of them or, if it is not listed here,
    is refused in all of them.

    Args:
        edit: What to change.
        module: The attention module.
        dropout: Probability of the model's own dropout of attention weights.

    Attributes:
        p: Probability of the dropout of attention weights.
        drop: The positions to drop; None if there are none.
        constant: Whether all are dropped.
        changes_inputs: Whether :meth:`inputs` changes anything.
        changes_output: Whether :meth:`output` does.
        needs_weights: Whether the weights are read or replaced, so that they must be computed explicitly.

    Raises:
        AttendropError: The edit has a field that is not known here.
    """

    _KNOWN = frozenset({"drop", "weights", "replace", "constant", "output", "inputs", "values", "dropout", "draws"})

    def __init__(self, edit: AttentionEdit, module: nn.Module, dropout: float = 0.0) -> None:
        edit.refuse_beyond(self._KNOWN, module)
        self._edit = edit
        self._draws = edit.draws or DropoutDraws()
        self.p = dropout if edit.dropout is None else edit.dropout
        self.drop, self.constant = edit.drop, edit.constant
        self.changes_inputs, self.changes_output = edit.inputs is not None, edit.output is not None
        self.needs_weights = edit.replace is not None or edit.weights is not None

    def inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Change queries, keys and values, each ``(batch, heads, n, dim)``."""
        return (query, key, value) if self._edit.inputs is None else self._edit.inputs(query, key, value)

    def softmax(self, compute: Callable[[], Tensor], dtype: torch.dtype) -> Tensor:
        """Return the weights to use, or those that ``compute`` returns, before dropout."""
        return compute() if self._edit.replace is None else self._edit.replace.to(dtype)

    def dropout(self, weights: Tensor, stock: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Drop weights, by ``stock`` unless the edit sets a probability, and change them as the edit says."""
        if self._edit.replace is not None:
            return weights
        if stock is None or self._edit.dropout is not None:
            weights = self._draws.dropout(weights, self.p)
        else:
            weights = stock(weights)
        return weights if self._edit.weights is None else self._edit.weights(weights)

    def values(self, value: Tensor) -> None:
        """Show the values that the weights multiply, ``(batch, heads, key, dim)``."""
        if self._edit.values is not None:
            self._edit.values(value)

    def output(self, output: Tensor) -> Tensor:
        """Change the outputs of the heads, ``(batch, query, heads, dim)``."""
        return output if self._edit.output is None else self._edit.output(output)
