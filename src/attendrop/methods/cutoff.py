"""HiddenCut: views of the batch without spans of hidden states, and a consistency loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    Block,
    BlockEdit,
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    RandomMaskPlan,
    StepContext,
    choice,
    count,
    floor_fraction,
    option,
    positive,
    unit_interval,
    upcast,
)
from attendrop.methods.common.losses import with_views
from attendrop.methods.common.plans import token_uniform


@dataclass(frozen=True)
class HiddenCut(Method):
    """Cutting of contiguous spans of the hidden states in each layer.

    The batch runs once unchanged, and then ``views`` times with a span cut in each layer: in a sequence of ``n``
    tokens, ``max(1, floor(alpha n))`` consecutive tokens, fewer at the end of the sequence, are set to zero. The loss
    is that of the first pass, plus ``gamma`` times the mean loss of the cut views, plus ``eta`` times the mean
    Kullback-Leibler divergence of the predictions of all passes from their mean (for two passes, Jensen-Shannon).

    The start of a span is sampled uniformly: with ``select_by="attention"`` from the ``max(1, floor(candidates n))``
    tokens that receive most attention in that layer in the first pass, over all heads and tokens; with ``"random"``
    from all starts that leave room for the span. Spans are sampled separately for each layer, sequence and view.

    Args:
        alpha: Length of a span as a fraction of the sequence, in (0, 1].
        select_by: Selection of the start of a span: ``"attention"`` or ``"random"``, see above.
        candidates: Fraction of the tokens that are candidate starts, by attention; in (0, 1].
        gamma: Weight of the loss of the cut views, 0 or more.
        eta: Weight of the divergence, 0 or more; ``gamma`` or ``eta`` must be above 0.
        views: Number of cut views of a batch, 1 or more.
        where: ``"feed_forward"``: cut the activations within a block's feed-forward, so that it adds only its last
            bias, and the residual connection keeps the rest. ``"block"``: cut the output hidden states of the block.
        layers: Blocks, by their attention layers, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, no block is selected, or there are no logits.

    Source: Chen et al. (2021), https://aclanthology.org/2021.acl-long.338, section 3, with the values of the authors'
    code, which sets the output of the feed-forward to zero, as ``"feed_forward"`` does except for the last bias.
    ``"block"`` is stronger: it removes all information about these tokens, possibly including the first, which a
    classifier reads. Further deviations from the code: it ranks tokens by the attention of the cut pass, before
    dropout, with padding; here by that of the first pass, after dropout, without padding. It skips the dropout after
    the feed-forward where it cuts; here the model's own dropout acts in all passes, with separate samples. Its
    divergence is ``KL(mean || P)``; here it is ``KL(P || mean)``, as in the paper. In regression, the squared
    distance from the mean replaces the divergence; with several labels, it is that of each label's Bernoulli
    distribution; at token level, the mean is over labelled tokens. In an encoder-decoder model only the encoder is cut.
    """

    info = MethodInfo(
        "hiddencut",
        "cuts spans out of hidden states, and makes the predictions agree",
        "Chen et al. (2021), HiddenCut: Simple Data Augmentation for Natural Language Understanding",
        link="https://aclanthology.org/2021.acl-long.338",
        acts_on=("hidden states", "loss"),
        forward="1 + views",
        backward="1 + views",
        tasks="all; encoder-decoder: the encoder",
        units="tokens",
    )

    alpha: float = option(0.1, unit_interval(one=True), search=(0.05, 0.2, 0.4))
    select_by: str = option("attention", choice("attention", "random"))
    candidates: float = option(0.4, unit_interval(one=True))
    gamma: float = option(1.0, positive(zero=True))
    eta: float = option(1.0, positive(zero=True))
    views: int = option(1, count())
    where: str = option("feed_forward", choice("block", "feed_forward"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma == self.eta == 0:
            raise AttendropError("gamma=0 and eta=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        attention_layers = context.adapter.attention_layers
        kind = "encoder" if any(layer.kind == "encoder" for layer in attention_layers) else "decoder"
        chosen = {layer.key for layer in self.selected_layers(attention_layers) if layer.kind == kind}
        keys = {block.key for block in context.adapter.blocks if block.key in chosen}
        if not keys:
            raise AttendropError(f"layers={self.layers!r} selects no block of the {kind}; choose layers of the {kind}.")
        received: dict[str, Tensor] = {}

        def record(_: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            key, rows = call.layer.key, call.valid_queries()

            def kept(weights: Tensor) -> Tensor:
                if key not in received:
                    given = upcast(weights.detach())
                    received[key] = (given if rows is None else given * rows).sum((1, 2))
                return weights

            return AttentionEdit(weights=kept)

        by_attention = self.select_by == "attention"
        clean = compute_loss(context.batch, RandomMaskPlan(self, context, record, keys) if by_attention else None)
        cuts = [Cut(context, self, keys, received if by_attention else None, view) for view in range(self.views)]
        return with_views(context, compute_loss, clean, cuts, self.gamma, self.eta)


class Cut(Plan):
    """Plan that cuts one span in each of the blocks with these ``keys``, in a ``view`` given by its number.

    ``received`` is the attention that each token receives in these blocks, if it determines the start of a span.
    """

    def __init__(
        self,
        context: StepContext,
        method: HiddenCut,
        keys: Collection[str],
        received: Mapping[str, Tensor] | None,
        view: int,
    ) -> None:
        super().__init__()
        self.context, self.method, self.keys, self.received, self.view = context, method, keys, received, view
        self.layer_keys = keys
        self.spans: dict[str, Tensor] = {}
        self._valid: dict[str, Tensor] = {}

    def edit(self, call: AttentionCall) -> None:
        """Record which positions hold tokens; attention is not edited."""
        shape = (call.shape[0], call.shape[3])
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid.any(1).any(1)
        self._valid[call.layer.key] = valid.expand(shape)

    def block(self, block: Block) -> BlockEdit | None:
        if not block.attention_layers or block.key not in self.keys:
            return None
        if self.received is not None and block.key not in self.received:
            return None  # the model skipped it in the first pass

        def cut(states: Tensor) -> Tensor:
            if block.key not in self.spans:
                self.spans[block.key] = self._sample(block.key)
            return states.masked_fill(self.spans[block.key][..., None], 0)

        return BlockEdit(output=cut) if self.method.where == "block" else BlockEdit(activations=cut)

    def _sample(self, key: str) -> Tensor:
        """Sample the span of each sequence, ``(batch, n)``; padding is not counted in positions."""
        valid = self._valid[key]
        total, number = valid.sum(-1, keepdim=True), valid.cumsum(-1) - 1
        length = floor_fraction(total, self.method.alpha).clamp(min=1)
        sampled = token_uniform(self.context.key, f"{self.view}/{key}", torch.ones_like(valid[:, :1]))
        if self.received is None:
            start = (sampled * (total - length + 1)).long()
        else:
            order = self.received[key].masked_fill(~valid, -1).argsort(stable=True, descending=True)
            among = floor_fraction(total, self.method.candidates).clamp(min=1)
            start = number.gather(-1, order.gather(-1, (sampled * among).long()))
        found = valid & (number >= start) & (number < start + length)
        self.context.report(key, found.sum(), valid.sum())
        return found
