"""R3F: predictions that do not change with noise in the word embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
    ComputeLoss,
    Method,
    MethodInfo,
    StepContext,
    WordPlan,
    choice,
    forked_rng,
    mean_divergence,
    option,
    positive,
    word_noise,
)
from attendrop.methods.common.perturbations import NOISES


@dataclass(frozen=True)
class R3F(Method):
    """Consistency with a pass whose word embeddings are noisy.

    The batch runs unchanged, and again with noise ``z`` in each element of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``KL(P || Pz) + KL(Pz || P)``, the divergence of the predictions of
    both passes. In regression, it is replaced by their squared difference; in multi-label classification, by the sum
    over the labels' Bernoulli distributions; at token level, the mean is over labelled tokens. Two forward and two
    backward passes per step.

    Example:
        >>> with regularize(model, R3F(weight=1.0)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        scale: Scale of the noise (the paper's sigma), above 0: the bound of uniform noise, the standard deviation of
            normal noise.
        noise: ``"uniform"``, from ``(-scale, scale)``, or ``"normal"``.

    Raises:
        AttendropError: An option is out of its range; or, in training, the model embeds no words (images) or returns no
            logits.

    Source: Aghajanyan et al. (2021), https://arxiv.org/abs/2008.03156, Eq. 6 and 7. The defaults are those of the
    authors' code. As there, both passes sample their own dropout; noise of 1e-5 is far less than that, so the method is
    then mainly a consistency of two dropout samples, as R-Drop is, and it does nothing in a model without dropout.
    Deviations: the gradient of the divergence also reaches the embeddings in the noisy pass, from which their code
    detaches it; in regression their code has no such term. R4F, which also normalises the spectrum of the head, is not
    included. Of encoder-decoder models, the encoder's embeddings are noisy.
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
    noise: str = option("uniform", choice(*NOISES))

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
