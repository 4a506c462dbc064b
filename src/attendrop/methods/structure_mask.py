"""Structure mask: random dropout of attention outside a structure such as a dependency tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    Range,
    StepContext,
    choice,
    count,
    option,
    unit_interval,
)
from attendrop.wording import counted


@dataclass(frozen=True)
class StructureMask(Method):
    """Dropout of attention scores outside a structure.

    In self-attention, each valid position of each head that is not in the structure is dropped with probability ``p``.
    A token always attends to itself.

    Args:
        p: Probability that a position outside the structure is dropped, in (0, 1].
        structure: ``"window"``: a token attends to tokens at most ``window`` positions away, and to the first token.
            ``"dependencies"``: it attends to related tokens in a dependency tree, given by a column of the data with
            the position of each token's head; the head of a root is itself. ``"adjacency"``: it attends to the tokens
            marked by 1 (and not to those marked by 0) in its row of a matrix, a list of ``n`` lists of ``n``.
        window: Maximum distance of ``"window"``; at least 0.
        relation: Relation of ``"dependencies"``: with ``"ancestors"``, a token attends to all tokens on the path to its
            root; with ``"neighbours"``, to its head and its dependents.
        column: Column of the data with one or ``n`` numbers per token. Positions count from 0, the first token of the
            model's input, including special tokens. In a custom training loop it is a key of the batch, ``(batch, n)``
            or ``(batch, n, n)``, padded with -1 at the end, whatever the padding side of the input. Tokens with head -1
            (special ones, or where the head is truncated), matrix elements of -1, and positions beyond the column are
            unrestricted: such a token attends to all others, and they to it. On the command line it is a column of the
            train file only: lists, in CSV and TSV cells such as ``"[-1, 2, 2, -1]"``, with one entry per token. Where
            tags of words are predicted, it has one entry per word, as CoNLL-U files do; the first token of a word has
            that of the head's first token, and others depend on it.
        layers: Layers to drop in, see :func:`attendrop.attention.layers.select_layers`; of these only the encoder's
            self-attention or, if there is none, the decoder's.

    Raises:
        AttendropError: In training, the column is missing in the batch or has another shape.

    Source: Zhang et al. (2020), https://arxiv.org/abs/1908.05147 (ancestors); Wu, Zhao, Zhang (2020),
    https://arxiv.org/abs/2012.14710 (adjacency). Both always mask positions outside, also in prediction, beside
    unrestricted attention; here the model's own attention is masked, in training only, which is why ``p`` is 0.5. In
    the code of Zhang et al. words do not attend to special tokens. ``"window"`` is ours, for data without structure.
    """

    info = MethodInfo(
        "structure-mask",
        "drops attention scores outside of a window, a dependency tree or a graph",
        "Zhang et al. (2020), SG-Net: Syntax-Guided Machine Reading Comprehension",
        acts_on=("scores",),
        tasks="all; encoder-decoder: the encoder's self-attention",
        self_attention_only=True,
    )

    p: float = option(0.5, unit_interval(one=True), search=(0.2, 0.8))
    structure: str = option("window", choice("window", "dependencies", "adjacency"))
    window: int = option(4, count(0))
    relation: str = option("ancestors", choice("ancestors", "neighbours"))
    column: str = option("dependency_heads", Range("the name of a column", lambda _, value: _column(value)))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    @property
    def columns(self) -> Mapping[str, str]:
        kinds = {"dependencies": "positions", "adjacency": "matrix"}
        return {} if self.structure == "window" else {self.column: kinds[self.structure]}

    def plan(self, context: StepContext) -> Plan:
        outside = None if self.structure == "window" else self._outside(context)
        placed: dict[tuple[int, int], Tensor] = {}  # shared by all layers with the same numbers of sequences and tokens

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            batch, _, queries, keys = call.shape
            if queries != keys:
                raise AttendropError(
                    f"Attention of {queries} queries to {keys} keys has no structure; choose other layers."
                )
            if (batch, keys) not in placed:
                number = torch.arange(keys, device=call.device) - plan.origins(call)[:, 1:]  # from the first token
                if outside is None:
                    far = (number[:, :, None] - number[:, None, :]).abs() > self.window
                    placed[batch, keys] = (far & (number != 0)[:, None, :])[:, None]
                else:
                    placed[batch, keys] = self._moved(outside, number, batch)
            return plan.drop_scores(call, placed[batch, keys] & plan.sample(self.p, call))

        return RandomMaskPlan(self, context, make)

    def _outside(self, context: StepContext) -> Tensor:
        """Return the mask of positions outside the structure, ``(rows, n, n)``, counted from the first token."""
        found, dimensions = context.extra.get(self.column), 3 if self.structure == "adjacency" else 2
        if found is None:
            raise AttendropError(
                f"The batch has no column '{self.column}', needed for structure='{self.structure}'; add it to the "
                "training data, name another with column=, or use structure='window'."
            )
        if found.ndim != dimensions or (dimensions == 3 and found.shape[1] != found.shape[2]):
            shape = "(batch, n, n)" if dimensions == 3 else "(batch, n)"
            raise AttendropError(
                f"Column '{self.column}' is of shape {tuple(found.shape)}; structure='{self.structure}' needs {shape}."
            )
        if self.structure == "adjacency":
            return (found == 0) & ~torch.eye(found.shape[1], dtype=torch.bool, device=found.device)
        return outside_of_tree(found, self.relation)

    def _moved(self, outside: Tensor, number: Tensor, batch: int) -> Tensor:
        """Move ``outside``, ``(rows, n, n)``, which counts from the first token, to where the tokens are."""
        rows, length, size = len(outside), outside.shape[1], number.shape[1]
        if batch % rows:
            raise AttendropError(f"Column '{self.column}' has {counted(rows, 'row')} for a batch of {batch}.")
        outside = functional.pad(outside.to(number.device), (0, size - length) * 2, value=False)
        outside = outside.repeat_interleave(batch // rows, 0)
        number = number.clamp(min=0)  # padding; nothing attends to it
        each = torch.arange(batch, device=number.device)[:, None, None]
        return outside[each, number[:, :, None], number[:, None, :]][:, None]


def outside_of_tree(heads: Tensor, relation: str) -> Tensor:
    """Return the mask of unrelated pairs of tokens, ``(batch, n, n)``, given the ``relation`` of the options.

    ``heads`` are the positions of each token's head, ``(batch, n)``, its own for a root. Tokens with other values, such
    as -1, are related to all.
    """
    length = heads.shape[1]
    free = (heads < 0) | (heads >= length)
    own = torch.arange(length, device=heads.device).expand_as(heads)
    heads = torch.where(free, own, heads.long())
    related = torch.eye(length, dtype=torch.bool, device=heads.device).repeat(len(heads), 1, 1)
    related.scatter_(2, heads[..., None], True)
    if relation == "neighbours":
        related |= related.transpose(1, 2).clone()
    else:
        at = heads.gather(1, heads)
        while not related.gather(2, at[..., None]).all():
            related.scatter_(2, at[..., None], True)
            at = heads.gather(1, at)
    return ~(related | free[:, :, None] | free[:, None, :])


def _column(value: object) -> str:
    """Return a checked column name."""
    if not value or not isinstance(value, str):
        raise AttendropError(f"column={value!r} is not a column name; give a non-empty string.")
    return value
