"""DropBlock: dropout of contiguous spans of attention scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    count,
    option,
    uniform,
    unit_interval,
)
from attendrop.methods.common.random_mask import begin_chances, spread


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

    info = MethodInfo(
        "dropblock",
        "drops contiguous spans of attention scores",
        "Ghiasi, Lin, Le (2018), DropBlock: A Regularization Method for Convolutional Networks",
        acts_on=("scores",),
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    block_size: int = option(4, count())
    block_rows: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, lambda plan, call: plan.drop_scores(call, self.drop_mask(plan, call)))

    def drop_mask(self, plan: RandomMaskPlan, call: AttentionCall) -> Tensor:
        """Sample the blocks of a layer, ``(batch, heads, query, key)``; invalid keys may be among them."""
        chances = begin_chances(call, self.p / self.block_rows, self.block_size)
        if self.block_rows == 1:
            return spread(plan.sample(chances, call), self.block_size)
        batch, heads, queries, keys = call.shape
        shape = (batch, heads, queries + self.block_rows - 1, keys)
        sampled = uniform(plan.context.key, call.layer.key, shape, plan.origins(call), call.device)
        starts = sampled[:, :, :queries] < chances
        for above in range(1, self.block_rows):  # each row has the blocks that start in it, and in the rows above
            starts |= sampled[:, :, above : above + queries] < chances
        return spread(starts, self.block_size)
