"""Noise in the word embeddings, random or adversarial, alone or with a consistency loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
    ComputeLoss,
    Method,
    MethodInfo,
    Plan,
    StepContext,
    WordPlan,
    choice,
    count,
    forked_rng,
    loss_gradients,
    mean_divergence,
    option,
    positive,
)
from attendrop.methods.common.perturbations import word_noise


@dataclass(frozen=True)
class NEFTune(Method):
    """Uniform noise in the word embeddings.

    Each element of the word embeddings of a sequence of ``n`` tokens, each of width ``d``, is changed by a number that
    is uniform in ``(-a, a)`` with ``a = alpha / sqrt(n d)``.

    Args:
        alpha: Strength of the noise, above 0.

    Raises:
        AttendropError: In training, the model embeds no words (images, sound).

    Source: Jain et al. (2024), https://arxiv.org/abs/2310.05914, Algorithm 1; the default is the lowest of their 5, 10
    and 15. As in their code, ``n`` does not count padding, and special tokens are changed, too. Deviation: in models
    that normalise or add positions within the embedding (BERT), the noise is added before that. In encoder-decoder
    models, the encoder's embeddings are changed.
    """

    info = MethodInfo(
        "neftune",
        "adds uniform noise to the word embeddings",
        "Jain et al. (2024), NEFTune: Noisy Embeddings Improve Instruction Finetuning",
        acts_on=("embeddings",),
        tasks="text",
    )

    alpha: float = option(5.0, positive(), search=(1.0, 10.0, 15.0))

    def plan(self, context: StepContext) -> Plan:
        def noisy(embedded: Tensor, valid: Tensor) -> Tensor:
            width = embedded.shape[-1]
            bound = self.alpha / (valid.sum(-1).clamp(min=1) * width).sqrt()
            sampled = word_noise("uniform", context.key, "words", valid, width)
            return embedded + (sampled * bound[:, None, None]).to(embedded.dtype)

        return WordPlan(context, noisy)


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
        acts_on=("embeddings", "loss"),
        forward="2",
        backward="2",
        tasks="text; regression: squared difference",
        traits={DECIDES_PASSES: ""},
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
    :class:`attendrop.R3F`. ``2 + steps`` forward and backward passes per step, ``steps`` of them without parameter
    gradients.

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
        acts_on=("embeddings", "loss"),
        forward="2 + steps",
        backward="2 + steps (without parameters)",
        tasks="text; regression: squared difference",
        traits={DECIDES_PASSES: ""},
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
