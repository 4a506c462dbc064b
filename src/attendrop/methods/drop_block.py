"""DropBlock: dropout of contiguous spans of attention scores."""

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
    """Dropout of contiguous blocks of attention scores.

    In each row, a block of ``b`` keys starts at each position where it fits with probability
    ``gamma = p / b * n / (n - b + 1)``, where ``n`` is the number of valid keys in the row and ``b`` is the minimum of
    ``block_size`` and ``n``. Blocks may overlap. The softmax redistributes their mass over the remaining positions.

    Example:
        >>> with regularize(model, DropBlock(p=0.1, block_size=4)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Approximate fraction of dropped positions, in (0, 1): exactly ``gamma * b * (n - b + 1) / n``, minus the
            overlap of blocks.
        block_size: Number of keys in a block.
        block_rows: Number of queries in a block. Taller blocks are cut off at the first and last query, so that the
            dropped fraction is the same there as elsewhere.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Ghiasi, Lin, Le (2018), https://arxiv.org/abs/1810.12890, Eq. 1 and Algorithm 1, for feature maps of
    convolutional networks; here the scores of a head take the place of a map. Deviations: blocks are spans of a row by
    default, not squares; scores are dropped, so that softmax replaces their rescaling; ``p`` is constant, while they
    increase it linearly from 0; the defaults are ours (their 0.1 is for 7 x 7 positions).
    """

    name: ClassVar[str] = "dropblock"
    summary: ClassVar[str] = "drops contiguous spans of attention scores"
    paper: ClassVar[str] = "Ghiasi, Lin, Le (2018), DropBlock: A Regularization Method for Convolutional Networks"
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("scores",))

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    block_size: int = option(4, count())
    block_rows: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return _DropBlocks(self, context)


class _DropBlocks(RandomMaskPlan):
    """Plan that drops blocks in the selected layers."""

    method: DropBlock

    def drop_mask(self, call: AttentionCall) -> Tensor:
        chances = begin_chances(call, self.method.p / self.method.block_rows, self.method.block_size)
        return spread(self._seeds(call, chances), self.method.block_size)

    def _seeds(self, call: AttentionCall, chances: Tensor) -> Tensor:
        """Sample the starts of blocks, in each row that they cover."""
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
    """Compute the probability that a block starts at a position, broadcastable to ``call.shape``; 0 if none fits."""
    keys = call.shape[3]
    valid = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
    count = valid.sum(-1, keepdim=True)
    length = count.clamp(min=1, max=size)
    gamma = p / length * count / (count - length + 1).clamp(min=1)
    # Counting valid keys only, a block fits if at least ``length`` keys remain.
    fits = valid & (valid.cumsum(-1) <= count - length + 1)
    return gamma * fits


def spread(seeds: Tensor, size: int) -> Tensor:
    """Extend each True to the ``size - 1`` positions to its right."""
    width = 1
    while width < min(size, seeds.shape[-1]):
        step = min(width, size - width)
        wider = seeds.clone()
        wider[..., step:] |= seeds[..., :-step]
        seeds, width = wider, width + step
    return seeds
