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
    unit_interval,
)


@dataclass(frozen=True)
class LayerDrop(Method):
    """Skipping of whole blocks, attention and feed-forward together.

    In each optimizer step each block is skipped with probability ``p``, for the whole global batch: it is not computed,
    and its input is passed on unchanged. Nothing is rescaled.

    Args:
        p: Probability that a block is skipped, in (0, 1].
        layers: Blocks, by their attention layers, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, no block can be skipped.

    Source: Fan, Grave, Joulin (2020), https://arxiv.org/abs/1909.11556, section 3.1; 0.2 is their recommendation. One
    sample for the global batch is ours, so that processes agree. Blocks whose results later blocks need (T5's first:
    the position bias) are never skipped.
    """

    info = MethodInfo(
        "layerdrop",
        "skips whole blocks at random",
        "Fan, Grave, Joulin (2020), Reducing Transformer Depth on Demand with Structured Dropout",
        link="https://arxiv.org/abs/1909.11556",
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
        chosen = {layer.key for layer in self.selected_layers(context.adapter.attention_layers)}
        blocks = [block.key for block in context.adapter.blocks if block.skippable and block.key in chosen]
        if not blocks:
            raise AttendropError(f"layers={self.layers!r}: none of these layers can be left out.")
        return Skipping(_sampled(context, self.p, blocks, "layer/"))


class Skipping(Plan):
    """Plan that skips the blocks with these keys."""

    acts_on = frozenset({"blocks"})

    def __init__(self, keys: set[str]) -> None:
        super().__init__()
        self.keys = keys

    def block(self, block: Block) -> BlockEdit | None:
        return BlockEdit(skip=True) if block.attention_layers and block.key in self.keys else None


def _sampled(context: StepContext, p: float, keys: Sequence[str], prefix: str = "") -> set[str]:
    """Sample the layers to drop, each with probability ``p``, equal in all processes, and report them."""
    dropped = {key for key in keys if context.key.uniform(f"{prefix}{key}") < p}
    for key in keys:
        context.report(key, torch.tensor(int(key in dropped)), torch.tensor(1))
    return dropped


@dataclass(frozen=True)
class AttentionLayerDrop(Method):
    """LayerDrop of attention only.

    In each optimizer step each layer is selected with probability ``p``. A selected layer attends equally to all valid
    keys (Eq. 4), for the whole global batch; the rest of the layer is unchanged.

    Args:
        p: Probability that a layer is selected, in (0, 1].
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Wu, Zhao, Zhang (2021), section 7.1, after Fan et al. (2020), including the default of 0.2. Not specified
    there: one sample is used for the global batch, and the model's own attention dropout acts on the equal weights.
    """

    info = MethodInfo(
        "attention-layerdrop",
        "makes the attention of random layers constant",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need, section 7.1",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("layers",),
        units="layers",
        skips_parameters=True,  # the query and key projections
    )

    p: float = option(0.2, unit_interval(one=True), search=(0.05, 0.1, 0.4))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        keys = [layer.key for layer in self.selected_layers(context.adapter.attention_layers)]
        return ConstantAttention(_sampled(context, self.p, keys))
