"""SMART: predictions that do not change with adversarial perturbations of the word embeddings."""

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
    StepContext,
    WordPlan,
    count,
    forked_rng,
    loss_gradients,
    mean_divergence,
    option,
    positive,
    word_noise,
)


@dataclass(frozen=True)
class SMART(Method):
    """Smoothness-inducing adversarial regularisation.

    The batch runs unchanged, and again with a perturbation ``delta`` of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``D = KL(P || Q) + KL(Q || P)``, where ``P`` and ``Q`` are the
    predictions of both passes. ``delta`` is to maximise ``D``: it starts from normal noise, and in each of ``steps``
    additional passes becomes ``delta + step_size g / max |g|``, limited to ``[-epsilon, epsilon]`` in each element,
    where ``g`` is the gradient of ``D`` in the sequence. In regression, ``D`` is the squared difference; in multi-label
    classification, the sum over the labels' Bernoulli distributions; at token level, the mean is over labelled tokens.
    ``2 + steps`` forward and backward passes per step, of which ``steps`` backward passes do not compute gradients of
    parameters.

    Example:
        >>> with regularize(model, SMART(weight=1.0)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        epsilon: Limit of each element of the perturbation, above 0.
        step_size: Step size of the ascent (the paper's eta), above 0. With the default, which is greater than
            ``epsilon``, one step takes most elements to the limit.
        noise: Standard deviation of the noise at the start (the paper's sigma), above 0.
        steps: Number of ascent steps, 1 or more.

    Raises:
        AttendropError: An option is out of its range; or, in training, the model embeds no words (images) or returns no
            logits.

    Source: Jiang et al. (2020), https://aclanthology.org/2020.acl-main.197, sections 3.1 and Algorithm 1. ``epsilon``,
    ``step_size``, ``noise`` and ``steps`` are theirs; they choose the weight among 1, 3 and 5. The gradient is divided
    by its maximum over a sequence, as the paper's norm, not over each token, as in the code of MT-DNN. Deviations: the
    Bregman proximal point optimisation of section 3.2, their second part, is not included. The passes with a
    perturbation have the same dropout sample, the unchanged pass another; in a model with dropout much of the
    divergence is that of the samples. Of encoder-decoder models, the encoder's embeddings are perturbed.
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
