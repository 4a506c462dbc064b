"""Attn.LayerDrop: constant attention in random layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attendrop.extend import LAYERS, ConstantAttention, Method, MethodInfo, Plan, StepContext, option, unit_interval


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
