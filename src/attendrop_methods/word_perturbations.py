"""Consistency with passes whose word embeddings are noisy, perturbed to disagree, or cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    SampleKey,
    StepContext,
    WordPlan,
    choice,
    count,
    floor_fraction,
    forked_rng,
    loss_gradients,
    mean_divergence,
    normal,
    option,
    positive,
    token_uniform,
    uniform,
    unit_interval,
    with_views,
)


@dataclass(frozen=True)
class R3F(Method):
    """Consistency with a pass whose word embeddings are noisy.

    The batch runs unchanged, and again with noise ``z`` in each element of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``KL(P || Pz) + KL(Pz || P)``, the divergence of the predictions of
    both passes. In regression, it is replaced by their squared difference; in multi-label classification, by the sum
    over the labels' Bernoulli distributions; at token level, the mean is over labelled tokens.

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        scale: Scale of the noise (the paper's sigma), above 0: the bound of uniform noise, the standard deviation of
            normal noise.
        noise: ``"uniform"``, from ``(-scale, scale)``, or ``"normal"``.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Aghajanyan et al. (2021), https://arxiv.org/abs/2008.03156, Eq. 6 and 7, with the defaults of the authors'
    code. As there, both passes sample their own dropout; its effect is far larger than that of noise of 1e-5, so with
    this default the method mainly enforces consistency of two dropout samples, as R-Drop does. Deviations: the gradient
    of the divergence also reaches the embeddings in the noisy pass; in regression their code has no such term. R4F is
    not included. In encoder-decoder models, the encoder's embeddings are noisy.
    """

    info = MethodInfo(
        "r3f",
        "makes predictions agree with those from noisy word embeddings",
        "Aghajanyan et al. (2021), Better Fine-Tuning by Reducing Representational Collapse",
        link="https://arxiv.org/abs/2008.03156",
        acts_on=("embeddings", "loss"),
        forward="2",
        backward="2",
        tasks="text; regression: squared difference",
    )

    weight: float = option(1.0, positive(), search=(0.1, 0.3, 3.0))
    scale: float = option(1e-5, positive(), search=(0.01, 0.1))
    noise: str = option("uniform", choice("uniform", "normal"))

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        def noisy_words(embedded: Tensor, valid: Tensor) -> Tensor:
            sampled = word_noise(self.noise, context.key, "words", valid, embedded.shape[-1])
            return embedded + (self.scale * sampled).to(embedded.dtype)

        loss, outputs = compute_loss(context.batch)
        with forked_rng(context.model):
            _, noisy = compute_loss(context.batch, WordPlan(context, noisy_words))
        divergence = mean_divergence(context.model, outputs, noisy, context.batch)
        context.note("divergence", divergence)
        return loss + self.weight * divergence, outputs


@dataclass(frozen=True)
class SMART(Method):
    """Smoothness-inducing adversarial regularisation.

    The batch runs unchanged, and again with a perturbation ``delta`` of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``D = KL(P || Q) + KL(Q || P)``, where ``P`` and ``Q`` are the
    predictions of both passes. To maximise ``D``, ``delta`` starts from normal noise, and in each of ``steps``
    additional passes becomes ``delta + step_size g / max |g|``, limited to ``[-epsilon, epsilon]`` in each element,
    where ``g`` is the gradient of ``D`` in the sequence. Other kinds of predictions are compared as in
    :class:`attendrop_methods.R3F`. ``2 + steps`` forward and backward passes per step, ``steps`` of them without
    parameter gradients.

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        epsilon: Limit of each element of the perturbation, above 0.
        step_size: Step size of the ascent (the paper's eta), above 0; above ``epsilon`` one step takes most elements to
            the limit.
        noise: Standard deviation of the noise at the start (the paper's sigma), above 0.
        steps: Number of ascent steps, 1 or more.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Jiang et al. (2020), https://aclanthology.org/2020.acl-main.197, sections 3.1 and Algorithm 1. ``epsilon``,
    ``step_size``, ``noise`` and ``steps`` are theirs; they choose the weight among 1, 3 and 5. The gradient is divided
    by its maximum over a sequence, as the paper's norm, not over each token, as in the code of MT-DNN. Deviations: the
    Bregman proximal point optimisation of section 3.2 is not included. All passes with a perturbation use one dropout
    sample, the unchanged pass another. In encoder-decoder models, the encoder's embeddings are perturbed.
    """

    info = MethodInfo(
        "smart",
        "makes predictions agree with those from adversarially perturbed word embeddings",
        "Jiang et al. (2020), SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through "
        "Principled Regularized Optimization",
        link="https://aclanthology.org/2020.acl-main.197",
        acts_on=("embeddings", "loss"),
        forward="2 + steps",
        backward="2 + steps (without parameters)",
        tasks="text; regression: squared difference",
    )

    weight: float = option(1.0, positive(), search=(0.3, 3.0, 5.0))
    epsilon: float = option(1e-5, positive(), search=(1e-3, 1e-2))
    step_size: float = option(1e-3, positive())
    noise: float = option(1e-5, positive())
    steps: int = option(1, count())

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        words: dict[str, Tensor] = {}

        def read(embedded: Tensor, valid: Tensor) -> Tensor:
            words["noise"] = self.noise * word_noise("normal", context.key, "words", valid, embedded.shape[-1])
            return embedded

        def divergence_with(delta: Tensor) -> Tensor:
            plan = WordPlan(context, lambda embedded, _: embedded + delta.to(embedded.dtype))
            with forked_rng(context.model):
                _, perturbed = compute_loss(context.batch, plan)
            return mean_divergence(context.model, outputs, perturbed, context.batch)

        loss, outputs = compute_loss(context.batch, WordPlan(context, read))
        delta = words["noise"]
        for _ in range(self.steps):
            divergence = divergence_with(delta.requires_grad_())
            delta = self._ascended(delta, loss_gradients(divergence, {"words": delta}, context.model)["words"])
        divergence = divergence_with(delta)
        context.note("divergence", divergence)
        return loss + self.weight * divergence, outputs

    def _ascended(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """Take one step along the gradient of the divergence, ``(batch, n, width)``, within the limits."""
        largest = gradient.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
        return (delta.detach() + self.step_size * gradient / largest).clamp(-self.epsilon, self.epsilon)


@dataclass(frozen=True)
class TokenCutoff(Method):
    """Views of the batch without some tokens, a span of tokens, or some features of the embeddings.

    The batch runs unchanged, and then ``views`` times with a part of each sequence cut: of ``n`` tokens, ``max(1,
    floor(fraction n))`` at random places (``unit="tokens"``) or in a row (``"span"``), or the same fraction of the
    features of all its tokens (``"features"``). The word embedding of a cut token is zero, and no token attends to it.
    The loss is that of the first pass, plus ``alpha`` times the mean loss of the views, plus ``beta`` times the mean
    Kullback-Leibler divergence of the predictions of all passes from their mean (for two passes, Jensen-Shannon). ``1 +
    views`` forward and backward passes per step.

    Args:
        fraction: Fraction of the tokens, or features, to cut, in (0, 1).
        unit: What is cut: ``"tokens"``, ``"span"`` or ``"features"``, see above.
        alpha: Weight of the loss of the views, 0 or more.
        beta: Weight of the divergence, 0 or more; ``alpha`` or ``beta`` must be above 0.
        views: Number of views of a batch, 1 or more.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound) or returns no logits.

    Source: Shen et al. (2020), https://arxiv.org/abs/2009.13818, section 3, with the values of the authors' GLUE
    scripts. As in their code, special tokens may be cut, and cut tokens are hidden from attention. Deviations: their
    code zeroes the sum of word, position and type embeddings, samples the tokens with replacement, and cuts none of a
    short text. In regression, the squared distance from the mean replaces the divergence; with several labels, it is
    that of each label's Bernoulli distribution; at token level, the mean is over labelled tokens. In encoder-decoder
    models, the encoder's input is cut. The model's own dropout acts in all passes, with separate samples.
    """

    info = MethodInfo(
        "token-cutoff",
        "cuts tokens out of the input, and makes the predictions agree",
        "Shen et al. (2020), A Simple but Tough-to-Beat Data Augmentation Approach for Natural Language Understanding "
        "and Generation",
        link="https://arxiv.org/abs/2009.13818",
        acts_on=("embeddings", "scores", "loss"),
        forward="1 + views",
        backward="1 + views",
        tasks="text; encoder-decoder: the encoder",
    )

    fraction: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("tokens", choice("tokens", "span", "features"), search=("span",))
    alpha: float = option(1.0, positive(zero=True))
    beta: float = option(1.0, positive(zero=True))
    views: int = option(1, count())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == self.beta == 0:
            raise AttendropError("alpha=0 and beta=0 are plain fine-tuning; set one of them above 0.")

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        clean = compute_loss(context.batch)
        views = [self.cut(context, view) for view in range(self.views)]
        return with_views(context, compute_loss, clean, views, self.alpha, self.beta)

    def cut(self, context: StepContext, view: int) -> Plan:
        """Return the plan of a view, given its number."""
        if self.unit != "features":
            return _CutTokens(context, partial(self._sample, context, view))

        def change(embedded: Tensor, _: Tensor) -> Tensor:
            features = torch.ones_like(embedded[:, 0], dtype=torch.bool)
            return embedded.masked_fill(self._sample(context, view, features)[:, None], 0)

        return WordPlan(context, change)

    def _sample(self, context: StepContext, view: int, among: Tensor) -> Tensor:
        """Sample what to cut ``among`` the tokens, or features, of each sequence, ``(batch, n)``."""
        total, name = among.sum(-1, keepdim=True), f"{view}/{self.unit}"
        length = floor_fraction(total, self.fraction).clamp(min=1)
        if self.unit == "span":
            sampled = token_uniform(context.key, name, torch.ones_like(among[:, :1]))
            start, number = (sampled * (total - length + 1)).long(), among.cumsum(-1) - 1
            return among & (number >= start) & (number < start + length)
        sampled = token_uniform(context.key, name, among).masked_fill(~among, 2)
        return among & (sampled.argsort(stable=True).argsort(stable=True) < length)


class _CutTokens(WordPlan):
    """Plan that cuts the tokens that ``sample`` chooses among the valid ones, ``(batch, n)``."""

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


def word_noise(kind: str, key: SampleKey, name: str, valid: Tensor, width: int) -> Tensor:
    """Sample noise for each element of word embeddings, ``(batch, n, width)``, in float32; zero at padding.

    It is ``"uniform"``, from (-1, 1), or ``"normal"``, with a standard deviation of 1. ``valid`` are the tokens that
    are not padding, ``(batch, n)``; ``name`` completes the key.
    """
    given = (key, name, (len(valid), 1, valid.shape[1], width), of_rows(valid.int().argmax(-1)), valid.device)
    sampled = uniform(*given) * 2 - 1 if kind == "uniform" else normal(*given)
    return sampled.squeeze(1) * valid[..., None]


def of_rows(first: Tensor) -> Tensor:
    """Return the origins of tensors with tokens, counted from the ``first``, in rows and features in columns."""
    return torch.stack([first, torch.zeros_like(first)], -1)
