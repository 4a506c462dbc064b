"""DropBlock: contiguous spans of attention scores dropped at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.plan import Plan
from attendrop.keyed_random import sample_mask, uniform
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, count, option, unit_interval


@dataclass(frozen=True)
class DropBlock(Method):
    """Drops blocks of attention scores.

    In each row, each place in which a block of ``b`` keys fits begins one with probability
    ``gamma = p / b * n / (n - b + 1)``, where ``n`` counts the row's valid keys and ``b`` is ``block_size``, or ``n``
    if that is less. Blocks may overlap. What is not in a block shares the mass of what is.

    Example:
        >>> with regularize(model, DropBlock(p=0.1, block_size=4)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: About the fraction of positions that is dropped, in (0, 1): exactly ``gamma * b * (n - b + 1) / n``, less
            what blocks overlap.
        block_size: Keys in a block.
        block_rows: Queries in a block. Blocks of several are cut off at the first and the last query, so that as much
            is dropped there as anywhere.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Ghiasi, Lin, Le (2018), https://arxiv.org/abs/1810.12890, Eq. 1 and Algorithm 1, for the maps of features of
    convolutional networks; a map is here the scores of a head. Deviations: blocks are spans of a row by default, not
    squares; scores are dropped, so that softmax takes the place of their rescaling; ``p`` is constant, where they
    raise it linearly from 0; the defaults are ours (their 0.1 is for 7 x 7 positions).
    """

    name: ClassVar[str] = "dropblock"
    summary: ClassVar[str] = "drops contiguous spans of attention scores"
    paper: ClassVar[str] = "Ghiasi, Lin, Le (2018), DropBlock: A Regularization Method for Convolutional Networks"
    bibtex: ClassVar[str] = """@inproceedings{ghiasi2018dropblock,
  title     = {{DropBlock}: A Regularization Method for Convolutional Networks},
  author    = {Ghiasi, Golnaz and Lin, Tsung-Yi and Le, Quoc V.},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {31},
  year      = {2018},
  url       = {https://arxiv.org/abs/1810.12890}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("scores",))

    p: float = option(0.1, unit_interval())
    block_size: int = option(4, count())
    block_rows: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return _DropBlocks(self, context)


class _DropBlocks(RandomMaskPlan):
    """Drops blocks in the chosen layers."""

    method: DropBlock

    def drop_mask(self, call: AttentionCall) -> Tensor:
        chances = begin_chances(call, self.method.p / self.method.block_rows, self.method.block_size)
        return spread(self._seeds(call, chances), self.method.block_size)

    def _seeds(self, call: AttentionCall, chances: Tensor) -> Tensor:
        """Where blocks begin, in each of the rows that they reach down to."""
        key, rows = self.context.key, self.method.block_rows
        if rows == 1:
            return sample_mask(chances, key, call.layer.key, call.shape, self.origins(call), call.device)
        batch, heads, queries, keys = call.shape
        shape = (batch, heads, queries + rows - 1, keys)
        sampled = uniform(key, call.layer.key, shape, self.origins(call), call.device)
        seeds = sampled[:, :, :queries] < chances
        for above in range(1, rows):
            seeds |= sampled[:, :, above : above + queries] < chances
        return seeds


def begin_chances(call: AttentionCall, p: float, size: int) -> Tensor:
    """The probability that a block begins at a position, broadcastable to ``call.shape``: 0 where none fits."""
    keys = call.shape[3]
    valid = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
    count = valid.sum(-1, keepdim=True)
    length = count.clamp(min=1, max=size)
    gamma = p / length * count / (count - length + 1).clamp(min=1)
    # Numbered among the row's valid keys, the last place of a block is that before ``length`` keys.
    fits = valid & (valid.cumsum(-1) <= count - length + 1)
    return gamma * fits


def spread(seeds: Tensor, size: int) -> Tensor:
    """Let each True take the ``size - 1`` positions to its right, too."""
    width = 1
    while width < min(size, seeds.shape[-1]):
        step = min(width, size - width)
        wider = seeds.clone()
        wider[..., step:] |= seeds[..., :-step]
        seeds, width = wider, width + step
    return seeds
