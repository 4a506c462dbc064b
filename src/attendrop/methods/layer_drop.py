"""LayerDrop, of whole blocks or of their attention only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attendrop.extend import (
    LAYERS,
    SKIPS_BLOCKS,
    AttendropError,
    Block,
    BlockEdit,
    ConstantAttention,
    Method,
    MethodInfo,
    Plan,
    StepContext,
    option,
    select_layers,
    unit_interval,
)


@dataclass(frozen=True)
class LayerDrop(Method):
    """Skipping of whole blocks, attention and feed-forward together.

    In each optimizer step each block is skipped with probability ``p``, for the whole global batch; its input is passed
    on unchanged. Nothing is rescaled. A skipped block is not computed.

    Example:
        >>> with regularize(model, LayerDrop(p=0.2)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a block is skipped, in (0, 1].
        layers: Blocks, by their attention layers, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; or, in training, no block can be skipped.

    Source: Fan, Grave, Joulin (2020), https://arxiv.org/abs/1909.11556, section 3.1; 0.2 is their recommendation.
    Using one sample for the global batch is ours, so that processes agree; theirs samples in each forward pass. Blocks
    whose results later blocks need (T5's first: the position bias) are never skipped.
    """

    info = MethodInfo(
        "layerdrop",
        "leaves out whole blocks at random",
        "Fan, Grave, Joulin (2020), Reducing Transformer Depth on Demand with Structured Dropout",
        acts_on=("layers",),
        forward="1 - p",
        backward="1 - p",
        tasks="all; T5: not its first block",
        units="blocks",
        traits={SKIPS_BLOCKS: ""},
        skips_parameters=True,
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return Skipping(sample_blocks(context, self.p, self.layers))


class Skipping(Plan):
    """Plan that skips blocks.

    Args:
        keys: Keys of the blocks to skip.
    """

    acts_on = frozenset({"blocks"})

    def __init__(self, keys: set[str]) -> None:
        super().__init__()
        self.keys = keys

    def block(self, block: Block) -> BlockEdit | None:
        return BlockEdit(skip=True) if block.attention_layers and block.key in self.keys else None


def sample_blocks(context: StepContext, p: float, layers: str | int | Sequence[int]) -> set[str]:
    """Sample the blocks to skip, each with probability ``p``, equal in all processes, and report them."""
    chosen = {layer.key for layer in select_layers(context.adapter.attention_layers, layers)}
    blocks = [block for block in context.adapter.blocks if block.skippable and block.key in chosen]
    if not blocks:
        raise AttendropError(f"layers={layers!r}: none of these layers can be left out.")
    dropped = {block.key for block in blocks if context.key.uniform(f"layer/{block.key}") < p}
    for block in blocks:
        context.report(block.key, torch.tensor(int(block.key in dropped)), torch.tensor(1))
    return dropped


@dataclass(frozen=True)
class AttentionLayerDrop(Method):
    """LayerDrop of attention only.

    In each optimizer step each layer is selected with probability ``p``. A selected layer attends equally to all valid
    keys (Eq. 4), for the whole global batch; the rest of the layer is unchanged.

    Example:
        >>> with regularize(model, AttentionLayerDrop(p=0.2)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        p: Probability that a layer is selected, in (0, 1].
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Wu, Zhao, Zhang (2021), section 7.1, after Fan et al. (2020), including the default of 0.2. Our choices,
    which the paper does not specify: one sample is used for the global batch, and the model's own attention dropout
    acts on the equal weights.
    """

    info = MethodInfo(
        "attention-layerdrop",
        "makes the attention of layers chosen at random constant",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, section 7.1",
        acts_on=("layers",),
        units="layers",
        skips_parameters=True,  # the query and key projections
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        dropped = {layer.key for layer in attention_layers if context.key.uniform(layer.key) < self.p}
        for layer in attention_layers:
            context.report(layer.key, torch.tensor(int(layer.key in dropped)), torch.tensor(1))
        return ConstantAttention(dropped)
