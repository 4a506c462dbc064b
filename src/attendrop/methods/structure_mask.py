"""Structure mask: attention kept, at random, to a structure such as a dependency tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.attention.call import AttentionCall
from attendrop.attention.plan import Plan
from attendrop.errors import AttendropError
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, Range, choice, count, option, unit_interval

STRUCTURES = ("window", "dependencies", "adjacency")
RELATIONS = ("ancestors", "neighbours")


@dataclass(frozen=True)
class StructureMask(Method):
    """Drops attention scores outside of a structure.

    In self-attention, each valid position of each head that is not in the structure is dropped with probability ``p``.
    A token always attends to itself.

    Example:
        >>> method = StructureMask(p=0.5, structure="dependencies", column="dependency_heads")
        >>> trainer = RegularizedTrainer(model=model, args=args, train_dataset=dataset, regularizer=method)

    Args:
        p: Probability that a position outside of the structure is dropped, in (0, 1].
        structure: ``"window"``: a token attends to tokens at most ``window`` positions away, and to the first token.
            ``"dependencies"``: it attends to tokens that it is related to in a dependency tree, which a column of the
            data gives as the position of each token's head; the head of a root is itself. ``"adjacency"``: it attends
            to the tokens with which its row of a matrix, a list of ``n`` lists of ``n``, has a 1 (and not to those with
            which it has 0).
        window: See there; at least 0.
        relation: Of dependencies, ``"ancestors"``: a token attends to all tokens on the way to its root;
            ``"neighbours"``: to its head and to the tokens that it is the head of.
        column: Of the data, with numbers for each token. Positions count from 0, the first token of the model's input,
            special tokens included. In a loop of your own it is a key of the batch, ``(batch, n)`` or
            ``(batch, n, n)``. It is padded with -1 at the end, wherever the input is. Tokens whose head is -1 (special
            tokens), matrix elements of -1, and what lies beyond the column, are not in the structure's reach: such a
            token attends to all others, and they to it. On the command line it is a column of the train-file, which no
            other file needs: lists in JSON lines and Parquet, cells such as ``"[-1, 2, 2, -1]"`` in CSV and TSV, with
            an entry for each token that the tokenizer makes of the row's texts, special tokens included. Where texts
            are cut to the maximum length it is cut alike, and a token whose head is gone has head -1.
        layers: Where to drop: see :func:`attendrop.attention.layers.select_layers`; of these the encoder's
            self-attention, or if there is none the decoder's.

    Raises:
        AttendropError: An option is out of its range; or, in training, the batch has no such column, or one that is not
            of this shape.

    Source: Zhang et al. (2020), https://arxiv.org/abs/1908.05147 (ancestors); Wu, Zhao, Zhang (2020),
    https://arxiv.org/abs/2012.14710 (adjacency). Both hide what is outside always, in prediction, too, and beside
    attention that sees all; here it is the model's own attention, and in training alone, so that ``p`` is 0.5. In the
    code of Zhang et al. special tokens attend to all, too, but words do not attend to them. ``"window"`` is ours, for
    data without structure.
    """

    name: ClassVar[str] = "structure-mask"
    summary: ClassVar[str] = "drops attention scores outside of a window, a dependency tree or a graph"
    paper: ClassVar[str] = "Zhang et al. (2020), SG-Net: Syntax-Guided Machine Reading Comprehension"
    bibtex: ClassVar[str] = """@inproceedings{zhang2020sgnet,
  title     = {{SG-Net}: Syntax-Guided Machine Reading Comprehension},
  author    = {Zhang, Zhuosheng and Wu, Yuwei and Zhou, Junru and Duan, Sufeng and Zhao, Hai and Wang, Rui},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  volume    = {34},
  pages     = {9636--9643},
  year      = {2020},
  url       = {https://arxiv.org/abs/1908.05147}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("scores",), tasks="all; encoder-decoder: the encoder's self-attention"
    )

    self_attention_only: ClassVar[bool] = True

    p: float = option(0.5, unit_interval(one=True))
    structure: str = option("window", choice(*STRUCTURES))
    window: int = option(4, count(0))
    relation: str = option("ancestors", choice(*RELATIONS))
    column: str = option("dependency_heads", Range("the name of a column", lambda _, value: _column(value)))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    @property
    def columns(self) -> Mapping[str, str]:
        kinds = {"dependencies": "positions", "adjacency": "matrix"}
        return {} if self.structure == "window" else {self.column: kinds[self.structure]}

    def plan(self, context: StepContext) -> Plan:
        outside = None if self.structure == "window" else self._outside(context)
        return _DropOutside(self, context, outside)

    def _outside(self, context: StepContext) -> Tensor:
        """Which tokens are outside of the structure of which, ``(rows, n, n)``, positions counted from the first."""
        found, dimensions = context.extra.get(self.column), 3 if self.structure == "adjacency" else 2
        if found is None:
            raise AttendropError(
                f"The batch has no column '{self.column}', which structure='{self.structure}' reads; add it to the "
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


def outside_of_tree(heads: Tensor, relation: str) -> Tensor:
    """Which tokens are not related to which, ``(batch, n, n)``.

    Args:
        heads: ``(batch, n)``, the position of each token's head; itself for a root. A token with another number, such
            as -1, is related to all.
        relation: ``"ancestors"`` or ``"neighbours"``, see :class:`StructureMask`.
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


class _DropOutside(RandomMaskPlan):
    """Drops positions outside of a structure in the chosen layers.

    Args:
        method: The method.
        context: The micro-batch.
        outside: ``(rows, n, n)``, positions counted from a sequence's first token; None for the window.
    """

    method: StructureMask

    def __init__(self, method: StructureMask, context: StepContext, outside: Tensor | None) -> None:
        super().__init__(method, context)
        self.outside = outside
        self._placed: Tensor | None = None

    def drop_mask(self, call: AttentionCall) -> Tensor:
        return self.place(call) & self.sample(self.method.p, call)

    def place(self, call: AttentionCall) -> Tensor:
        """Which positions are outside, ``(batch or 1, 1, n, n)``; all layers share the answer."""
        batch, _, queries, keys = call.shape
        if queries != keys:
            raise AttendropError(
                f"Attention of {queries} queries to {keys} keys has no structure; choose other layers."
            )
        if self._placed is None:
            # Counted from the first token.
            number = torch.arange(keys, device=call.device) - self.origins(call)[:, 1:]
            self._placed = self._window(number) if self.outside is None else self._moved(self.outside, number, batch)
        return self._placed

    def _window(self, number: Tensor) -> Tensor:
        far = (number[:, :, None] - number[:, None, :]).abs() > self.method.window
        return (far & (number != 0)[:, None, :])[:, None]

    def _moved(self, outside: Tensor, number: Tensor, batch: int) -> Tensor:
        rows, length, size = len(outside), outside.shape[1], number.shape[1]
        if batch % rows:
            raise AttendropError(f"Column '{self.method.column}' has {rows} rows for a batch of {batch}.")
        outside = functional.pad(outside.to(number.device), (0, size - length) * 2, value=False)
        outside = outside.repeat_interleave(batch // rows, 0)
        number = number.clamp(min=0)  # padding; nothing attends to it
        each = torch.arange(batch, device=number.device)[:, None, None]
        return outside[each, number[:, :, None], number[:, None, :]][:, None]


def _column(value: object) -> str:
    """The name of a column; raises AttendropError if it is none."""
    if not value or not isinstance(value, str):
        raise AttendropError(f"column={value!r} is not the name of a column.")
    return value
