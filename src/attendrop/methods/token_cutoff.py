"""Token cutoff: views of a batch without some of its tokens, whose predictions are to agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    StepContext,
    WordPlan,
    choice,
    count,
    floor_fraction,
    option,
    positive,
    uniform,
    unit_interval,
    with_views,
)

UNITS = ("tokens", "span", "features")


@dataclass(frozen=True)
class TokenCutoff(Method):
    """Views of the batch without some tokens, a span of tokens, or some features of the embeddings.

    The batch runs unchanged, and then ``views`` times with a part of each sequence cut: of ``n`` tokens,
    ``max(1, floor(fraction n))`` at random places (``unit="tokens"``) or in a row (``"span"``), or the same fraction of
    the features of all its tokens (``"features"``). The word embedding of a cut token is zero, and no token attends to
    it. The loss is that of the first pass, plus ``alpha`` times the mean loss of the views, plus ``beta`` times the
    mean Kullback-Leibler divergence of the predictions of all passes from their mean (for two passes, Jensen-Shannon).
    ``1 + views`` forward and backward passes per step.

    Example:
        >>> with regularize(model, TokenCutoff(fraction=0.1)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        fraction: Fraction of the tokens, or features, to cut, in (0, 1).
        unit: What is cut: ``"tokens"``, ``"span"`` or ``"features"``, see above.
        alpha: Weight of the loss of the views, 0 or more.
        beta: Weight of the divergence, 0 or more; ``alpha`` or ``beta`` must be above 0.
        views: Number of views of a batch, 1 or more.

    Raises:
        AttendropError: An option is out of its range; or, in training, the model embeds no words (images) or returns no
            logits.

    Source: Shen et al. (2020), https://arxiv.org/abs/2009.13818, section 3. 0.1, 1, 1 and one view are the values of
    the authors' GLUE scripts. As in their code, special tokens may be cut, and cut tokens are hidden from attention.
    Deviations: their code zeroes the sum of word, position and type embeddings, and samples the tokens with
    replacement; here the word embeddings are zeroed, and the tokens are different. At least one is cut; their code cuts
    none of a short text. In regression, the squared distance from the mean replaces the divergence; with several
    labels, it is that of each label's Bernoulli distribution; at token level, the mean is over labelled tokens. Of
    encoder-decoder models, the encoder's input is cut. The model's own dropout acts in all passes, with separate
    samples.
    """

    info = MethodInfo(
        "token-cutoff",
        "cuts tokens out of the input, and makes the predictions agree",
        "Shen et al. (2020), A Simple but Tough-to-Beat Data Augmentation Approach for Natural Language Understanding "
        "and Generation",
        acts_on=("embeddings", "scores", "loss"),
        forward="1 + views",
        backward="1 + views",
        tasks="text; encoder-decoder: the encoder",
        traits={DECIDES_PASSES: ""},
    )

    fraction: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("tokens", choice(*UNITS), search=("span",))
    alpha: float = option(1.0, positive(zero=True))
    beta: float = option(1.0, positive(zero=True))
    views: int = option(1, count())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == self.beta == 0:
            raise AttendropError("alpha=0 and beta=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        clean = compute_loss(context.batch)
        cut = self.cut_features if self.unit == "features" else self.cut_tokens
        views = [cut(context, view) for view in range(self.views)]
        return with_views(context, compute_loss, clean, views, self.alpha, self.beta)

    def cut_tokens(self, context: StepContext, view: int) -> Plan:
        """Return the plan that cuts tokens, or a span of them, in a view, given its number."""
        return _CutTokens(context, lambda valid: self._sample(context, view, valid))

    def cut_features(self, context: StepContext, view: int) -> Plan:
        """Return the plan that cuts features in a view, given its number."""

        def change(embedded: Tensor, valid: Tensor) -> Tensor:
            every = torch.ones_like(embedded[:, 0], dtype=torch.bool)
            total = torch.full((len(every), 1), embedded.shape[-1], device=embedded.device)
            length = floor_fraction(total, self.fraction).clamp(min=1)
            cut = lowest(_uniform(context, f"{view}/features", every), length)
            return embedded.masked_fill(cut[:, None], 0)

        return WordPlan(context, change)

    def _sample(self, context: StepContext, view: int, valid: Tensor) -> Tensor:
        """Sample the tokens to cut, ``(batch, n)``; padding is not counted in positions."""
        total = valid.sum(-1, keepdim=True)
        length = floor_fraction(total, self.fraction).clamp(min=1)
        if self.unit == "span":
            sampled = _uniform(context, f"{view}/span", torch.ones_like(valid[:, :1]))
            start, number = (sampled * (total - length + 1)).long(), valid.cumsum(-1) - 1
            return valid & (number >= start) & (number < start + length)
        return lowest(_uniform(context, f"{view}/tokens", valid).masked_fill(~valid, 2), length) & valid


class _CutTokens(WordPlan):
    """Plan that cuts the tokens that ``sample`` chooses among the valid ones, ``(batch, n)``."""

    acts_on = frozenset({"embeddings", "attention"})

    def __init__(self, context: StepContext, sample: Callable[[Tensor], Tensor]) -> None:
        super().__init__(context, self._cut)
        self.sample = sample
        self.cut: Tensor | None = None

    def wants(self, layer: AttentionLayer) -> bool:
        kinds = {other.kind for other in self.context.adapter.attention_layers}
        return layer.kind in ({"encoder", "cross"} if "encoder" in kinds else {"decoder"})

    def edit(self, call: AttentionCall) -> AttentionEdit:
        return AttentionEdit(drop=None if self.cut is None else self.cut[:, None, None])

    def _cut(self, embedded: Tensor, valid: Tensor) -> Tensor:
        self.cut = self.sample(valid)
        return embedded.masked_fill(self.cut[..., None], 0)


def lowest(values: Tensor, length: Tensor) -> Tensor:
    """Return a mask of the ``length`` lowest ``values`` of each row; both have two dimensions."""
    return values.argsort(stable=True).argsort(stable=True) < length


def _uniform(context: StepContext, name: str, valid: Tensor) -> Tensor:
    """Sample a number from (0, 1) for each element of ``valid``, ``(batch, n)``, counted from the first valid one."""
    first = valid.int().argmax(-1)
    origins = torch.stack([torch.zeros_like(first), first], -1)
    rows, length = valid.shape
    return uniform(context.key, name, (rows, 1, 1, length), origins, valid.device).view(rows, length)
